package cpu

import (
	"fmt"
	"math/bits"
	"sync"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// rotary is a device's table of rotations, computed on first use and when the parameters change.
type rotary struct {
	kernel.RopeTable
	mu  sync.Mutex // held while positions are rotated
	dev *Device
	mem device.Buffer
}

func (t *rotary) grow(n int) (err error) {
	if t.mem.N < n {
		t.Rope = device.Rope{}
		if t.mem, err = t.dev.regrow(t.mem, n); err == nil {
			t.Table = t.mem.F32()
		}
	}
	return err
}

// Rope rotates the heads of x, (B*T, heads*D), in place by their positions. With inverse it
// rotates them back, which computes the gradient; if Amplitude is set, that is not the inverse.
// Angles are computed in float64. Their cosines and sines are rounded to float32, as are each
// product and each sum of two, so results are bit-identical on every machine.
func (q *Queue) Rope(x device.Mat, r device.Rope, inverse bool) {
	kernel.WantMat("rope", x.Rows, x.Cols, x)
	if r.D < 2 || r.D%2 != 0 || x.Cols%r.D != 0 || r.Part%2 != 0 || r.Part < 0 || r.Part > r.D || r.T < 1 || x.Rows%r.T != 0 || r.Past < 0 {
		panic(fmt.Sprintf("cpu: rope of a matrix (%d, %d) as sequences of %d positions after %d with heads of width %d", x.Rows, x.Cols, r.T, r.Past, r.D))
	}
	device.Starts("rope", r.Start, x.Rows, r.Past)
	t := q.issue("rope")
	t.B[0], r.Start = r.Start, device.Buffer{}
	t.M[0], t.Rope, t.F = x, r, 1
	if inverse {
		t.F = -1
	}
	t.phases = ropePhases
	q.commit()
}

// ropePhases fills the table if needed, then rotates rows.
func ropePhases(t *task, q *Queue) {
	table, r, workers := q.rope, t.Rope, len(q.pool.workers)+1
	if t.M[0].Rows == 0 {
		return
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if !table.Has(r) {
		if r.Span > r.Past+r.T {
			r.T, r.Past = r.Span, 0
		} else if r.Past > 0 { // sequences grow one position at a time, so allocate up to twice as many
			r.T, r.Past = 1<<bits.Len(uint(r.Past+r.T-1)), 0
		}
		if err := table.grow(r.T * r.D); err != nil {
			panic(fmt.Sprintf("cpu: the table of rotary positions: %v", err))
		}
		table.Rope = r
		q.phase(t, kernel.RunAngles, r.T, kernel.RowGrain(8*r.D), workers)
	}
	q.phase(t, kernel.RunRope, t.M[0].Rows, kernel.RowGrain(t.M[0].Cols), workers)
}
