package nn

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// counted is a queue that counts matrix products.
type counted struct {
	Ops
	products int
}

func (c *counted) MatMul(dst, a, b device.Mat, bias device.Buffer, add bool) {
	c.products++
	c.Ops.MatMul(dst, a, b, bias, add)
}

func (c *counted) MatMulOnto(dst, res, a, b device.Mat, bias device.Buffer) {
	c.products++
	c.Ops.MatMulOnto(dst, res, a, b, bias)
}

func (c *counted) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	c.products++
	c.Ops.MatMulActivate(y, x, a, b, bias, f)
}

// bits returns the bytes of the losses and of all gradients.
func (r *rig) bits() map[string][]byte {
	all := map[string][]byte{}
	for name, b := range r.named() {
		if b.N > 0 {
			all[name] = bytes.Clone(b.Raw())
		}
	}
	return all
}

// same fails unless the losses and all gradients have those bytes.
func (r *rig) same(what string, want map[string][]byte) {
	r.t.Helper()
	for name, got := range r.bits() {
		if !bytes.Equal(got, want[name]) {
			r.t.Errorf("%s: %s differs", what, name)
		}
	}
}

// TestRestored checks that gradients have the same bits at every level, and that nothing is
// computed again that no gradient needs: products of the MLP's last layer only for a norm after it.
func TestRestored(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		r.train(SaveAll)
		want := r.bits()
		products := map[Recompute]int{}
		for level := RecomputeNone; level <= RecomputeBlock; level++ {
			products[level] = r.train(level)
			r.same(fmt.Sprint("level ", level), want)
		}
		if strings.Contains(fmt.Sprint(r.model.Modules[1].Params()), "lora") {
			return // adapters are products, too
		}
		inner, mlp, linear, block := len(r.model.Modules)-2, 1, 3, 3
		if b, ok := r.model.Modules[1].(*llamaBlock); ok {
			mlp, linear, block = 2, 6, 6
			if b.mlp.after.exist() {
				block++
			}
		}
		if want := map[Recompute]int{RecomputeNone: 0, RecomputeElementwise: 0, RecomputeMLP: mlp * inner, RecomputeLinear: linear * inner, RecomputeBlock: block * inner}; !maps.Equal(products, want) {
			t.Errorf("products computed again: %v, want %v", products, want)
		}
	})
}

// TestUnreadIsNotSaved checks that with adapters of queries and values alone, the inputs of layers
// without gradients are not saved, and that gradients do not change.
func TestUnreadIsNotSaved(t *testing.T) {
	l := Llama{Shape: Shape{LoRA: LoRA{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}}}
	frozen := llamaSubject("adapters", l)
	frozen.model = func() *Model {
		return llamaSubject("", l).model().Frozen(func(p shard.Param) bool { return !strings.Contains(p.Name, "lora") })
	}
	r := newRig(t, frozen, device.F32)
	for i, m := range r.model.Modules {
		for j, p := range m.Params() {
			if p.Frozen {
				r.dw[i][j] = device.Buffer{}
			}
		}
	}
	r.train(SaveAll)
	want, saved := r.bits(), map[Recompute]int{}
	for level := SaveAll; level <= RecomputeBlock; level++ {
		r.train(level)
		r.same(fmt.Sprint("level ", level), want)
		m, s := r.model.Modules[1], new(Saved)
		floor := r.mem.Mark()
		r.bt.Recompute = level
		m.Forward(r.q, r.mem, r.w[1], &r.bt, r.poisoned(r.dt, r.B*r.T*r.width), r.poisoned(r.dt, r.B*r.T*r.width), s)
		saved[level] = r.mem.Mark() - floor
		r.wait()
		r.mem.Release(floor)
	}
	b, rows := r.model.Modules[1].(*llamaBlock), r.B*r.T
	size := func(cols int) int { return (4*rows*cols + 63) / 64 * 64 }
	if got, want := saved[SaveAll]-saved[RecomputeNone], size(b.l.FFN)+size(b.l.Width); got != want {
		t.Errorf("%d bytes are not saved, want the MLP's activation and its norm's output: %d", got, want)
	}
}

// TestChunks checks that an MLP computed in chunks gives the same losses and gradients, except that
// sums over rows for its parameters have another order.
func TestChunks(t *testing.T) {
	nightly.Parallel(t)
	eachType(t, func(r *rig) {
		r.train(SaveAll)
		want, sums := r.bits(), map[string][]float64{}
		for name, b := range r.named() {
			if strings.Contains(name, "mlp") {
				sums[name] = r.values(b)
			}
		}
		for level := RecomputeMLP; level <= RecomputeBlock; level++ {
			r.bt.MLPChunk = []int{1, 3, 4, 10}[int(level-RecomputeMLP+Recompute(len(want)))%4]
			r.train(level)
			for name, b := range r.named() {
				what := fmt.Sprintf("level %d, chunks of %d: %s", level, r.bt.MLPChunk, name)
				if sum, ok := sums[name]; ok {
					r.near(what, b, 1, sum, 1e-5) // ten terms, each added with a rounding of 2^-24
				} else if !bytes.Equal(b.Raw(), want[name]) {
					r.t.Errorf("%s differs", what)
				}
			}
		}
	})
}
