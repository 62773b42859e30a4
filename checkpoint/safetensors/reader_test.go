package safetensors

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
)

// metadata returns the metadata in a file's header.
func metadata(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := vfs.OS{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	_, meta, err := ParseHeader(f, size)
	if err != nil {
		t.Fatal(err)
	}
	return meta
}

// writeRaw writes a complete tensor of any type.
func writeRaw(w *Writer, name string, raw []byte) error {
	t, err := w.claim(name, 0, w.targets[name].Numel())
	if err != nil {
		return err
	}
	return w.write(t, 0, raw)
}

// TestReadsReferenceFile reads the fixtures that testdata/make.py created with the reference
// implementation.
func TestReadsReferenceFile(t *testing.T) {
	r, err := Open("testdata/mixed.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := metadata(t, "testdata/mixed.safetensors")["note"]; got != "made by make.py" {
		t.Errorf("metadata note %q", got)
	}
	inf := float32(math.Inf(1))
	negZero := float32(math.Copysign(0, -1))
	for name, want := range map[string][]float32{
		"f32":   {0, negZero, 1.5, inf, 3.4e38, 1e-40},
		"bf16":  {1, -2, inf, math.Float32frombits(0x00010000)},
		"f16":   {0, negZero, 1, 65504, 1.0 / (1 << 24), math.Float32frombits(0x38800000 - 0x1000), inf},
		"empty": {},
	} {
		got := make([]float32, len(want))
		if err := r.ReadF32(name, 0, len(want), got); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if name == "f16" && i == 5 { // numpy's rounding of 6.1e-5: half an ulp is accepted
				if math.Abs(float64(got[i])-6.1e-5) > 3e-8 {
					t.Errorf("f16[5] = %g", got[i])
				}
			} else if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Errorf("%s[%d] = %g, want %g", name, i, got[i], want[i])
			}
		}
	}
	var part [2]float32
	if err := r.ReadF32("f32", 2, 4, part[:]); err != nil || part != [2]float32{1.5, inf} {
		t.Errorf("elements [2, 4) are %v, %v", part, err)
	}
	raw := make([]byte, 8)
	if err := r.ReadRaw("scalar", 0, 1, raw); err != nil || int64(binary.LittleEndian.Uint64(raw)) != -7 {
		t.Errorf("scalar is %v, %v", raw, err)
	}
	if ts, _ := r.Tensor("scalar"); len(ts.Shape) != 0 || ts.Numel() != 1 {
		t.Errorf("scalar is %+v", ts)
	}
}

func TestReadsReferenceFolder(t *testing.T) {
	r, err := Open("testdata/sharded")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var names []string
	for _, x := range r.Tensors() {
		names = append(names, x.Name)
	}
	if strings.Join(names, " ") != "a.weight b.bias b.weight" {
		t.Errorf("tensors %v", names)
	}
	got := make([]float32, 5)
	if err := r.ReadF32("b.bias", 0, 5, got); err != nil || fmt.Sprint(got) != "[0 1 2 3 4]" {
		t.Errorf("b.bias is %v, %v", got, err)
	}
	empty, err := Open("testdata/only-metadata.safetensors")
	if err != nil || len(empty.Tensors()) != 0 || metadata(t, "testdata/only-metadata.safetensors")["format"] != "pt" {
		t.Errorf("a file of metadata only: %v", err)
	}
}

