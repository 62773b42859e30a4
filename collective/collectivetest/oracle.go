package collectivetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"zeroth/device"
)

// The oracle computes the results of collectives serially, element by element; it decodes and
// encodes 16-bit types with a table of their values. It shares no code with any implementation.

// gather performs an all-gather over all ranks' buffers.
func gather(bufs []device.Buffer) {
	n := bufs[0].Bytes() / len(bufs)
	for r, from := range bufs {
		for _, to := range bufs {
			copy(to.Raw()[r*n:(r+1)*n], from.Raw()[r*n:(r+1)*n])
		}
	}
}

// exchange swaps part r of rank k's buffer and part k of rank r's.
func exchange(bufs []device.Buffer) {
	n := bufs[0].Bytes() / len(bufs)
	for r, a := range bufs {
		for k, b := range bufs[:r] {
			x, y := a.Raw()[k*n:][:n], b.Raw()[r*n:][:n]
			for i := range n {
				x[i], y[i] = y[i], x[i]
			}
		}
	}
}

// broadcast copies rank 0's buffer.
func broadcast(bufs []device.Buffer) {
	for _, to := range bufs[1:] {
		copy(to.Raw(), bufs[0].Raw())
	}
}

// collect sets rank 0's buffer to the sum over the ranks.
func collect(bufs []device.Buffer) {
	all, terms := viewAll(bufs), make([]uint64, len(bufs))
	for i := range bufs[0].N {
		for k, b := range all {
			terms[k] = b.at(i)
		}
		all[0].set(i, sumBits(bufs[0].Type, terms))
	}
}

// reduce sets part r of rank r's buffer to the sum over the ranks.
func reduce(bufs []device.Buffer) {
	n := bufs[0].N / len(bufs)
	all, terms := viewAll(bufs), make([]uint64, len(bufs))
	for r, to := range all {
		for i := r * n; i < (r+1)*n; i++ {
			for k, b := range all {
				terms[k] = b.at(i)
			}
			to.set(i, sumBits(bufs[r].Type, terms))
		}
	}
}

// view reads and writes the elements of a buffer as bits.
type view struct {
	raw  []byte
	size int // bytes of an element
}

func viewOf(b device.Buffer) view { return view{b.Raw(), b.Type.Size()} }

func viewAll(bufs []device.Buffer) (all []view) {
	for _, b := range bufs {
		all = append(all, viewOf(b))
	}
	return all
}

func (v view) at(i int) uint64 {
	switch v.size {
	case 2:
		return uint64(binary.NativeEndian.Uint16(v.raw[2*i:]))
	case 4:
		return uint64(binary.NativeEndian.Uint32(v.raw[4*i:]))
	}
	return binary.NativeEndian.Uint64(v.raw[8*i:])
}

