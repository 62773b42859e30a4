package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// TestReshardMatrix checks that after a save by N ranks at one stage and a load by M at another,
// every rank has its elements to the bit, and saving again from there gives the same digest.
func TestReshardMatrix(t *testing.T) {
	nightly.Long(t)
	sizes := []int{1, 2, 3, 4, 7, 8}
	m := newModel(1)
	digests := map[string]bool{}
	for _, n := range sizes {
		for stage := range 4 {
			fsys := &vfstest.Mem{}
			opt := Options{headerBytes: 4096, Compress: Compression(stage % 2)}
			path, err := m.save(fsys, "/c", 10, n, stage, opt)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.holds(fsys, path); err != nil {
				t.Fatalf("%d ranks, stage %d: %v", n, stage, err)
			}
			c, err := OpenIn(fsys, path)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range sizes {
				for to := range 4 {
					if err := m.readBy(c, k, to); err != nil {
						t.Errorf("%d ranks at stage %d to %d at %d: %v", n, stage, k, to, err)
					}
				}
			}
			d, err := c.Digest()
			if err != nil {
				t.Fatal(err)
			}
			digests[d] = true
		}
	}
	if len(digests) != 1 {
		t.Errorf("%d different digests of one model", len(digests))
	}
}

// readBy reads the elements each rank of a world owns, as a resume does.
func (m *model) readBy(c *Checkpoint, world, stage int) error {
	for rank := range world {
		var reqs []Request
		for _, t := range m.tensors {
			for _, r := range m.owns(t, rank, world, stage) {
				reqs = append(reqs, Request{t.Name, t.Kind, shard.Cut{}, r, make([]byte, 4*r.Len())})
			}
		}
		if err := c.ReadAll(reqs, 2); err != nil {
			return err
		}
		for _, q := range reqs {
			if want := m.data[key{q.Name, q.Kind}][4*q.Range.Lo : 4*q.Range.Hi]; !bytes.Equal(q.Into, want) {
				return fmt.Errorf("rank %d: %s (%s) %v differs", rank, q.Name, q.Kind, q.Range)
			}
		}
	}
	return nil
}

// TestOverRead checks that loading on other ranks reads at most 1.1 times the necessary bytes,
// and ranges with arbitrary boundaries are read correctly.
func TestOverRead(t *testing.T) {
	nightly.Long(t)
	m := bigModel(5_000_000, Master)
	w := m.tensors[0]
	for _, compress := range []Compression{Never, Always} {
		fsys := &vfstest.Mem{}
		c, err := OpenIn(fsys, m.mustSave(t, fsys, "/c", 1, 3, Options{Compress: compress}))
		if err != nil {
			t.Fatal(err)
		}
		var stored int64
		for _, p := range c.Pieces("w", Master) {
			stored += p.Bytes
		}
		for _, world := range []int{1, 2, 4} {
			before := c.BytesRead()
			if err := m.readBy(c, world, 3); err != nil {
				t.Fatal(err)
			}
			if over := float64(c.BytesRead()-before) / float64(stored); over > 1.1 {
				t.Errorf("%v, 3 ranks to %d: read %.3f times the necessary bytes", compress, world, over)
			}
		}
		for _, r := range []shard.Range{{Lo: 65535, Hi: 65537}, {Lo: 1, Hi: 2}, {Lo: 65536, Hi: 131072}, {Lo: 1_000_001, Hi: 3_500_000}, {Lo: 7, Hi: 7}, {Lo: 4_999_999, Hi: 5_000_000}} {
			got := make([]byte, 4*r.Len())
			if err := c.Read("w", Master, r, got); err != nil || !bytes.Equal(got, m.data[w.key()][4*r.Lo:4*r.Hi]) {
				t.Errorf("%v of %v: differs, %v", r, compress, err)
			}
			f := make([]float32, r.Len())
			if err := c.ReadF32("w", Master, r, f, r.Lo%4); err != nil || !bytes.Equal(encoded(f, F32), got) {
				t.Errorf("%v as float32: differs, %v", r, err)
			}
		}
	}
}

