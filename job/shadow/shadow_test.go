package shadow

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
)

// gpu is a CPU queue in place of a GPU's. It calls broken after each AddTo.
type gpu struct {
	*cpu.Queue
	broken func()
}

func (g gpu) Now(name string, f func() error) { g.Call(name, f) }
func (g gpu) AfterPeer(e device.Event)        { g.After(e) }

func (g gpu) AddTo(y, a, b device.Buffer) {
	g.Queue.AddTo(y, a, b)
	g.Do(func() error { g.broken(); return nil })
}

func (g gpu) Rope(x device.Mat, r device.Rope, inverse bool) {
	g.Queue.Rope(x, r, inverse)
	g.Do(func() error { g.broken(); return nil })
}

// TestShadowFindsErrors checks that errors are found in a result, in a read-only operand and in
// memory between rows, but not in a result within its bound. Operands overlap.
func TestShadowFindsErrors(t *testing.T) {
	host := cpu.NewHost(1)
	defer host.Close()
	if err := host.Reserve(device.Sizes{Rows: 8, Width: 16, Rope: true}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change func(x []float32)
		want   string
	}{
		"nothing": {func([]float32) {}, ""},
		"a result": {func(x []float32) { x[5] += 1 },
			"unit h.1: forward: shadow: add of (32) fp32, (32) fp32, (32) fp32: y (1,32) fp32: element (0,5) is 2 on the GPU and 1 by the CPU's kernels: error 1, bound 0"},
		"an operand":          {func(x []float32) { x[40] = 7 }, "the GPU changed memory of an operand that is not a result: byte"},
		"a NaN":               {func(x []float32) { x[0] = float32(math.NaN()) }, "element (0,0) is NaN"},
		"rope":                {func(x []float32) { x[64+17] += 1 }, "shadow: rope of (4,8) fp32: x (4,8) fp32: element (1,1) is "},
		"rope, a little":      {func(x []float32) { x[64+17] = math.Nextafter32(x[64+17], 2) }, ""},
		"rope, between rows":  {func(x []float32) { x[64+12] = 3 }, "the GPU changed memory of an operand that is not a result: byte"},
		"rope, below a bound": {func(x []float32) { x[64+17] *= 1 + 1e-4 }, "error "},
	} {
		x, err := host.Alloc(device.F32, 128, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.F32() {
			x.F32()[i] = 0.5
		}
		q := New(gpu{host.NewQueue("gpu"), func() { c.change(x.F32()) }}, host.NewQueue("cpu"), host)
		q.Label("unit h.1: forward")
		if strings.HasPrefix(what, "rope") {
			q.Rope(device.Mat{Buf: x.Slice(64, 64+3*16+8), Rows: 4, Cols: 8, Ld: 16}, device.Rope{T: 4, D: 4, Theta: 10000}, false)
		} else {
			q.AddTo(x.Slice(0, 32), x.Slice(0, 32), x.Slice(32, 64))
		}
		err = q.Wait()
		if said := fmt.Sprint(err); (err == nil) != (c.want == "") || err != nil && !strings.Contains(said, c.want) {
			t.Errorf("%s: %v\nwant %q", what, err, c.want)
		}
		q.Close()
		host.Free(x)
	}
}
