package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
)

func wholeOf(n int) shard.Range { return shard.Range{Hi: n} }

// TestExportImport checks that master copies exported as float32 and imported again are the same
// to the bit, and that bf16 exports are rounded.
func TestExportImport(t *testing.T) {
	dir := t.TempDir()
	m := newModel(1)
	c, err := Open(m.mustSave(t, vfs.OS{}, filepath.Join(dir, "c"), 9, 3, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var done atomic.Int64
	ex := Export{PartSize: 20_000, Name: func(s string) (string, bool) { return "model." + s, s != "scalar" },
		Walk: Walk{Progress: func(n int64) { done.Add(n) }}}
	hf := filepath.Join(dir, "hf")
	if err := ex.Write(context.Background(), c, c.Path, hf); err != nil {
		t.Fatal(err)
	}
	if part, err := os.ReadFile(filepath.Join(hf, "model-00001-of-00003.safetensors")); err != nil || !bytes.Contains(part, []byte(`"__metadata__":{"format":"pt"}`)) {
		t.Errorf("the first part has no metadata or does not exist: %v", err)
	}
	src, err := safetensors.Open(hf)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if len(src.Tensors()) != len(shapes)-1 {
		t.Errorf("%d tensors", len(src.Tensors()))
	}
	im := Import{Step: 0, State: []byte("{}"), Name: func(s string) (string, bool) { return strings.CutPrefix(s, "model.") }}
	path, err := im.Import(context.Background(), Parameters(src), filepath.Join(dir, "c2"))
	if err != nil {
		t.Fatal(err)
	}
	back, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	var total int64
	for _, x := range m.tensors {
		if x.Kind != Master || x.Name == "scalar" {
			continue
		}
		total += x.Bytes()
		y, ok := back.Tensor(x.Name, Master)
		got := make([]byte, x.Bytes())
		if !ok || !y.same(x) {
			t.Fatalf("%v was imported as %v", x, y)
		}
		if err := back.Read(x.Name, Master, wholeOf(x.Numel()), got); err != nil || !bytes.Equal(got, m.data[x.key()]) {
			t.Errorf("%v differs, %v", x, err)
		}
	}
	if done.Load() != total || string(back.State) != "{}" {
		t.Errorf("progress of %d bytes, %d exported; state %s", done.Load(), total, back.State)
	}
	small := filepath.Join(dir, "bf16")
	if err := (Export{DType: BF16, Kind: "m"}).Write(context.Background(), c, c.Path, small); err != nil {
		t.Fatal(err)
	}
	bf, err := safetensors.Open(small)
	if err != nil {
		t.Fatal(err)
	}
	defer bf.Close()
	x := Tensor{"wte.weight", "m", F32, shapes["wte.weight"]}
	got, want := make([]byte, x.Bytes()/2), make([]byte, x.Bytes()/2)
	f := make([]float32, x.Numel())
	safetensors.Decode(f, m.data[x.key()], F32)
	safetensors.Encode(want, f, BF16)
	if err := bf.ReadRaw(x.Name, 0, x.Numel(), got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("bf16 export differs, %v", err)
	}
	for want, e := range map[string]Export{"no tensors of kind q": {Kind: "q"}, "already": {DType: BF16, Kind: "m"}, `dtype "I9"`: {DType: "I9"}} {
		to := small
		if want != "already" {
			to = filepath.Join(dir, "no")
		}
		if err := e.Write(context.Background(), c, c.Path, to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestConvertFailures checks that exporting a damaged block leaves no model, and importing a
// tensor that is not a float no checkpoint.
func TestConvertFailures(t *testing.T) {
	dir := t.TempDir()
	m := newModel(1)
	path := m.mustSave(t, vfs.OS{}, filepath.Join(dir, "c"), 9, 1, Options{headerBytes: 4096})
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := c.Pieces("wte.weight", Master)[0]
	poke(t, filepath.Join(path, p.File), int(p.Offset)+9, 0x55)
	hf := filepath.Join(dir, "hf")
	if err := (Export{}).Write(context.Background(), c, c.Path, hf); err == nil || !strings.Contains(err.Error(), "CRC32C") {
		t.Errorf("exported a damaged checkpoint: %v", err)
	}
	if in, _ := os.ReadDir(hf); len(in) > 0 {
		t.Errorf("remaining: %v", in)
	}
	if _, err := c.Reshard(context.Background(), filepath.Join(dir, "r"), 2, Options{}, nil); err == nil || !strings.Contains(err.Error(), "CRC32C") {
		t.Errorf("resharded a damaged checkpoint: %v", err)
	}
	if _, err := c.Reshard(context.Background(), filepath.Join(dir, "r"), 0, Options{}, nil); err == nil {
		t.Error("resharded for no writers")
	}
	src, err := safetensors.Open("safetensors/testdata/mixed.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	root := filepath.Join(dir, "i")
	if _, err := (Import{}).Import(context.Background(), Parameters(src), root); err == nil || !strings.Contains(err.Error(), "weights must be F32") {
		t.Errorf("imported integers: %v", err)
	}
	if l, _ := List(root); len(l) > 0 {
		t.Errorf("remaining: %+v", l)
	}
	if l, _ := List(filepath.Join(dir, "r")); len(l) > 0 {
		t.Errorf("remaining: %+v", l)
	}
}

func TestReshardAndDiff(t *testing.T) {
	dir := t.TempDir()
	m := newModel(1)
	m.state = `{"step": 9}`
	a, err := Open(m.mustSave(t, vfs.OS{}, filepath.Join(dir, "a"), 9, 3, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var done atomic.Int64
	path, err := a.Reshard(context.Background(), filepath.Join(dir, "b"), 4, Options{Compress: Always}, func(n int64) { done.Add(n) })
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Writers() != 4 || b.Step != 9 || done.Load() != int64(12*m.layout(1).Numel()) {
		t.Errorf("%d writers, step %d, %d bytes of progress", b.Writers(), b.Step, done.Load())
	}
	if err := m.holds(vfs.OS{}, path); err != nil {
		t.Error(err)
	}
	if p := b.Pieces("wte.weight", "v"); len(p) != 4 || p[1].Range != (shard.Range{Lo: 413, Hi: 826}) || p[1].Writer != 1 {
		t.Errorf("pieces %+v", p)
	}
	ds, err := Diff(context.Background(), a, b, Walk{})
	if err != nil || len(ds) != len(m.tensors) {
		t.Fatalf("%d differences, %v", len(ds), err)
	}
	for _, d := range ds {
		if d.What != Equal || d.Elements != 0 {
			t.Errorf("%+v", d)
		}
	}
}

func TestDiffNames(t *testing.T) {
	num := func(x ...float32) []byte { return encoded(x, F32) }
	nan := float32(math.NaN())
	one := func(ts map[string][]byte) *Checkpoint {
		m := &model{data: map[key][]byte{}}
		for name, b := range ts {
			x := Tensor{name, Master, F32, []int{len(b) / 4}}
			m.tensors = append(m.tensors, x)
			m.data[x.key()] = b
		}
		fsys := &vfstest.Mem{}
		c, err := OpenIn(fsys, m.mustSave(t, fsys, "/c", 1, 1, Options{headerBytes: 4096}))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := one(map[string][]byte{"a": num(1), "same": num(nan, 2), "far": num(1, 2, -4), "nan": num(1), "zero": num(0), "shape": num(1)})
	b := one(map[string][]byte{"b": num(1), "same": num(nan, 2), "far": num(1, 1, -3), "nan": num(nan), "zero": num(float32(math.Copysign(0, -1))), "shape": num(1, 2)})
	ds, err := Diff(context.Background(), a, b, Walk{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range ds {
		got = append(got, fmt.Sprintf("%s %s %d %g %g", d.Name, d.What, d.Elements, d.MaxAbs, d.MaxRel))
	}
	want := "a only in A 0 0 0|b only in B 0 0 0|far differs 2 1 0.5|nan differs 1 +Inf +Inf|same equal 0 0 0|shape shape 0 0 0|zero differs 1 0 0"
	if strings.Join(got, "|") != want {
		t.Errorf("got %s", strings.Join(got, "|"))
	}
}
