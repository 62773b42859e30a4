package nn_test

import (
	"errors"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/nn"
)

// TestOnHost checks that a module's own host work runs in order, that its error names it, and that
// it is refused for memory that the host cannot address.
func TestOnHost(t *testing.T) {
	d := cpu.NewHost(2)
	defer d.Close()
	for _, c := range []struct {
		what string
		host bool
		err  error
		want string
	}{{"adding", true, nil, ""}, {"adding", true, errors.New("too large"), "adding: too large"}, {"adding", false, nil, "adding: this runs on the host, which cannot address the device's memory"}} {
		q := d.NewQueue("compute")
		x, y := device.OfF32([]float32{1, 2, 3}), device.OfF32(make([]float32, 3))
		over := y
		over.Host = c.host
		q.Copy(y, x)
		nn.OnHost(q, c.what, func() error { y.F32()[0] += 10; return c.err }, x, over, device.Buffer{})
		q.AddTo(x, y, y)
		err := q.Wait()
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && x.F32()[0] != 22 {
			t.Errorf("%+v: %v", c, x.F32())
		}
		if !c.host && y.F32()[0] > 10 {
			t.Error("what was refused has run")
		}
		q.Close()
	}
}
