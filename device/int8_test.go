package device

import (
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"testing"
	"unsafe"
)

// TestInt8IsBitsandbytes compares codes, magnitudes and decoded elements with testdata/int8.json, from
// tests/interop/qlora.py, in whole and from the middle of rows.
func TestInt8IsBitsandbytes(t *testing.T) {
	var all fixture
	text, err := os.ReadFile("testdata/int8.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all.Matrices) == 0 {
		t.Fatal(err)
	}
	for _, c := range all.Matrices {
		t.Run(c.Name, func(t *testing.T) { c.compareInt8(t) })
	}
}

func (c coded) compareInt8(t *testing.T) {
	x, cols := c.values(), c.Shape[1]
	words := encodeAll(Int8, x, cols)
	most := floats(c.Magnitudes)
	for row := range c.Shape[0] {
		of := words[row*int8Words(cols):]
		if got := math.Float32frombits(of[0]); got != most[row] {
			t.Fatalf("row %d: magnitude %v, want %v", row, got, most[row])
		}
		for i, want := range c.Codes[row*cols : (row+1)*cols] {
			if got := byte(of[1+i/4] >> (8 * (i % 4))); got != want {
				t.Fatalf("row %d: code %d is %d, want %d", row, i, int8(got), int8(want))
			}
		}
	}
	for dtype, sum := range map[DType]uint32{F32: c.Float32, BF16: c.BFloat16, F16: c.Float16} {
		mem := make([]uint64, (len(x)+1)/2)
		b := Buffer{Type: dtype, Host: true, N: len(x), Ptr: unsafe.Pointer(&mem[0])}
		for _, step := range []int{len(x), 64} {
			clear(mem)
			for lo := 0; lo < len(x); lo += step {
				Int8.Decode(b.Slice(lo, min(lo+step, len(x))), words, lo, cols)
			}
			if crc32.ChecksumIEEE(b.Raw()) != sum {
				t.Errorf("decoded %v differ, %d at a time", dtype, step)
			}
		}
	}
}

// TestInt8Range checks that Encode reports elements that no code has.
func TestInt8Range(t *testing.T) {
	for _, v := range []float32{65520, float32(math.Inf(-1)), float32(math.NaN())} {
		most := Int8.Encode(make([]uint32, int8Words(3)), []float32{1, v, 2})
		if m := float64(most[0]); len(most) != 1 || !math.IsInf(m, 1) && !math.IsNaN(m) {
			t.Errorf("%v: magnitudes %v", v, most)
		}
	}
	if most := Int8.Encode(make([]uint32, int8Words(2)), []float32{1, -65519}); most[0] != 65504 {
		t.Errorf("magnitude %v, want 65504", most[0])
	}
}