func TestRefusedReads(t *testing.T) {
	r, err := Open("testdata/mixed.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for want, read := range map[string]func() error{
		`no tensor "nope"`:                  func() error { return r.ReadF32("nope", 0, 0, nil) },
		`elements [5, 7) of 6`:              func() error { return r.ReadF32("f32", 5, 7, make([]float32, 2)) },
		`"scalar" has type I64 (integers: `: func() error { return r.ReadF32("scalar", 0, 1, make([]float32, 1)) },
	} {
		if err := read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// file returns a safetensors file with the given header.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// many returns n pairs of metadata.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":"",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

func TestStrictHeader(t *testing.T) {
	entry := func(name, offsets string) string {
		return fmt.Sprintf(`"%s":{"dtype":"F32","shape":[1],"data_offsets":%s}`, name, offsets)
	}
	long := file("{}", 0)
	binary.LittleEndian.PutUint64(long, 100_000_001)
	huge := file("{}", 0)
	binary.LittleEndian.PutUint64(huge, math.MaxUint64)
	for _, c := range []struct {
		what string
		b    []byte
	}{
		{"empty file", nil},
		{"header longer than the limit", long},
		{"header length that overflows", huge},
		{"header longer than the file", file("{}", 0)[:9]},
		{"leading space", file(" {}", 0)},
		{"no JSON", file("{nope", 0)},
		{"text behind the object", file("{} x", 0)},
		{"a line end behind the object", file("{}\n", 0)},
		{"a shape of too many dimensions", file(`{"a":{"dtype":"F32","shape":[`+strings.Repeat("1,", 64)+`1],"data_offsets":[0,4]}}`, 4)},
		{"too much metadata", file(`{"__metadata__":{`+many(1<<16+1)+`}}`, 0)},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0)},
		{"a key twice in metadata", file(`{"__metadata__":{"a":"","a":""}}`, 0)},
		{"a name that goes on", file(`{"`+strings.Repeat("a", 1<<20)+`":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4)},
		{"not UTF-8", file("{\"\xff\":1}", 0)},
		{"hole", file("{"+entry("a", "[0,4]")+","+entry("b", "[8,12]")+"}", 12)},
		{"hole at the start", file("{"+entry("a", "[4,8]")+"}", 8)},
		{"overlap", file("{"+entry("a", "[0,4]")+","+entry("b", "[2,6]")+"}", 6)},
		{"data behind the last tensor", file("{"+entry("a", "[0,4]")+"}", 5)},
		{"data missing", file("{"+entry("a", "[0,4]")+"}", 3)},
		{"duplicate name", file("{"+entry("a", "[0,4]")+","+entry("\\u0061", "[4,8]")+"}", 8)},
		{"duplicate field", file(`{"a":{"dtype":"F32","dtype":"F32","data_offsets":[0,4]}}`, 4)},
		{"unknown field", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}`, 4)},
		{"missing field", file(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4)},
		{"unknown dtype", file(`{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}`, 4)},
		{"size unlike shape", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4)},
		{"shape that overflows to the right size", file(`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, 16)},
		{"bytes that overflow to the right size", file(`{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}`, 0)},
		{"half a byte", file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1)},
		{"negative dimension", file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4)},
		{"fractional offset", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}}`, 4)},
		{"reversed offsets", file("{"+entry("a", "[4,0]")+"}", 4)},
		{"metadata that is not strings", file(`{"__metadata__":{"a":1}}`, 0)},
	} {
		_, _, err := ParseHeader(bytes.NewReader(c.b), int64(len(c.b)))
		said.Same(t, c.what, err)
	}
	for what, b := range map[string][]byte{
		"padding":      file("{}     ", 0),
		"sub-byte":     file(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}`, 2),
		"empty tensor": file("{"+entry("a", "[0,4]")+`,"e":{"dtype":"F64","shape":[0,9],"data_offsets":[4,4]}}`, 4),
	} {
		if _, _, err := ParseHeader(bytes.NewReader(b), int64(len(b))); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStrictFolder(t *testing.T) {
	good := file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4)
	for _, c := range []struct{ what, index string }{
		{"no index", ""},
		{"path out of the folder", `{"weight_map":{"a":"../p"}}`},
		{"part missing", `{"weight_map":{"a":"q"}}`},
		{"tensor missing", `{"weight_map":{"a":"p","b":"p"}}`},
		{"tensor not in the index", `{"weight_map":{"b":"p"}}`},
		{"tensor twice", `{"weight_map":{"a":"p","a":"p"}}`},
		{"no weight_map", `{"metadata":{"total_size":4}}`},
		{"two objects", `{"weight_map":{"a":"p"}}{}`},
	} {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "p"), good, 0o644)
		if c.index != "" {
			os.WriteFile(filepath.Join(dir, indexName), []byte(c.index), 0o644)
		}
		r, err := Open(dir)
		said.Same(t, c.what, err)
		if r != nil {
			r.Close()
		}
	}
}

// TestFolderWithTwoModels checks that a folder that contains two models is accepted only if they
// are the same.
func TestFolderWithTwoModels(t *testing.T) {
	good := string(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	const part = "model-00001-of-00001.safetensors"
	for _, c := range []struct {
		what  string
		files map[string]string
		fails bool
	}{
		{"an index of the whole", map[string]string{single: good, indexName: `{"weight_map":{"a":"` + single + `"}}`}, false},
		{"a whole beside parts", map[string]string{single: good, part: good, indexName: `{"weight_map":{"a":"` + part + `"}}`}, true},
		{"a whole beside a broken index", map[string]string{single: good, indexName: `{`}, true},
		{"a part of another", map[string]string{part: good, "model-00002-of-00003.safetensors": good, indexName: `{"weight_map":{"a":"` + part + `"}}`},
			true},
		{"other files", map[string]string{part: good, "optimizer.safetensors": "x", indexName: `{"weight_map":{"a":"` + part + `"}}`}, false},
		{"a pointer", map[string]string{indexName: "version https://git-lfs.github.com/spec/v1\n"}, true},
		{"pointers to parts", map[string]string{part: "version https://git-lfs.github.com/spec/v1\n", indexName: `{"weight_map":{"a":"` + part + `"}}`}, true},
		{"GGUF", map[string]string{single: "GGUF\x03\x00\x00\x00"}, true},
	} {
		dir := t.TempDir()
		for name, content := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Open(dir)
		said.Fails(t, c.what, err, c.fails)
		if r != nil {
			r.Close()
		}
	}
}

// TestFinite checks that Finite finds a single infinite or NaN element anywhere, and reports no
// other.
func TestFinite(t *testing.T) {
	const n = 600_000 // elements: more than a buffer holds
	for _, dt := range []DType{F32, BF16, F16} {
		for _, at := range []int{-1, 0, 262_143, 262_144, n - 1} {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i%5-2) * 3e4 // includes -0
			}
			if at >= 0 {
				x[at] = float32(math.Inf(1 - at%3))
			}
			path := filepath.Join(t.TempDir(), "x.safetensors")
			w, err := Create(path, []Spec{{"a", dt, []int{n}}, {"ints", "I32", []int{1}}, {"none", dt, []int{0}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(w.WriteF32("a", 0, x), writeRaw(w, "ints", []byte{255, 255, 255, 255}), w.Close()); err != nil {
				t.Fatal(err)
			}
			r, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			sums, err := r.Finite(t.Context(), []string{"none", "ints", "a"})
			var bad *NotFinite
			if found := errors.As(err, &bad); found != (at >= 0) || found && (bad.Element != at || bad.Tensor != "a" || !math.IsInf(float64(bad.Value), 0)) || !found && err != nil {
				t.Errorf("%s, element %d: %v", dt, at, err)
			}
			if err == nil && sums[1] != crc32.Checksum([]byte{255, 255, 255, 255}, crc32.MakeTable(crc32.Castagnoli)) {
				t.Errorf("%s: checksums %x", dt, sums)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := r.Finite(ctx, []string{"a"}); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			if _, err := r.Finite(t.Context(), []string{"ints", "b"}); err == nil || !strings.Contains(err.Error(), `no tensor "b"`) {
				t.Errorf("an unknown name: %v", err)
			}
			r.Close()
		}
	}
}

func TestTruncatedFileNamesTensor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	b, _ := os.ReadFile("testdata/mixed.safetensors")
	os.WriteFile(path, b[:len(b)-1], 0o644)
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `"mask"`) {
		t.Errorf("got %v, want the file and the tensor named", err)
	}
}

func FuzzHeader(f *testing.F) {
	for _, name := range []string{"mixed.safetensors", "only-metadata.safetensors", "sharded/model-00001-of-00002.safetensors"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(file(`{"a":{"dtype":"F4","shape":[4,0],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		var ts []Tensor
		var meta map[string]string
		var err error
		n := spent(func() { ts, meta, err = ParseHeader(bytes.NewReader(b), int64(len(b))) })
		if n > 64*int64(len(b))+1<<20 {
			t.Fatalf("%d bytes of memory for %d", n, len(b))
		}
		if err != nil {
			return
		}
		// Accepted headers cover the data exactly, and can be written and read back.
		at, data := int64(0), int64(8+binary.LittleEndian.Uint64(b))
		for i := range ts {
			if ts[i].Begin != data+at || ts[i].End < ts[i].Begin {
				t.Fatalf("tensor %+v after %d bytes", ts[i], at)
			}
			at = ts[i].End - data
			ts[i].Begin, ts[i].End = ts[i].Begin-data, at
		}
		if data+at != int64(len(b)) {
			t.Fatalf("tensors end at %d of %d", data+at, len(b))
		}
		head, err := AppendHeader(nil, ts, meta, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		again := append(head, make([]byte, at)...)
		ts2, meta2, err := ParseHeader(bytes.NewReader(again), int64(len(again)))
		if err != nil {
			t.Fatalf("our own header: %v", err)
		}
		if len(ts2) != len(ts) || len(meta2) != len(meta) {
			t.Fatalf("%d tensors became %d, %d metadata %d", len(ts), len(ts2), len(meta), len(meta2))
		}
	})
}

func FuzzIndex(f *testing.F) {
	b, err := os.ReadFile("testdata/sharded/" + indexName)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"weight_map":{"a":".."}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, err := ParseIndex(b)
		if err != nil {
			return
		}
		for name := range parts {
			if filepath.Dir(filepath.Join("d", name)) != "d" || name == "" {
				t.Fatalf("part %q leaves the folder", name)
			}
		}
	})
}
