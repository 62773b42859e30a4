//go:build cuda

package cuda_test

import (
	"testing"

	"zeroth/device"
	"zeroth/device/cuda/fake"
)

// TestManyOperationsKeepTheirOrder issues more operations than fit one call of the driver, short
// and long ones, which must keep their order.
func TestManyOperationsKeepTheirOrder(t *testing.T) {
	b := open(t)
	const n = 64
	x := b.send(floats(n, func(int) float32 { return 1 }))
	turned := device.Matrix(b.send(floats(n, func(int) float32 { return 1 })), 1, n)
	y := b.alloc(device.F32, n)
	for range 40 {
		b.q.AddScalar(x, x, 1)
		b.q.Rope(turned, device.Rope{T: 1, D: n, Theta: 1e4}, false) // it has the longest list of parameters
		b.q.Copy(y, x)
		b.q.Zero(x)
		b.q.SumInto(x, []device.Buffer{y, y})
		b.q.Scale(x, 0.75)
	}
	got, want := b.fetch(x), float32(1)
	for range 40 {
		want = 2 * (want + 1) * 0.75
	}
	for i, v := range got.F32() {
		if v != want {
			t.Fatalf("element %d is %g, want %g", i, v, want)
		}
	}
}

// TestErrorNamesOperation checks that an error of one of several operations names it by its
// label, even if others follow and the queue has another label by then. Later operations of the
// queue are skipped, and marks fire.
func TestErrorNamesOperation(t *testing.T) {
	fake.Only(t)
	b := open(t)
	x, y := b.send(floats(4, func(int) float32 { return 1 })), b.alloc(device.F32, 4)
	gone := b.alloc(device.F32, 4)
	b.dev.Free(gone)
	b.q.Label("unit a: forward")
	b.q.AddTo(x, x, x)
	b.q.Copy(gone, x)
	b.q.Copy(y, x)
	b.q.Label("unit b: forward")
	b.q.AddTo(x, x, x)
	done := b.q.Mark()
	err := done.Await()
	say(t, err, "unit a: forward: GPU 0 (Emulated GPU): copy 16 bytes on the device: CUDA_ERROR_INVALID_VALUE")
	b.r.AfterPeer(done)
	host := floats(8, func(int) float32 { return 0 })
	b.r.Copy(host.Slice(0, 4), x)
	b.r.Copy(host.Slice(4, 8), y)
	if err := b.r.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, got := range host.F32() {
		if want := float32(2 - i/4*2); got != want {
			t.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
}
