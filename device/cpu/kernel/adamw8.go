package kernel

import (
	"unsafe"

	"zeroth/device"
)

// RuleScratch is the number of floats an update rule needs: its constants, replicated, and for
// AdamW8 one block of moments plus the padding of the last block.
const RuleScratch = 16*len(Args{}.K) + 5*device.BlockLen

// RunAdamW8 updates blocks [lo, hi) of device.BlockLen elements.
func RunAdamW8(t *Args, w *Worker, lo, hi int) {
	const n = device.BlockLen
	mem := w.Floats(RuleScratch)[16*len(t.K):]
	m, v := mem[:n], mem[n:2*n]
	end := mem[2*n:] // padding, used if the last block is not a multiple of a vector
	r := &w.args.rule
	r.K, r.Kind = t.spread(w), int(t.B[1].Type)
	for b := lo; b < hi; b++ {
		at := b * n
		size := min(n, t.B[0].N-at)
		mostM, codesM := t.B[3].Block8(b)
		mostV, codesV := t.B[4].Block8(b)
		decode(device.Q8, m, *mostM, codesM)
		decode(device.U8, v, *mostV, codesV)
		if size%16 == 0 {
			r.W, r.P, r.G, r.M, r.V, r.N = t.address(0, at), t.address(1, at), t.address(2, at), FloatPtr(m, 0), FloatPtr(v, 0), size
			BestVec.AdamW(r)
		} else {
			t.lastBlock(r, at, size, m, v, end)
		}
		encode(device.Q8, mostM, codesM, m[:size])
		encode(device.U8, mostV, codesV, v[:size])
	}
}

// codeISA contains an instruction set's functions for coding n elements in 8 bits, where n is a
// positive multiple of 16; see device.Code8. Fields may be nil.
type codeISA struct {
	decode func(x, codes, values unsafe.Pointer, n int, largest float32)
	// encode sets the sign at bit 7 of nonzero codes if signed is 0x80; otherwise it is 0.
	encode func(codes, x, limits, first unsafe.Pointer, n, signed int, inverse float32)
	most   func(x unsafe.Pointer, n int) float32 // returns the largest magnitude
}

// decode implements device's Decode, with whole vectors in assembly.
func decode(t device.DType, x []float32, largest float32, codes []uint8) {
	n := len(codes) &^ 15
	if n > 0 && BestVec.decode != nil {
		value, _, _ := t.Code8()
		BestVec.decode(FloatPtr(x, 0), unsafe.Pointer(&codes[0]), unsafe.Pointer(value), n, largest)
	} else {
		n = 0
	}
	t.Decode(x[n:], largest, codes[n:])
}

// encode implements device's Encode, with whole vectors in assembly.
func encode(t device.DType, largest *float32, codes []uint8, x []float32) {
	n := len(x) &^ 15
	if n < len(x) || BestVec.encode == nil {
		t.Encode(largest, codes, x)
		return
	}
	if *largest = device.Largest(BestVec.most(FloatPtr(x, 0), n)); *largest == 0 {
		clear(codes)
		return
	}
	_, limits, first := t.Code8()
	signed := 0
	if t == device.Q8 {
		signed = 0x80
	}
	BestVec.encode(unsafe.Pointer(&codes[0]), FloatPtr(x, 0), unsafe.Pointer(limits), unsafe.Pointer(&first[0]), n, signed, 1 / *largest)
}

// lastBlock updates elements [at, at+n) in memory padded to whole vectors.
func (t *Args) lastBlock(r *Rule, at, n int, m, v, mem []float32) {
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
