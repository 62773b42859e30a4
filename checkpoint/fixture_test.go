package checkpoint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/tests/nightly"
)

// testdata/v1 is a checkpoint written by the first version, with every codec and kind of piece. It
// must not change: later versions must be able to read it. CHECKPOINT_FIXTURE=write created it.
const (
	fixture       = "testdata/v1/step-00000042"
	fixtureDigest = "9b8efb21ae5272a9487c44a79e9add7c4797b8ed5a6681b11337096dbbc5dccf"
)

// fixtureModel returns its content: numbers from a linear congruential generator, because math/rand
// does not guarantee the same sequence forever.
func fixtureModel() *model {
	m := &model{data: map[key][]byte{}, state: `{"step": 42}`}
	add := func(name, kind string, t DType, shape []int, x []float32) {
		m.tensors = append(m.tensors, Tensor{name, kind, t, shape})
		m.data[key{name, kind}] = encoded(x, t)
	}
	s := uint32(1)
	normal := func(n int) []float32 { // sums of 8 uniform numbers
		out := make([]float32, n)
		for i := range out {
			for range 8 {
				s = s*1664525 + 1013904223
				out[i] += (float32(s>>8)/(1<<24) - 0.5) / 32
			}
		}
		return out
	}
	rare := make([]float32, 8192)
	copy(rare[64*17:], normal(64))
	add("w", Master, F32, []int{60, 70}, normal(4200))
	add("w", "m", BF16, []int{60, 70}, normal(4200))
	add("w", "v", F32, []int{60, 70}, make([]float32, 4200))
	add("embed", Master, F32, []int{128, 64}, rare)
	add("tiny", Master, F16, []int{3}, []float32{1, -2, 65504})
	add("scalar", Master, F32, []int{}, []float32{42})
	byKey(m.tensors)
	return m
}

func TestFixtureStaysReadable(t *testing.T) {
	m := fixtureModel()
	if os.Getenv("CHECKPOINT_FIXTURE") == "write" {
		writeFixture(t, m, filepath.Dir(fixture))
	}
	if err := m.holds(vfs.OS{}, fixture); err != nil {
		t.Fatal(err)
	}
	c, err := Open(fixture)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d, err := c.Digest(); err != nil || d != fixtureDigest {
		t.Errorf("digest %s, %v", d, err)
	}
	if c.Step != 42 || c.Seq != 1 || c.Metrics["val_loss"] != 1.5 || c.Writers() != 2 {
		t.Errorf("step %d, seq %d, metrics %v, %d writers", c.Step, c.Seq, c.Metrics, c.Writers())
	}
}

// TestFixtureMatchesSave checks that a save without parts of tensors still writes the bytes
// of the first version, except for the nonce, the time and what depends on them.
func TestFixtureMatchesSave(t *testing.T) {
	dir := t.TempDir()
	writeFixture(t, fixtureModel(), filepath.Join(dir, "v1"))
	changing := regexp.MustCompile(`"(nonce|created|sha256)": ?"[^"]*"|manifest [0-9a-f]{64}|nonce [0-9a-f]{16}`)
	for _, name := range listFiles(t, fixture) {
		want, err := os.ReadFile(filepath.Join(fixture, name))
		must(t, err)
		got, err := os.ReadFile(filepath.Join(dir, "v1", filepath.Base(fixture), name))
		must(t, err)
		if !isData(name) {
			want, got = changing.ReplaceAll(want, nil), changing.ReplaceAll(got, nil)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written otherwise:\n%.300s\nwant\n%.300s", name, got, want)
		}
	}
}

func writeFixture(t *testing.T, m *model, root string) {
	os.RemoveAll(root)
	s, err := Begin(root, 42, Options{headerBytes: 1024})
	if err != nil {
		t.Fatal(err)
	}
	c := Commit{State: []byte(m.state), Metrics: map[string]float64{"val_loss": 1.5}}
	for rank, compress := range []Compression{Always, Never} {
		s.opt.Compress = compress
		w := s.Writer(rank)
		for _, x := range m.tensors {
			n := x.Numel() - x.Numel()/10 // writer 1 has the last tenth
			b := m.data[x.key()]
			r := wholeOf(n)
			if rank == 1 {
				r.Lo, r.Hi = n, x.Numel()
			}
			if err := w.Put(x, r, b[r.Lo*x.DType.Size():r.Hi*x.DType.Size()], nil); err != nil {
				t.Fatal(err)
			}
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.Parts = append(c.Parts, p)
	}
	if _, err := s.Commit(c); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(root, lockName))
}

// TestPythonReadsIt checks that the Python reader reads the same bytes, and refuses a damaged
// block.
func TestPythonReadsIt(t *testing.T) {
	nightly.Long(t)
	nightly.Needs(t, "python3")
	m := fixtureModel()
	read := func(dir string, x Tensor) ([]byte, error) {
		raw := filepath.Join(t.TempDir(), "raw")
		out, err := exec.Command("python3", "../examples/read_tensor.py", dir, x.Name, x.Kind, "--raw", raw).CombinedOutput()
		if err != nil {
			return out, err
		}
		return os.ReadFile(raw)
	}
	for _, x := range m.tensors {
		got, err := read(fixture, x)
		if x.Name == "embed" && err != nil && strings.Contains(string(got), "Python 3.14") {
			continue // it has a zstd piece
		}
		if err != nil || !bytes.Equal(got, m.data[x.key()]) {
			t.Errorf("%v: %v: %.200s", x, err, got)
		}
	}
	dir := t.TempDir()
	for _, name := range listFiles(t, fixture) {
		if err := copyFile(filepath.Join(fixture, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := c.Pieces("w", Master)[0]
	b, _ := os.ReadFile(filepath.Join(dir, p.File))
	poke(t, filepath.Join(dir, p.File), int(p.Offset)+7, b[p.Offset+7]^1)
	if out, err := read(dir, Tensor{Name: "w", Kind: Master}); err == nil || !strings.Contains(string(out), "is damaged") {
		t.Errorf("Python read a damaged block: %v, %s", err, out)
	}
}
