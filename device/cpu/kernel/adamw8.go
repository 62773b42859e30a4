package kernel

import (
	"unsafe"

	"zeroth/device"
)

// RuleScratch is the floats that an update rule takes: its constants spread and, of
// AdamW8, a block of the moments and what a last block is filled up in.
const RuleScratch = 16*len(Args{}.K) + 5*device.BlockLen

// RunAdamW8 works on blocks [lo, hi) of device.BlockLen elements.
func RunAdamW8(t *Args, w *Worker, lo, hi int) {
	const n = device.BlockLen
	mem := w.Floats(RuleScratch)[16*len(t.K):]
	m, v := mem[:n], mem[n:2*n]
	end := mem[2*n:] // for a last block that is no multiple of a vector
	r := &w.args.rule
	r.K, r.Kind = t.spread(w), int(t.B[1].Type)
	for b := lo; b < hi; b++ {
		at := b * n
		left := min(n, t.B[0].N-at)
		mostM, codesM := t.B[3].Block8(b)
		mostV, codesV := t.B[4].Block8(b)
		device.Q8.Decode(m, *mostM, codesM)
		device.U8.Decode(v, *mostV, codesV)
		if left%16 == 0 {
			r.W, r.P, r.G, r.M, r.V, r.N = t.from(0, at), t.from(1, at), t.from(2, at), FloatPtr(m, 0), FloatPtr(v, 0), left
			BestVec.AdamW(r)
		} else {
			t.lastBlock(w, r, at, left, m, v, end)
		}
		device.Q8.Encode(mostM, codesM, m[:left])
		device.U8.Encode(mostV, codesV, v[:left])
	}
}

// lastBlock updates n elements from at on by way of memory that has whole vectors.
func (t *Args) lastBlock(w *Worker, r *Rule, at, n int, m, v, mem []float32) {
	const most = device.BlockLen
	x, g, p := mem[:most], mem[most:2*most], mem[2*most:3*most]
	whole := padded(n, 16)
	for _, b := range [][]float32{x[n:whole], g[n:whole], m[n:whole], v[n:whole]} {
		clear(b)
	}
	copy(x, t.B[0].Slice(at, at+n).F32())
	copy(g, t.B[2].Slice(at, at+n).F32())
	r.W, r.G, r.M, r.V, r.N, r.P = FloatPtr(x, 0), FloatPtr(g, 0), FloatPtr(m, 0), FloatPtr(v, 0), whole, nil
	if t.B[1].N > 0 {
		r.P = FloatPtr(p, 0)
	}
	BestVec.AdamW(r)
	copy(t.B[0].Slice(at, at+n).F32(), x)
	if t.B[1].N > 0 {
		to := t.B[1].Slice(at, at+n).Raw()
		copy(to, unsafe.Slice((*byte)(r.P), len(to)))
	}
}
