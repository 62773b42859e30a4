package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// saved creates a small checkpoint on the real disk, with its second writer encoded.
func saved(t *testing.T, seed uint64) (m *model, root, path string) {
	root = t.TempDir()
	m = newModel(seed)
	s, err := Begin(root, 7, Options{headerBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	c := Commit{Tensors: m.tensors, State: []byte(m.state), Metrics: map[string]float64{"val_loss": 2.5}}
	for rank, compress := range []Compression{Never, Always} {
		s.opt.Compress = compress
		w := s.Writer(rank)
		if err := m.put(w, rank, 2, 3); err != nil {
			t.Fatal(err)
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.Parts = append(c.Parts, p)
	}
	if path, err = s.Commit(c); err != nil {
		t.Fatal(err)
	}
	if err := m.holds(vfs.OS{}, path); err != nil {
		t.Fatal(err)
	}
	return m, root, path
}

// TestBitFlips checks that Verify finds any single flipped bit and names the file, the tensor and
// the elements, and that a load finds it too, unless it is in a header that loads do not read.
// The nightly test flips every bit of every file, which takes ten minutes.
func TestBitFlips(t *testing.T) {
	m, _, path := saved(t, 1)
	files := listFiles(t, path)
	if len(files) != 7 { // COMMIT, MANIFEST, state, 2 parts, 2 data files
		t.Fatalf("files %v", files)
	}
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	per := 40
	for _, name := range files {
		full := filepath.Join(path, name)
		b, _ := os.ReadFile(full)
		if nightly.All() {
			per = 8 * len(b)
		}
		for i := range per {
			at, bit := rnd.IntN(len(b)), byte(1)<<rnd.IntN(8)
			if nightly.All() {
				at, bit = i/8, byte(1)<<(i%8)
			}
			poke(t, full, at, b[at]^bit)
			bad, err := Verify(context.Background(), path, Walk{Workers: 1})
			if err != nil || len(bad) == 0 {
				t.Fatalf("%s byte %d bit %02x: verify found %v, %v", name, at, bit, bad, err)
			}
			if err := names(bad, c, name, int64(at)); err != nil {
				t.Fatalf("%s byte %d bit %02x: %v", name, at, bit, err)
			}
			inHeader := strings.HasPrefix(name, "data-") && at < 4096
			if err := loads(m, path); err == nil && !inHeader {
				t.Fatalf("%s byte %d bit %02x: loaded without an error", name, at, bit)
			}
			poke(t, full, at, b[at])
		}
	}
	if err := m.holds(vfs.OS{}, path); err != nil {
		t.Errorf("after undoing all flips: %v", err)
	}
}

func listFiles(t *testing.T, dir string) (names []string) {
	in, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range in {
		names = append(names, e.Name())
	}
	return names
}

func poke(t *testing.T, name string, at int, x byte) {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{x}, int64(at)); err != nil {
		t.Fatal(err)
	}
}

func loads(m *model, path string) error {
	c, err := Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return m.equals(c)
}

// names checks that the reported damage is at an offset of a file.
func names(bad []*Damage, c *Checkpoint, file string, at int64) error {
	if len(bad) != 1 {
		return fmt.Errorf("%d damages: %v", len(bad), bad)
	}
	d := bad[0]
	if file == commitName && d.File == manifestName { // they disagree; either may be wrong
		return nil
	}
	if d.File != file || !strings.Contains(d.Error(), file) {
		return fmt.Errorf("found in %s: %v", d.File, d)
	}
	for _, src := range c.files {
		if src.name != file || at < src.desc.Header {
			continue
		}
		for i := range src.desc.Extents {
			e := &src.desc.Extents[i]
			x := src.part.Tensors[e.Tensor]
			if at >= e.Offset && at < e.Offset+e.bytes(4) {
				if d.Name != x.Name || d.Kind != x.Kind || d.Offset > at || d.Range.Lo < e.Lo || d.Range.Hi > e.Hi {
					return fmt.Errorf("it is in %v [%d, %d), found %v", x, e.Lo, e.Hi, d)
				}
			}
		}
	}
	return nil
}

// TestDamageIsLocal checks that in a tensor of many blocks only the bad block is reported and the
// others can be read.
func TestDamageIsLocal(t *testing.T) {
	root := t.TempDir()
	m := bigModel(blockBytes, Master) // 4 blocks
	path := m.mustSave(t, vfs.OS{}, root, 1, 1, Options{headerBytes: 4096})
	poke(t, filepath.Join(path, "data-00000-000.safetensors"), 4096+2*blockBytes+5, 0x77)
	bad, err := Verify(context.Background(), path, Walk{})
	const b = blockBytes / 4
	if err != nil || len(bad) != 1 || bad[0].Range != (shard.Range{Lo: 2 * b, Hi: 3 * b}) || bad[0].Offset != 4096+2*blockBytes {
		t.Fatalf("found %v, %v", bad, err)
	}
	c, _ := Open(path)
	defer c.Close()
	got := make([]byte, 8*b)
	if err := c.Read("w", Master, shard.Range{Hi: 2 * b}, got); err != nil || !bytes.Equal(got, m.data[key{"w", Master}][:8*b]) {
		t.Errorf("the blocks before: %v", err)
	}
	for _, r := range []shard.Range{{Lo: 2 * b, Hi: 3 * b}, {Lo: 3*b - 1, Hi: 3 * b}, {Lo: 0, Hi: 4 * b}} {
		if err := c.Read("w", Master, r, make([]byte, 4*r.Len())); err == nil || !strings.Contains(err.Error(), "elements [131072, 196608)") {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestWrongFiles checks that truncated, missing and swapped files, and files of another save, are
// found.
func TestWrongFiles(t *testing.T) {
	nightly.Long(t)
	_, otherRoot, other := saved(t, 2)
	_ = otherRoot
	for _, name := range []string{commitName, manifestName, stateName, "part-00000.json", "data-00000-000.safetensors", "data-00001-000.safetensors"} {
		for what, do := range map[string]func(path string) error{
			"cut by a byte": func(p string) error {
				st, _ := os.Stat(p)
				return os.Truncate(p, st.Size()-1)
			},
			"emptied":       func(p string) error { return os.Truncate(p, 0) },
			"longer":        func(p string) error { return appendTo(p, "x") },
			"missing":       os.Remove,
			"of other save": func(p string) error { return copyFile(filepath.Join(other, name), p) },
		} {
			m, root, path := saved(t, 1)
			if err := do(filepath.Join(path, name)); err != nil {
				t.Fatal(err)
			}
			bad, err := Verify(context.Background(), path, Walk{})
			if err == nil && len(bad) == 0 {
				t.Errorf("%s %s: verify found nothing", name, what)
			}
			if err := loads(m, path); err == nil {
				t.Errorf("%s %s: loaded", name, what)
			}
			l, err := List(root)
			sameSize := what == "of other save"
			if err != nil || len(l) != 1 || l[0].Status != Damaged && !sameSize || l[0].Status == Damaged && l[0].Why == "" {
				t.Errorf("%s %s: list %+v, %v", name, what, l, err)
			}
			if _, err := Resolve(root, "latest"); err == nil && !sameSize {
				t.Errorf("%s %s: is the latest", name, what)
			}
		}
	}
	for _, pair := range [][2]string{{"part-00000.json", "part-00001.json"}, {"data-00000-000.safetensors", "data-00001-000.safetensors"}} {
		m, _, path := saved(t, 1)
		a, b := filepath.Join(path, pair[0]), filepath.Join(path, pair[1])
		os.Rename(a, a+"x")
		os.Rename(b, a)
		os.Rename(a+"x", b)
		if err := loads(m, path); err == nil {
			t.Errorf("%v swapped: loaded", pair)
		}
	}
}

func appendTo(path, s string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, s...), 0o644)
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// TestMixedPartsAreRefused checks that Commit refuses parts of two saves, a duplicate or missing
// part, and a data file that changed after its writer finished.
func TestMixedPartsAreRefused(t *testing.T) {
	m := newModel(1)
	part := func(s *Save, rank int) PartFile {
		w := s.Writer(rank)
		if err := m.put(w, rank, 2, 3); err != nil {
			t.Fatal(err)
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	mem := &vfstest.Mem{}
	stale, err := Begin("/old", 4, Options{FS: mem})
	if err != nil {
		t.Fatal(err)
	}
	lost := part(stale, 1)
	for what, change := range map[string]func(s *Save, ps []PartFile) []PartFile{
		"belongs to save": func(s *Save, ps []PartFile) []PartFile {
			b, _ := vfs.ReadFile(mem, stale.tmp+"/part-00001.json", 1<<20)
			mem.Remove(s.tmp + "/part-00001.json")
			vfs.WriteFile(mem, s.tmp+"/part-00001.json", b)
			return []PartFile{ps[0], lost}
		},
		"SHA-256":             func(s *Save, ps []PartFile) []PartFile { return []PartFile{ps[0], lost} },
		"one part per writer": func(s *Save, ps []PartFile) []PartFile { return []PartFile{ps[0], ps[0]} },
		"are missing":         func(s *Save, ps []PartFile) []PartFile { return ps[:1] },
		"no parts":            func(s *Save, ps []PartFile) []PartFile { return nil },
		"its writer": func(s *Save, ps []PartFile) []PartFile {
			mem.Remove(s.tmp + "/data-00000-000.safetensors")
			vfs.WriteFile(mem, s.tmp+"/data-00000-000.safetensors", nil)
			return ps
		},
		"not exist":    func(s *Save, ps []PartFile) []PartFile { mem.Remove(s.tmp + "/data-00000-000.safetensors"); return ps },
		"4 parts, one": func(s *Save, ps []PartFile) []PartFile { return append(ps, PartFile{Writer: 4}, PartFile{Writer: -1}) },
	} {
		s, err := Begin("/c", 4, Options{FS: mem})
		if err != nil {
			t.Fatal(err)
		}
		ps := change(s, []PartFile{part(s, 0), part(s, 1)})
		if _, err := s.Commit(Commit{Parts: ps, Tensors: m.tensors}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
		s.Abort()
	}
	if l, _ := ListIn(mem, "/c"); len(l) > 0 {
		t.Errorf("remaining: %+v", l)
	}
}
