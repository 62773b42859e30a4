package cpu_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
)

// TestWindow checks that host and device see each other's writes through a window: immediately if
// memory is shared, by copies if it is separate.
func TestWindow(t *testing.T) {
	d, host := cpu.New(1), cpu.NewHost(1)
	q := d.NewQueue("test")
	w, err := device.OpenWindow(d, host, device.F32, 100, device.Stats)
	if err != nil {
		t.Fatal(err)
	}
	if apart := w.Device.Ptr != w.Host.Ptr; apart != cpu.Separate || apart != (host.Usage().Live[device.Stats] == 400) || d.Usage().Live[device.Stats] != 400 {
		t.Errorf("separate %v: %+v, host %v", cpu.Separate, w, host.Usage())
	}
	for i := range w.Host.F32() {
		w.Host.F32()[i] = float32(i)
	}
	w.Send(q)
	q.Scale(w.Device, 2)
	w.Fetch(q)
	part := make([]float32, 3)
	onto := device.Onto(w.Device.Slice(50, 53), func(n int) device.Buffer { return device.OfF32(part[:n]) })
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	copy(onto.Host.F32(), []float32{-1, -2, -3})
	onto.Send(q)
	w.Fetch(q)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, x := range w.Host.F32() {
		want := float32(2 * i)
		if i >= 50 && i < 53 {
			want = float32(49 - i)
		}
		if x != want {
			t.Errorf("element %d is %g, want %g", i, x, want)
		}
	}
	q.Close()
	device.FreeWindow(d, host, w)
	if n := d.Usage().Live.Total() + host.Usage().Live.Total(); n != 0 {
		t.Errorf("%d bytes still held", n)
	}
	d.Close()
	host.Close()
}

// TestSeparateMemory checks that the host cannot access separate memory, that kernels access only
// their own device's memory, and that copies cross.
func TestSeparateMemory(t *testing.T) {
	if !cpu.Separate {
		t.Skip("of the build tag separate")
	}
	d, host := cpu.New(2), cpu.NewHost(2)
	defer d.Close()
	defer host.Close()
	q, h := d.NewQueue("device"), host.NewQueue("host")
	defer q.Close()
	defer h.Close()
	far, err := d.Alloc(device.F32, 8, device.Params)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(far)
	near := device.OfF32(slices.Repeat([]float32{2}, 8))
	for want, f := range map[string]func(){
		"looks into device memory":     func() { far.F32() },
		"looks into device memory ":    func() { far.Slice(1, 2).Raw() },
		"not its device's":             func() { q.AddTo(far, far, near) },
		"on queue host of memory that": func() { h.Zero(far) },
		"matmul": func() {
			q.MatMul(device.Matrix(far, 2, 2), device.Matrix(near, 2, 2), device.Matrix(far, 2, 2), device.Buffer{}, false)
		},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, strings.TrimSpace(want)) {
					t.Errorf("panic %q, want %q in it", got, want)
				}
			}()
			f()
		})
	}
	h.Copy(far, near)
	if err := h.Wait(); err != nil {
		t.Fatal(err)
	}
	q.AddTo(far, far, far)
	q.Copy(near, far)
	if err := q.Wait(); err != nil || near.F32()[7] != 4 {
		t.Errorf("%v, %v", near.F32(), err)
	}
}
