//go:build cuda

package cuda

import (
	"math"
	"testing"

	"zeroth/device"
	"zeroth/device/cuda/fake"
	"zeroth/device/cuda/kernel"
)

// TestExactSumsOfManyRanks sums over more ranks than a kernel adds at once, which must also be in
// order.
func TestExactSumsOfManyRanks(t *testing.T) {
	fake.Need(t)
	d, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	const n = 70
	for _, ranks := range []int{kernel.MaxSources, kernel.MaxSources + 1, 3*kernel.MaxSources - 1} {
		bounce, err := d.Alloc(device.F32, ExactBounce(ranks, 4*n)/4, device.Bounce)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := d.Alloc(device.F32, ranks*n, device.UnitGrads)
		if err != nil {
			t.Fatal(err)
		}
		for _, me := range []int{0, 1, ranks - 1} {
			c := &Communicator{dev: d, rank: me, ranks: ranks, exact: true, bounce: bounce}
			want := make([]float32, n)
			x := make([]float32, n)
			for r := range ranks {
				for i := range x {
					x[i] = float32(math.Sin(float64(r*n + i)))
					if want[i] += x[i]; r == 0 {
						want[i] = x[i]
					}
				}
				q.Copy(c.term(whole, r, 0, n), device.OfF32(x))
				if err := q.Wait(); err != nil { // the host's memory is overwritten next
					t.Fatal(err)
				}
			}
			own, got := whole.Slice(me*n, (me+1)*n), make([]float32, n)
			c.addInOrder(q, own, whole, 0, n)
			q.Copy(device.OfF32(got), own)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("rank %d of %d: element %d is %v, want %v", me, ranks, i, got[i], want[i])
				}
			}
		}
		half := &Communicator{dev: d, ranks: ranks, exact: true, bounce: bounce}
		if err := half.exactSum(q, device.Buffer{Type: device.BF16}, device.Buffer{Type: device.BF16}); (err != nil) != (ranks > kernel.MaxSources) {
			t.Errorf("%d ranks of bf16: %v", ranks, err)
		}
		d.Free(bounce)
		d.Free(whole)
	}
}