// TestDataFilesAreSafetensors checks that the data files are valid safetensors files containing
// the pieces as tensors.
func TestDataFilesAreSafetensors(t *testing.T) {
	root := t.TempDir()
	m := newModel(2)
	c, err := Open(m.mustSave(t, vfs.OS{}, root, 5, 2, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := 0
	for _, f := range c.files {
		r, err := safetensors.Open(filepath.Join(c.Path, f.name))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, x := range r.Tensors() {
			if (x.Begin-headerBytes)%4 != 0 || headerBytes%4096 != 0 {
				t.Errorf("%s at %d", x.Name, x.Begin)
			}
			name, rest, _ := strings.Cut(x.Name, ":")
			kind, rest, _ := strings.Cut(rest, "[")
			var lo, hi int
			fmt.Sscanf(rest, "%d:%d]", &lo, &hi)
			got := make([]byte, x.End-x.Begin)
			if err := r.ReadRaw(x.Name, 0, hi-lo, got); err != nil || !bytes.Equal(got, m.data[key{name, kind}][4*lo:4*hi]) {
				t.Errorf("%s differs, %v", x.Name, err)
			}
			n += hi - lo
		}
	}
	if want := 3 * m.layout(1).Numel(); n != want {
		t.Errorf("%d elements in safetensors, %d in the model", n, want)
	}
}

// TestFilesRoll checks that consecutive chunks of one tensor form one piece, that a full header
// or file starts a new one, and that equal Puts give equal files.
func TestFilesRoll(t *testing.T) {
	nightly.Long(t)
	m := bigModel(3*chunkBytes/4+10, Master, "m")
	var sums [2]string
	for i, workers := range []int{1, 3} {
		fsys := &vfstest.Mem{}
		c, err := OpenIn(fsys, m.mustSave(t, fsys, "/c", 1, 1, Options{Workers: workers, fileBytes: 2*chunkBytes + 5000, headerBytes: 1024}))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.equals(c); err != nil {
			t.Error(err)
		}
		var at []string
		for _, p := range c.Pieces("w", Master) {
			at = append(at, fmt.Sprintf("%d %s", p.Range.Len()*4/chunkBytes, p.File))
		}
		if got := strings.Join(at, " "); got != "2 data-00000-000.safetensors 1 data-00000-001.safetensors" {
			t.Errorf("pieces %s", got)
		}
		b, _ := vfs.ReadFile(fsys, filepath.Join(c.Path, "data-00000-001.safetensors"), 1<<30)
		sums[i] = digest(b)
		if e := c.names["data-00000-001.safetensors"]; e.CRC[0] != crc(b) {
			t.Errorf("digest of the file %08x, its CRC32C is %08x", e.CRC[0], crc(b))
		}
	}
	if sums[0] != sums[1] {
		t.Error("files depend on the number of workers")
	}
	names := &model{data: map[key][]byte{}}
	for i := range 300 {
		x := Tensor{strings.Repeat("ü<", 20) + fmt.Sprint(i), Master, F32, []int{1}}
		names.tensors = append(names.tensors, x)
		names.data[x.key()] = []byte{1, 2, 3, byte(i)}
	}
	fsys := &vfstest.Mem{}
	path := names.mustSave(t, fsys, "/c", 1, 1, Options{headerBytes: 4096})
	if err := names.holds(fsys, path); err != nil {
		t.Error(err)
	}
}

// TestOddPieces checks that pieces can have arbitrary boundaries and order, and that everything a
// writer wrote, including names, is durable when Finish returns.
func TestOddPieces(t *testing.T) {
	m := bigModel(300_000, Master)
	w := m.tensors[0]
	for _, compress := range []Compression{Never, Always} {
		mem := &vfstest.Mem{}
		last := ""
		fsys := vfstest.Hook{FS: mem, Before: func(o vfstest.Op) error {
			if o.Changes() {
				last = o.Do + " " + o.Name
			}
			return nil
		}}
		s, err := Begin("/c", 1, Options{FS: fsys, Compress: compress, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		wr := s.Writer(0)
		rnd := rand.New(rand.NewPCG(1, 1))
		for _, half := range []shard.Range{{Lo: 150_000, Hi: 300_000}, {Lo: 0, Hi: 150_000}} {
			for lo := half.Lo; lo < half.Hi; {
				hi := min(half.Hi, lo+1+rnd.IntN(70_000))
				if err := wr.Put(w, shard.Range{Lo: lo, Hi: hi}, m.data[w.key()][4*lo:4*hi], nil); err != nil {
					t.Fatal(err)
				}
				lo = hi
			}
		}
		p, err := wr.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if last != "syncdir "+s.tmp {
			t.Errorf("the last thing Finish did was %s", last)
		}
		path, err := s.Commit(Commit{Parts: []PartFile{p}})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.holds(mem, path); err != nil {
			t.Errorf("%v: %v", compress, err)
		}
	}
}

// TestBuffersAreReleased checks that buffers are released exactly once and not used afterwards,
// and that only a bounded number is held.
func TestBuffersAreReleased(t *testing.T) {
	nightly.Long(t)
	s, err := Begin("/c", 1, Options{FS: &vfstest.Mem{}, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := s.Writer(0)
	const n = 40
	x := Tensor{"w", Master, F32, []int{n * chunkBytes / 4}}
	var released, held, most atomic.Int64
	free := make(chan []byte, n)
	for range 6 {
		free <- make([]byte, chunkBytes)
	}
	for i := range n {
		b := <-free
		for j := range b {
			b[j] = byte(i)
		}
		if h := held.Add(1); h > most.Load() {
			most.Store(h)
		}
		err := w.Put(x, shard.Range{Lo: i * chunkBytes / 4, Hi: (i + 1) * chunkBytes / 4}, b, func() {
			released.Add(1)
			held.Add(-1)
			free <- b // the next Put overwrites it
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if released.Load() != n || most.Load() > 5 {
		t.Errorf("%d of %d released, %d held at once", released.Load(), n, most.Load())
	}
	path, err := s.Commit(Commit{Parts: []PartFile{p}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := OpenIn(s.opt.FS, path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		var b [4]byte
		lo := i*chunkBytes/4 + 77
		if err := c.Read("w", Master, shard.Range{Lo: lo, Hi: lo + 1}, b[:]); err != nil || b[0] != byte(i) {
			t.Fatalf("chunk %d holds %d, %v", i, b[0], err)
		}
	}
	if err := w.Put(x, shard.Range{}, nil, nil); !errors.Is(err, errEnded) {
		t.Errorf("put after Finish: %v", err)
	}
	if _, err := w.Finish(); !errors.Is(err, errEnded) {
		t.Errorf("finished twice: %v", err)
	}
}

// TestConcurrentPuts checks that many goroutines can put into one writer.
func TestConcurrentPuts(t *testing.T) {
	m := newModel(3)
	s, err := Begin("/c", 1, Options{FS: &vfstest.Mem{}, Compress: Always})
	if err != nil {
		t.Fatal(err)
	}
	w := s.Writer(0)
	var wg sync.WaitGroup
	for _, x := range m.tensors {
		wg.Go(func() {
			if err := w.Put(x, shard.Range{Hi: x.Numel()}, m.data[x.key()], nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Commit(Commit{Parts: []PartFile{p}, State: []byte(m.state), Tensors: m.tensors})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.holds(s.opt.FS, path); err != nil {
		t.Error(err)
	}
}

// TestIncompleteIsRefused checks that Commit refuses an incomplete model and names what is
// missing.
func TestIncompleteIsRefused(t *testing.T) {
	x := Tensor{"w", Master, F32, []int{10}}
	y := Tensor{"w", "m", F32, []int{10}}
	rng := func(lo, hi int) shard.Range { return shard.Range{Lo: lo, Hi: hi} }
	type put struct {
		t Tensor
		r shard.Range
	}
	for _, c := range []struct {
		what string
		puts []put
		want []Tensor
		err  string
	}{
		{"hole", []put{{x, rng(0, 4)}, {x, rng(5, 10)}}, nil, "w (master): elements [4, 5) of 10 are missing"},
		{"end missing", []put{{x, rng(0, 4)}}, nil, "elements [4, 10) of 10 are missing"},
		{"overlap", []put{{x, rng(0, 6)}, {x, rng(5, 10)}}, nil, "elements [5, 6) of 10 are stored twice"},
		{"replica wrote it, too", []put{{x, rng(0, 10)}, {x, rng(0, 10)}}, nil, "stored twice"},
		{"tensor missing", []put{{x, rng(0, 10)}}, []Tensor{x, y}, "w (m): elements [0, 10) of 10 are missing"},
		{"tensor too many", []put{{x, rng(0, 10)}, {y, rng(0, 10)}}, []Tensor{x}, "not in the list"},
		{"other shape", []put{{x, rng(0, 10)}}, []Tensor{{"w", Master, F32, []int{2, 5}}}, "was put as F32[10], not F32[2 5]"},
		{"wanted twice", []put{{x, rng(0, 10)}}, []Tensor{x, x}, "listed twice"},
		{"ranks disagree on dtype", []put{{x, rng(0, 10)}, {Tensor{"w", Master, BF16, []int{10}}, rng(0, 0)}}, nil, "put as BF16[10] and as F32[10]"},
		{"range outside", []put{{x, rng(5, 11)}}, nil, "elements [5, 11) of 10"},
		{"no name", []put{{Tensor{"", Master, F32, nil}, rng(0, 1)}}, nil, "tensor name"},
		{"kind with a slash", []put{{Tensor{"w", "a/b", F32, nil}, rng(0, 1)}}, nil, "kind"},
		{"unknown dtype", []put{{Tensor{"w", Master, "F4", nil}, rng(0, 0)}}, nil, "dtype"},
		{"negative shape", []put{{Tensor{"w", Master, F32, []int{-1}}, rng(0, 0)}}, nil, "shape [-1]"},
	} {
		s, err := Begin("/c", 1, Options{FS: &vfstest.Mem{}})
		if err != nil {
			t.Fatal(err)
		}
		w := s.Writer(0)
		for _, p := range c.puts {
			w.Put(p.t, p.r, make([]byte, p.r.Len()*p.t.DType.Size()), nil)
		}
		part, err := w.Finish()
		if err == nil {
			_, err = s.Commit(Commit{Parts: []PartFile{part}, Tensors: c.want})
		}
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.err)
		}
		if err := s.Abort(); err != nil {
			t.Error(err)
		}
		if l, _ := ListIn(s.opt.FS, "/c"); len(l) != 0 {
			t.Errorf("%s: remaining: %+v", c.what, l)
		}
	}
}

// TestSaveMemory checks that a save or load of 64 MiB, raw or encoded, allocates only a few MiB.
// The bound is generous because the race detector makes pools forget.
func TestSaveMemory(t *testing.T) {
	nightly.Long(t)
	m := bigModel(1<<24, Master)
	for _, compress := range []Compression{Never, Always} {
		root := t.TempDir()
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		path := m.mustSave(t, vfs.OS{}, root, 1, 1, Options{Compress: compress, Workers: 2})
		runtime.ReadMemStats(&b)
		if n := b.TotalAlloc - a.TotalAlloc; n > 32<<20 {
			t.Errorf("%v: save allocated %.1f MiB", compress, float64(n)/(1<<20))
		}
		c, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		into := make([]byte, 1<<26)
		runtime.ReadMemStats(&a)
		if err := c.ReadAll([]Request{{"w", Master, shard.Cut{}, shard.Range{Hi: 1 << 24}, into}}, 2); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&b)
		if n := b.TotalAlloc - a.TotalAlloc; n > 32<<20 {
			t.Errorf("%v: load allocated %.1f MiB", compress, float64(n)/(1<<20))
		}
		if !bytes.Equal(into, m.data[key{"w", Master}]) {
			t.Error("differs")
		}
		c.Close()
		os.RemoveAll(root)
	}
}
