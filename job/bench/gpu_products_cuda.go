//go:build cuda

package bench

import (
	"zeroth/device"
	"zeroth/device/cpu"
)

// benchShape is the size of a model for kernel benchmarks. A micro-batch has rows positions in
// sequences of T tokens, and logits are computed for chunk positions at a time.
type benchShape struct{ rows, T, width, vocab, chunk int }

// benchProduct is a matrix product of training: C (m, n) with inner dimension k.
type benchProduct struct {
	name    string
	m, n, k int
	ta, tb  bool
	f32     bool // C is float32 whatever the type of activations: a parameter gradient
}

// products returns the products of a block, forward and backward, and of the head.
func (s benchShape) products() []benchProduct {
	r, c := s.rows, s.width
	return []benchProduct{
		{"qkv", r, 3 * c, c, false, false, false},
		{"mlp in", r, 4 * c, c, false, false, false},
		{"mlp out", r, c, 4 * c, false, false, false},
		{"d mlp in", r, c, 4 * c, false, true, false},
		{"dW mlp in", c, 4 * c, r, true, false, true},
		{"logits", s.chunk, s.vocab, c, false, true, false},
		{"d logits", s.chunk, c, s.vocab, false, false, false},
	}
}

// noise returns n elements between -1 and 1.
func noise(t device.DType, n int) device.Buffer {
	wide := device.OfF32(make([]float32, n))
	fillNoise(wide.F32())
	if t == device.F32 {
		return wide
	}
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("bench")
	defer q.Close()
	narrow := device.OfU16(t, make([]uint16, n))
	q.Cast(narrow, wide)
	_ = q.Wait() // a cast does not fail
	return narrow
}
