package kernel

import (
	"math"
	"math/bits"
	"unsafe"

	"zeroth/device"
)

// dropISA contains the functions of dropout.
type dropISA struct {
	// keeps sets the mask bits of whole words, for columns from a multiple of 64 on.
	keeps func(p *DropBits)
	// drop contains functions for F32, BF16 and F16. Each sets y to x times s where keep has a 1
	// and to 0 elsewhere, then adds add unless it is nil; n is a positive multiple of 16.
	drop [3]dropFunc
}

type dropFunc func(y, x, add, keep unsafe.Pointer, n int, s float32)

// RunDropout processes rows [lo, hi).
func RunDropout(t *Args, w *Worker, lo, hi int) {
	d, p := &t.Drop, &w.args.drop
	p.Keys, p.Keep = unsafe.Pointer(w.roundKeys(d.Key())), unsafe.Pointer(&w.keep)
	p.Place, p.Drop = int(d.Site), int(d.Drop)
	for r := lo; r < hi; r++ {
		p.Row = int(d.Row) + r
		for c := 0; c < d.Cols; c += BlockLen {
			n := min(BlockLen, d.Cols-c)
			p.Group, p.Words = (d.First+c)/8, (n+63)/64
			BestVec.keeps(p)
			t.drop(w, r*d.Cols+c, n)
		}
	}
}

// roundKeys returns Philox's keys for its ten rounds, the first words and then the second words.
func (w *Worker) roundKeys(key [2]uint32) *[10][2]uint32 {
	for i := range w.keys {
		w.keys[i] = key
		key[0] += device.PhiloxW0
		key[1] += device.PhiloxW1
	}
	return &w.keys
}

// drop processes elements [at, at+n), with the mask in w.keep.
func (t *Args) drop(w *Worker, at, n int) {
	y, add := t.B[0].Slice(at, at+n), t.B[2]
	x := t.B[1].Slice(at, at+n)
	if add.N > 0 {
		add = add.Slice(at, at+n)
	}
	f := BestVec.drop[y.Type]
	if f != nil && x.Type == y.Type && (add.N == 0 || add.Type == y.Type) {
		w.drop(f, y, x, add, t.Drop.Scale())
		return
	}
	mem := w.Floats(3 * BlockLen)
	to := memoryFor(mem[2*BlockLen:], y, 0, n)
	from := device.OfF32(floatsOf(mem, x, 0, n))
	if add.N > 0 {
		add = device.OfF32(floatsOf(mem[BlockLen:], add, 0, n))
	}
	w.drop(BestVec.drop[device.F32], device.OfF32(to), from, add, t.Drop.Scale())
	keep(y, 0, to)
}

// drop calls f on buffers of equal length and type. Elements after the last whole vector are
// processed in a padded vector.
func (w *Worker) drop(f dropFunc, y, x, add device.Buffer, s float32) {
	n := y.N &^ 15
	if n > 0 {
		f(y.Ptr, x.Ptr, add.Ptr, unsafe.Pointer(&w.keep), n, s)
	}
	if n == y.N {
		return
	}
	var last unsafe.Pointer
	copy(w.end(1), x.Slice(n, x.N).Raw())
	if add.N > 0 {
		copy(w.end(2), add.Slice(n, add.N).Raw())
		last = unsafe.Pointer(&w.ends[2])
	}
	f(unsafe.Pointer(&w.ends[0]), unsafe.Pointer(&w.ends[1]), last, unsafe.Add(unsafe.Pointer(&w.keep), n/8), 16, s)
	copy(y.Slice(n, y.N).Raw(), w.end(0))
}

// dropped returns x times s if the lowest bit is set, else 0.
func dropped(x, s float32, bit uint16) float32 {
	return math.Float32frombits(math.Float32bits(x*s) & -uint32(bit&1))
}

func dropGo(y, x, add, keep unsafe.Pointer, n int, s float32) {
	ys, xs, words := FloatsAt(y, n), FloatsAt(x, n), unsafe.Slice((*uint16)(keep), n/16)
	if add == nil {
		for i := range ys {
			ys[i] = dropped(xs[i], s, words[i/16]>>(i%16))
		}
		return
	}
	for i, a := range FloatsAt(add, n) {
		ys[i] = dropped(xs[i], s, words[i/16]>>(i%16)) + a
	}
}

func keepsGo(p *DropBits) {
	keys := (*[10][2]uint32)(p.Keys)
	for i, words := 0, unsafe.Slice((*uint64)(p.Keep), p.Words); i < len(words); i++ {
		word := uint64(0)
		for g := range 8 {
			word |= uint64(keepsOf(keys, p, p.Group+8*i+g)) << (8 * g)
		}
		words[i] = word
	}
}

// keepsOf returns the mask of the eight columns of a group; see device.Dropout.
func keepsOf(keys *[10][2]uint32, p *DropBits, group int) (kept uint32) {
	const m0, m1 = device.PhiloxM0, device.PhiloxM1
	a, b, c, d := uint32(group), uint32(p.Place), uint32(p.Row), uint32(p.Row>>32)
	for i := range keys {
		hi0, lo0 := bits.Mul32(m0, a)
		hi1, lo1 := bits.Mul32(m1, c)
		a, b, c, d = hi1^b^keys[i][0], lo1, hi0^d^keys[i][1], lo0
	}
	limit := uint32(p.Drop)
	for i, r := range [4]uint32{a, b, c, d} {
		low, high := ^(r&0xffff-limit)>>31, ^(r>>16-limit)>>31 // 1 if it is at least the limit
		kept |= (low | high<<1) << (2 * i)
	}
	return kept
}
