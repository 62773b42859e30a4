package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// spent returns the total bytes allocated by f, freed or not.
func spent(f func()) int64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return int64(b.TotalAlloc - a.TotalAlloc)
}

// TestMemoryOfForgedHeaders checks that headers and indices with a million small items use no
// more memory than a multiple of their size, and those that claim more bytes than the file has
// allocate none.
func TestMemoryOfForgedHeaders(t *testing.T) {
	nightly.Long(t)
	const size = 4 << 20
	fill := func(begin, end string, f func(i int) string) []byte {
		var b strings.Builder
		b.WriteString(begin)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(f(i))
		}
		return []byte(b.String() + end)
	}
	zero := func(int) string { return "0" }
	for what, b := range map[string][]byte{
		"tensors":           fill("{", "}", func(i int) string { return fmt.Sprintf(`"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`, i) }),
		"half tensors":      fill("{", "}", func(i int) string { return fmt.Sprintf(`"%x":{}`, i) }),
		"metadata":          fill(`{"__metadata__":{`, "}}", func(i int) string { return fmt.Sprintf(`"%x":""`, i) }),
		"a shape":           fill(`{"a":{"shape":[`, "]}}", zero),
		"offsets":           fill(`{"a":{"data_offsets":[`, "]}}", zero),
		"a name":            fill(`{"`, `":5}`, zero),
		"a dtype":           fill(`{"a":{"dtype":"`, `"}}`, zero),
		"deep":              fill(`{"a":`, "", func(int) string { return "[[[[[[[[" }),
		"an array":          fill("[", "]", zero),
		"parts":             fill(`{"weight_map":{`, "}}", func(i int) string { return fmt.Sprintf(`"%x":"%x"`, i, i) }),
		"tensors of a part": fill(`{"weight_map":{`, "}}", func(i int) string { return fmt.Sprintf(`"%x":"p"`, i) }),
	} {
		var n int64
		if strings.Contains(string(b[:20]), "weight_map") {
			n = spent(func() { ParseIndex(b) })
		} else {
			whole := file(string(b), 0)
			n = spent(func() { ParseHeader(bytes.NewReader(whole), int64(len(whole))) })
		}
		if n > 16*int64(len(b)) {
			t.Errorf("%s: %d bytes of memory for %d", what, n, len(b))
		}
	}
	var many strings.Builder
	for i := range MaxTensors + 1 {
		fmt.Fprintf(&many, `,"%x":"p"`, i)
	}
	if _, err := ParseIndex([]byte(`{"weight_map":{` + many.String()[1:] + "}}")); err == nil || !strings.Contains(err.Error(), "more than 400000 tensors") {
		t.Errorf("an index of %d tensors: %v", MaxTensors+1, err)
	}
	claim := make([]byte, 8)
	for _, n := range []uint64{1, 1 << 20, 100_000_000, 100_000_001, 1 << 40, math.MaxInt64, math.MaxUint64} {
		binary.LittleEndian.PutUint64(claim, n)
		taken := spent(func() {
			if _, _, err := ParseHeader(bytes.NewReader(claim), 8); err == nil {
				t.Errorf("a header of %d bytes in a file of 8 was accepted", n)
			}
		})
		if taken > 1<<16 {
			t.Errorf("a header that claims %d bytes allocates %d", n, taken)
		}
	}
}

// TestOnlyFiles checks that a file whose size is out of range, a device and a folder are refused
// without being read.
func TestOnlyFiles(t *testing.T) {
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for _, link := range []string{"model.safetensors", indexName} {
		name := filepath.Join(dir, link)
		if err := os.Symlink("/dev/zero", name); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "it is a device, not a regular file") {
			t.Errorf("%s: %v", link, err)
		}
		os.Remove(name)
		if err := os.Mkdir(name, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "it is a folder, not a regular file") {
			t.Errorf("%s: %v", link, err)
		}
		os.Remove(name)
	}
}

// TestNoWeights checks that loading weights from a tensor that is not a float fails with its
// dtype.
func TestNoWeights(t *testing.T) {
	for dtype, want := range map[DType]string{"F64": "F64 (64-bit floats: convert them to F32", "F8_E4M3": "F8_E4M3 (8-bit floats of a quantized model", "F4": "F4 (4-bit floats of a quant",
		"F8_E8M0": "(scales", "I8": "I8 (integers", "U64": "integers", "BOOL": "booleans", "C64": "complex"} {
		bits := dtypeBits[dtype]
		b := file(fmt.Sprintf(`{"w\u001b[31m":{"dtype":"%s","shape":[8],"data_offsets":[0,%d]}}`, dtype, bits), int(bits))
		path := filepath.Join(t.TempDir(), "x.safetensors")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		err = r.ReadF32("w\x1b[31m", 0, 8, make([]float32, 8))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", dtype, err)
		}
	}
	for dtype := range dtypeBits {
		if err := (Tensor{Spec: Spec{DType: dtype}}).Weights(); (err == nil) != dtype.Float() {
			t.Errorf("%s: %v", dtype, err)
		}
	}
}
