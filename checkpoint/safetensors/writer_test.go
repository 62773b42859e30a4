package safetensors

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"zeroth/checkpoint/vfs"
)

func numbers(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// TestWriteReadInAnyOrder writes pieces from several goroutines in random order and checks that
// each element is read back rounded to its dtype.
func TestWriteReadInAnyOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	specs := []Spec{{"h", F16, []int{700, 3}}, {"b", BF16, []int{1 << 20}}, {"f", F32, []int{33, 77}}, {"e", F32, []int{0}}, {"s", F32, nil}}
	w, err := Create(path, specs, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]float32{}
	type piece struct {
		name   string
		lo, hi int
	}
	var pieces []piece
	for i, s := range specs {
		n := s.Numel()
		want[s.Name] = numbers(n, uint64(i))
		for lo := 0; lo < n; lo += n/7 + 1 {
			pieces = append(pieces, piece{s.Name, lo, min(n, lo+n/7+1)})
		}
	}
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	var wg sync.WaitGroup
	for k := range 3 {
		wg.Go(func() {
			for i := k; i < len(pieces); i += 3 {
				p := pieces[i]
				if err := w.WriteF32(p.name, p.lo, want[p.name][p.lo:p.hi]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(path); err == nil {
		t.Error("the file has its name before Close")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, s := range specs {
		ts, _ := r.Tensor(s.Name)
		if fmt.Sprint(ts.Shape, ts.DType) != fmt.Sprint(s.Shape, s.DType) {
			t.Errorf("%s was read as %v %v", s.Name, ts.Shape, ts.DType)
		}
		got, round := make([]float32, s.Numel()), make([]float32, s.Numel())
		if err := r.ReadF32(s.Name, 0, s.Numel(), got); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(round)*s.DType.Size())
		Encode(b, want[s.Name], s.DType)
		Decode(round, b, s.DType)
		for i := range got {
			if got[i] != round[i] {
				t.Fatalf("%s[%d] = %g, want %g", s.Name, i, got[i], round[i])
			}
		}
	}
}

func TestFileLayout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	w, err := Create(path, []Spec{{"b", BF16, []int{3}}, {"z", F32, []int{1}}, {"a", F32, []int{2}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.WriteF32("b", 0, []float32{1, 2, 3})
	writeRaw(w, "z", []byte{9, 9, 9, 9})
	w.WriteF32("a", 0, []float32{4, 5})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	if len(b) != 4096+18 || !bytes.HasSuffix(b, []byte{0, 0, 0x80, 0x40, 0, 0, 0xa0, 0x40, 9, 9, 9, 9, 0x80, 0x3f, 0, 0x40, 0x40, 0x40}) {
		t.Errorf("%d bytes, ending % x", len(b), b[max(0, len(b)-18):])
	}
	head := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]}} `
	if !strings.HasPrefix(string(b[8:]), head) {
		t.Errorf("header %s", bytes.TrimRight(b[8:4096], " "))
	}
}

func TestCloseReportsMissingElements(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	w, err := Create(path, []Spec{{"a", F32, []int{10}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.WriteF32("a", 2, make([]float32, 3))
	w.WriteF32("a", 7, make([]float32, 1))
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), `"a": elements [0, 2), [5, 7), [8, 10) of 10`) {
		t.Errorf("got %v", err)
	}
	if remaining, _ := os.ReadDir(dir); len(remaining) > 0 {
		t.Errorf("%s remains", remaining[0].Name())
	}
	if err := w.Close(); err == nil {
		t.Error("closed twice without an error")
	}
}

func TestRefusedWrites(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(filepath.Join(dir, "x"), []Spec{{"a", F32, []int{10}}, {"i", "I64", []int{1}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	w.WriteF32("a", 0, make([]float32, 5))
	for want, err := range map[string]error{
		"elements [4, 5) written twice": w.WriteF32("a", 4, make([]float32, 3)),
		"elements [9, 11) of 10":        w.WriteF32("a", 9, make([]float32, 2)),
		"elements [-1, 0) of 10":        w.WriteF32("a", -1, make([]float32, 1)),
		`"q" was not announced`:         w.WriteF32("q", 0, nil),
		"is I64, not a float":           w.WriteF32("i", 0, make([]float32, 1)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, specs := range map[string][]Spec{
		"announced twice":  {{"a", F32, nil}, {"a", F32, nil}},
		"cannot be writte": {{"__metadata__", F32, nil}},
		"shape [-1]":       {{"a", F32, []int{-1}}},
		`dtype "F4"`:       {{"a", "F4", []int{2}}},
	} {
		if _, err := Create(filepath.Join(dir, "y"), specs, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestFolderOfParts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	var specs []Spec
	for i, n := range []int{6, 6, 2, 6, 2, 2} { // the split documented by huggingface_hub, for a limit of 10
		specs = append(specs, Spec{fmt.Sprintf("t%d", i), U8, []int{n}})
	}
	w, err := CreateFolderIn(vfs.OS{}, dir, 10, specs, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		if err := writeRaw(w, s.Name, bytes.Repeat([]byte{byte(i)}, s.Numel())); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, part := range []int{1, 2, 2, 3, 3, 3} {
		x, _ := r.Tensor(fmt.Sprintf("t%d", i))
		if want := fmt.Sprintf("model-%05d-of-00003.safetensors", part); filepath.Base(x.File) != want {
			t.Errorf("t%d is in %s, want %s", i, x.File, want)
		}
		var b [1]byte
		if err := r.ReadRaw(x.Name, 0, 1, b[:]); err != nil || b[0] != byte(i) {
			t.Errorf("t%d contains %d, %v", i, b[0], err)
		}
	}
	index, _ := os.ReadFile(filepath.Join(dir, indexName))
	if !strings.Contains(string(index), `"total_size": 24`) {
		t.Errorf("index %s", index)
	}
	if _, err := CreateFolderIn(vfs.OS{}, dir, 10, specs, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a folder with a model was accepted: %v", err)
	}
	if _, err := CreateFolderIn(vfs.OS{}, t.TempDir(), 0, specs, nil); err == nil {
		t.Error("parts of 0 bytes were accepted")
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w, err := CreateFolderIn(vfs.OS{}, dir, 4, []Spec{{"a", F32, []int{1}}, {"b", F32, []int{1}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "other"), nil, 0o644)
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if remaining, _ := os.ReadDir(dir); len(remaining) != 1 {
		t.Errorf("%v remain", remaining)
	}
	if err := w.WriteF32("a", 0, []float32{1}); err == nil {
		t.Error("write after Abort")
	}
}