func (v view) set(i int, bits uint64) {
	switch v.size {
	case 2:
		binary.NativeEndian.PutUint16(v.raw[2*i:], uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(v.raw[4*i:], uint32(bits))
	default:
		binary.NativeEndian.PutUint64(v.raw[8*i:], bits)
	}
}

// sumBits returns the sum of the terms from left to right.
func sumBits(t device.DType, terms []uint64) uint64 {
	if t == device.F64 {
		sum := math.Float64frombits(terms[0])
		for _, x := range terms[1:] {
			sum += math.Float64frombits(x)
		}
		return math.Float64bits(sum)
	}
	sum := float32(valueOf(t, terms[0]))
	for _, x := range terms[1:] {
		sum += float32(valueOf(t, x))
	}
	return bitsOf(t, float64(sum))
}

// valueOf returns the value of the bits of a float type.
func valueOf(t device.DType, bits uint64) float64 {
	switch t {
	case device.F32:
		return float64(math.Float32frombits(uint32(bits)))
	case device.F64:
		return math.Float64frombits(bits)
	}
	return halves[t].decode(uint16(bits))
}

// bitsOf returns the bits of the value of a float type nearest to x.
func bitsOf(t device.DType, x float64) uint64 {
	switch t {
	case device.F32:
		return uint64(math.Float32bits(float32(x)))
	case device.F64:
		return math.Float64bits(x)
	}
	return uint64(halves[t].encode(x))
}

// largest returns the largest finite value of a float type.
func largest(t device.DType) float64 {
	switch t {
	case device.F32:
		return math.MaxFloat32
	case device.F64:
		return math.MaxFloat64
	}
	v := halves[t].values
	return v[len(v)-1]
}

// half holds the values of a 16-bit type with bits 0, 1, 2, ... up to the largest finite one, in
// ascending order.
type half struct{ values []float64 }

var halves = map[device.DType]half{device.BF16: newHalf(8, 7), device.F16: newHalf(5, 10)}

func newHalf(exponent, mantissa int) half {
	bias := 1<<(exponent-1) - 1
	h := half{make([]float64, (1<<exponent-1)<<mantissa)}
	for bits := range h.values {
		e, m := bits>>mantissa, bits&(1<<mantissa-1)
		if e > 0 {
			m += 1 << mantissa
		}
		h.values[bits] = math.Ldexp(float64(m), max(e, 1)-bias-mantissa)
	}
	return h
}

// decode returns the value of bits.
func (h half) decode(bits uint16) float64 {
	x := math.Inf(1)
	if m := int(bits & 0x7fff); m < len(h.values) {
		x = h.values[m]
	} else if m > len(h.values) {
		x = math.NaN()
	}
	if bits&0x8000 != 0 {
		return -x
	}
	return x
}

// encode returns the bits of the nearest value, ties to even. Beyond the largest finite value,
// infinity takes the place of the next one.
func (h half) encode(x float64) uint16 {
	var sign uint16
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	last := len(h.values) - 1
	beyond := 2*h.values[last] - h.values[last-1]
	if x != x {
		return uint16(len(h.values)) | 1
	}
	above := sort.SearchFloat64s(h.values, x) // the first value >= x
	if above == 0 || x >= beyond {
		return sign | uint16(above)
	}
	low, high := h.values[above-1], beyond
	if above <= last {
		high = h.values[above]
	}
	if x-low < high-x || x-low == high-x && above%2 == 1 {
		above--
	}
	return sign | uint16(above)
}

// guard is the number of bytes before and after every buffer that must not change.
const guard = 64

// Memory allocates the tests' buffers, in words of 8 bytes.
var Memory = func(words int) []float64 { return make([]float64, words) }

// guarded is a buffer with guards, and all its memory.
type guarded struct {
	device.Buffer
	all []byte
}

func newGuarded(t device.DType, n int) guarded {
	words := Memory((n*t.Size() + 2*guard + 7) / 8)
	for i := range words {
		words[i] = math.Float64frombits(0xa5a5a5a5a5a5a5a5)
	}
	all := device.OfF64(words).Raw()
	whole := device.OfF64(words)
	whole.Type, whole.N = t, whole.Bytes()/t.Size()
	return guarded{whole.Slice(guard/t.Size(), guard/t.Size()+n), all}
}

// damage returns an error if a guard changed.
func (g guarded) damage() error {
	end := guard + g.Bytes()
	for i, x := range g.all {
		if (i < guard || i >= end) && x != 0xa5 {
			return fmt.Errorf("byte %d relative to the buffer of %d overwritten", i-guard, g.Bytes())
		}
	}
	return nil
}

// fill sets the elements to random bits or, for sums, to finite values of very different
// magnitudes, so that the order of summation matters.
func fill(b device.Buffer, rng *rand.Rand, sums bool) {
	to := viewOf(b)
	for i := range b.N {
		bits := rng.Uint64()
		if sums {
			bits = number(b.Type, bits)
		}
		to.set(i, bits)
	}
}

// number converts random bits to a finite value of the type: occasionally a zero or subnormal, for
// smaller types any finite one, else a value around 1.
func number(t device.DType, bits uint64) uint64 {
	const around = 24 // binary orders of magnitude
	rare := bits>>40%16 == 0
	switch t {
	case device.F32:
		if rare {
			return bits & 0x800000ff
		}
		return bits&0x807fffff | (bits>>48%around+115)<<23
	case device.F64:
		if rare {
			return bits & 0x80000000000000ff
		}
		return bits&0x800fffffffffffff | (bits>>48%around+1011)<<52
	case device.BF16:
		if rare {
			return bits & 0x8003
		}
		return bits&0x807f | (bits>>48%around+115)<<7
	case device.F16:
		if bits&0x7c00 == 0x7c00 {
			bits &^= 0x0400
		}
	}
	return bits
}

// difference returns an error with the first element that differs, or nil.
func difference(got, want device.Buffer) error {
	if bytes.Equal(got.Raw(), want.Raw()) {
		return nil
	}
	for i := range got.N {
		if g, w := viewOf(got).at(i), viewOf(want).at(i); g != w {
			return fmt.Errorf("element %d of %d %v is %x, want %x", i, got.N, got.Type, g, w)
		}
	}
	panic("conformance: equal elements of unequal bytes")
}

// clone returns a copy in separate memory.
func clone(b device.Buffer) device.Buffer {
	c := newGuarded(b.Type, b.N)
	copy(c.Raw(), b.Raw())
	return c.Buffer
}
