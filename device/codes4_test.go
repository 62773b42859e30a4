package device

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"slices"
	"testing"
	"unsafe"
)

// coded is a matrix as coded by bitsandbytes on a CPU: testdata/nf4.json, from tests/interop/qlora.py.
type coded struct {
	Name                                    string
	Shape                                   [2]int
	Input, Codes, Magnitudes, Largest, Mean []byte
	Float32, BFloat16, Float16              uint32 // CRC-32 of the decoded elements
}

func (c coded) values() []float32 {
	if c.Input != nil {
		return floats(c.Input)
	}
	seeds := map[string]uint32{"three groups": 1, "incomplete blocks": 2}
	return numbers(c.Shape[0]*c.Shape[1], seeds[c.Name])
}

// numbers computes what the script's function of that name does.
func numbers(n int, seed uint32) (all []float32) {
	for i := range n {
		h, x := uint32(i)*2654435761+seed, 0
		for range 4 {
			h ^= h >> 16
			h *= 0x7FEB352D
			h ^= h >> 15
			h *= 0x846CA68B
			h ^= h >> 16
			x += int(h>>16) - 32768
		}
		all = append(all, float32(float64(x)/(1<<21)))
	}
	return all
}

func floats(b []byte) (x []float32) {
	for ; len(b) > 0; b = b[4:] {
		x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return x
}

// encodeAll codes a whole matrix.
func encodeAll(code Code, x []float32, cols int) []uint32 {
	x = slices.Clone(x)
	words, piece := make([]uint32, code.Words(len(x)/cols, cols)), code.Piece(cols)
	var most []float32
	for lo := 0; lo < len(x); lo += piece {
		hi := min(lo+piece, len(x))
		first, end := code.Span(lo, hi, cols)
		most = append(most, code.Encode(words[first:end], x[lo:hi])...)
	}
	code.EncodeMagnitudes(words, most)
	return words
}

// fixture is testdata/nf4.json.
type fixture struct {
	Magnitudes []byte
	Matrices   []coded
	Means      map[int]float32
}

func nf4Fixture(t *testing.T) (all fixture) {
	t.Helper()
	text, err := os.ReadFile("testdata/nf4.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all.Matrices) == 0 || len(all.Means) == 0 {
		t.Fatal(err)
	}
	return all
}

func TestNF4IsBitsandbytes(t *testing.T) {
	all := nf4Fixture(t)
	if _, m := NF4Values(); !slices.Equal(m[:], floats(all.Magnitudes)) {
		t.Errorf("the values of magnitudes are %v, want %v", m, floats(all.Magnitudes))
	}
	for _, c := range all.Matrices {
		t.Run(c.Name, func(t *testing.T) { c.compare(t) })
	}
}

// TestMeanIsTorchs compares the mean of many magnitudes, in levels of sums, with torch.mean on one thread.
func TestMeanIsTorchs(t *testing.T) {
	x := numbers(300_001, 5)
	for i := range x {
		x[i] = float32(math.Abs(float64(x[i])))
	}
	for n, want := range nf4Fixture(t).Means {
		if got := mean(x[:n]); got != want {
			t.Errorf("the mean of %d is %v, want %v", n, got, want)
		}
	}
}

func (c coded) compare(t *testing.T) {
	x := c.values()
	words := encodeAll(NF4, x, c.Shape[1])
	if got, want := math.Float32frombits(words[0]), floats(c.Mean)[0]; got != want {
		t.Errorf("the mean is %v, want %v", got, want)
	}
	parts := [3][]byte{c.Codes, c.Magnitudes, c.Largest}
	for lo := 0; lo < len(x); lo += nf4Span {
		first, end := NF4.Span(lo, min(lo+nf4Span, len(x)), c.Shape[1])
		for k, of := range [3][]uint32{words[first+nf4Head : end], words[first+1 : first+nf4Head], words[first : first+1]} {
			raw := unsafe.Slice((*byte)(unsafe.Pointer(&of[0])), 4*len(of))
			n := min(len(raw), len(parts[k]))
			if !slices.Equal(raw[:n], parts[k][:n]) {
				t.Errorf("elements from %d on: %s differ", lo, [3]string{"codes", "codes of magnitudes", "magnitudes of groups"}[k])
			}
			parts[k] = parts[k][n:]
		}
	}
	for _, p := range parts {
		if len(p) > 0 {
			t.Errorf("%d bytes are left to compare", len(p))
		}
	}
	for dtype, sum := range map[DType]uint32{F32: c.Float32, BF16: c.BFloat16, F16: c.Float16} {
		mem := make([]uint64, (len(x)+1)/2)
		b := Buffer{Type: dtype, Host: true, N: len(x), Ptr: unsafe.Pointer(&mem[0])}
		NF4.Decode(b, words, 0, c.Shape[1])
		if crc32.ChecksumIEEE(b.Raw()) != sum {
			t.Errorf("decoded %v differ", dtype)
		}
	}
}

// BenchmarkCodes measures coding and decoding on one core, in bytes of float32 and of the result.
func BenchmarkCodes(b *testing.B) {
	const cols = 4096
	x := numbers(1<<20, 1)
	for _, code := range []Code{NF4, Int8} {
		words := encodeAll(code, x, cols)
		b.Run(code.String()+"/code", func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				encodeAll(code, x, cols)
			}
		})
		for _, t := range []DType{F32, BF16} {
			b.Run(code.String()+"/decode/"+t.String(), func(b *testing.B) {
				b.SetBytes(int64(t.Bytes(len(x))))
				to := Buffer{Type: t, Host: true, N: len(x), Ptr: unsafe.Pointer(&slices.Clone(x)[0])}
				for b.Loop() {
					code.Decode(to, words, 0, cols)
				}
			})
		}
	}
}

// TestNF4CodesCountLimits compares codes with the number of limits below, next to all limits and in
// between.
func TestNF4CodesCountLimits(t *testing.T) {
	x := append([]float32{-1, 1, 0}, numbers(100_000, 3)...)
	for _, l := range nf4Limits {
		x = append(x, l, math.Nextafter32(l, 2), math.Nextafter32(l, -2))
	}
	for _, v := range x {
		v = max(-1, min(1, v))
		want := uint32(0)
		for _, l := range nf4Limits {
			if v > l {
				want++
			}
		}
		if got := nf4Code(v); got != want {
			t.Fatalf("the code of %v is %d, want %d", v, got, want)
		}
	}
}
