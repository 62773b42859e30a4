package offload_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/device"
	"zeroth/offload"
	"zeroth/shard"
)

func onDisk(dir, run string, rank int) offload.Config {
	return offload.Config{Optimizer: offload.Disk, Ratio: 1, Buffers: 2, Tile: 1000, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Scratch: offload.Scratch{Dir: dir, Run: run, Rank: rank}}
}

// TestFile checks the file's header and size, and that Free removes it.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	r, err := newRig(t, onDisk(dir, "4bd1", 3), two)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "zeroth-4bd1-rank-3.offload")
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// 3 vectors of 4096 bytes for each of three tiles of a (1000, 1000, 500)
	// and one of b, after the header.
	const size = 4096 + 4*3*4096
	if int64(len(raw)) != r.DiskBytes() || len(raw) != size {
		t.Errorf("%d bytes, want %d and %d", len(raw), r.DiskBytes(), size)
	}
	text := strings.TrimRight(string(raw[:4096]), "\x00")
	lines := strings.Split(text, "\n")
	if len(lines) != 6 || lines[0] != "zeroth offload 1" || lines[1] != "run 4bd1" || lines[2] != "rank 3" || len(lines[3]) != len("layout 12345678") || lines[4] != fmt.Sprintf("bytes %d", size) {
		t.Errorf("header %q", text)
	}
	r.close()
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("after Free: %v", err)
	}
}

// TestStaleFiles checks that files of dead runs are removed and reported, and that files of live
// runs and files with similar names are not touched.
func TestStaleFiles(t *testing.T) {
	dir := t.TempDir()
	alive, err := newRig(t, onDisk(dir, "alive", 0), two)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	header := "zeroth offload 1\nrun dead\nrank 1\nlayout 00000000\nbytes 8192\n"
	header = "zeroth offload 1\nrun dead\x1b[31m\nrank 1\nlayout 00000000\nbytes 8192\n"
	put("zeroth-dead-rank-1.offload", header+strings.Repeat("\x00", 8192-len(header)))
	outside := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Mkdir(filepath.Join(dir, "zeroth-folder-rank-4.offload"), 0o700),
		os.Symlink(outside, filepath.Join(dir, "zeroth-link-rank-5.offload")), os.Symlink("/dev/zero", filepath.Join(dir, "zeroth-zero-rank-6.offload"))); err != nil {
		t.Fatal(err)
	}
	put("zeroth-torn-rank-2.offload", "") // killed before its header
	put("zeroth-notes-rank-3.offload", "my notes on offload\n")
	put("zeroth-notes.txt", header)
	put("other.offload", header)
	r, err := newRig(t, onDisk(dir, "new", 0), two)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Reclaimed()
	slices.Sort(got)
	want := []string{
		filepath.Join(dir, "zeroth-dead-rank-1.offload") + " (run dead\ufffd[31m, rank 1, layout 00000000, bytes 8192)",
		filepath.Join(dir, "zeroth-torn-rank-2.offload") + " (never used)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("reclaimed %q, want %q", got, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if remaining := []string{"other.offload", "zeroth-alive-rank-0.offload", "zeroth-folder-rank-4.offload", "zeroth-link-rank-5.offload", "zeroth-new-rank-0.offload",
		"zeroth-notes-rank-3.offload", "zeroth-notes.txt", "zeroth-zero-rank-6.offload"}; !slices.Equal(names, remaining) {
		t.Errorf("remaining files %q, want %q", names, remaining)
	}
	alive.exercise(t)
}

// noDirect is a file system without direct transfers. If refusing, it claims to support
// them and then fails.
type noDirect struct {
	vfs.ScratchFS
	refusing bool
	transfer func(on bool)
}

type bufferedFile struct {
	vfs.ScratchFile
	fs *noDirect
	on bool
}

func (f *noDirect) CreateLocked(name string) (vfs.ScratchFile, error) {
	file, err := f.ScratchFS.CreateLocked(name)
	return &bufferedFile{file, f, false}, err
}

func (f *bufferedFile) Direct(on bool) bool { f.on = on && f.fs.refusing; return f.on }

func (f *bufferedFile) WriteAt(b []byte, off int64) (int, error) {
	f.fs.transfer(f.on)
	if f.on {
		return 0, os.ErrInvalid
	}
	return f.ScratchFile.WriteAt(b, off)
}

// TestBuffered checks that the page cache is used if direct transfers are not available.
func TestBuffered(t *testing.T) {
	for _, refusing := range []bool{false, true} {
		direct, buffered := 0, 0
		count := func(on bool) {
			if on {
				direct++
			} else {
				buffered++
			}
		}
		cfg := onDisk("", "", 0)
		cfg.Scratch.Files = &noDirect{ScratchFS: vfs.OS{}, refusing: refusing, transfer: count}
		r, err := newRig(t, cfg, two)
		if err != nil {
			t.Fatal(err)
		}
		r.exercise(t)
		r.close()
		if want := map[bool]int{false: 0, true: 1}[refusing]; direct != want || buffered < 4 {
			t.Errorf("refusing %v: %d direct writes, want %d; %d buffered", refusing, direct, want, buffered)
		}
	}
}

// unlockable is a file system without locks.
type unlockable struct{ vfs.ScratchFS }

func (unlockable) CreateLocked(string) (vfs.ScratchFile, error) {
	return nil, &vfs.CannotLock{Err: errors.New("no file locks here")}
}

// TestUnlockable checks that without locks no file is created, and that the error gives the
// alternative.
func TestUnlockable(t *testing.T) {
	dir := t.TempDir()
	cfg := onDisk(dir, "bare", 0)
	cfg.Scratch.Files = unlockable{vfs.OS{}}
	_, err := newRig(t, cfg, two)
	if want := "create " + filepath.Join(dir, "zeroth-bare-rank-0.offload") + ": no file locks here: offload to the host instead"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestFileCutOff checks that a truncated file is reported as an error.
func TestFileCutOff(t *testing.T) {
	dir := t.TempDir()
	r, err := newRig(t, onDisk(dir, "cut", 0), two)
	if err != nil {
		t.Fatal(err)
	}
	rng, m := rand.New(rand.NewPCG(1, 2)), newModel(two, 2)
	for tile := range r.Tiles(0) {
		r.update(0, tile, m, true, rng)
	}
	for _, q := range r.queues {
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "zeroth-cut-rank-0.offload"), 4096*5); err != nil {
		t.Fatal(err)
	}
	r.update(0, 1, m, true, rng)
	err = r.work.Wait()
	if err == nil || !strings.Contains(err.Error(), "unit a: optimizer state: "+dir) || !strings.Contains(err.Error(), "read 12288 bytes at offset 16384: the file ends after 4096 bytes") {
		t.Errorf("error %v", err)
	}
}

// TestStuckDisk checks that a disk that does not respond is abandoned after the timeout, with an
// error. Closing does not wait for it, and memory it may still use is not freed.
func TestStuckDisk(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	answer := make(chan struct{})
	cfg := onDisk(t.TempDir(), "stuck", 0)
	cfg.Scratch.Timeout = 50 * time.Millisecond
	cfg.Scratch.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "write" && o.Off > 0 {
			<-answer
		}
		return nil
	}}
	r, err := newRig(t, cfg, two)
	if err != nil {
		t.Fatal(err)
	}
	rng, m := rand.New(rand.NewPCG(1, 2)), newModel(two, 2)
	for range 3 {
		for tile := range r.Tiles(0) {
			r.update(0, tile, m, true, rng)
		}
	}
	err = r.work.Wait()
	if err == nil || !strings.HasSuffix(err.Error(), "offset 4096: not finished after 50ms: the disk does not respond, or is far too slow") {
		t.Errorf("error %v", err)
	}
	host := r.host
	r.close()
	if host.Usage().Live[device.Staging] == 0 {
		t.Error("memory that the disk may still read was freed")
	}
	close(answer)
}

// TestPeekReadsOnlyTheRange checks that Peek reads only the chunks of a tile that contain the
// requested range, and returns the values that were written.
func TestPeekReadsOnlyTheRange(t *testing.T) {
	var read atomic.Int64
	cfg := onDisk(t.TempDir(), "peek", 0)
	cfg.Tile, cfg.Buffers = 0, 2
	cfg.Scratch.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "read" && o.Off > 0 {
			read.Add(o.Bytes)
		}
		return nil
	}}
	const chunk, n = 512 << 10, 1 << 20
	r, err := newRig(t, cfg, []offload.Unit{{Name: "a", Len: 2 * n}})
	if err != nil {
		t.Fatal(err)
	}
	rng, m := rand.New(rand.NewPCG(1, 2)), newModel(r.units, 2)
	for tile := range 2 {
		r.update(0, tile, m, true, rng)
	}
	if err := r.work.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in     shard.Range
		chunks int64 // of each of the three vectors, which are 8 chunks long
	}{{shard.Range{Lo: 0, Hi: n}, 8}, {shard.Range{Lo: n + 5, Hi: n + 6}, 1}, {shard.Range{Lo: n + chunk/4 - 1, Hi: n + chunk/4 + 1}, 2}, {shard.Range{Lo: 2*n - 9, Hi: 2 * n}, 1}} {
		for _, q := range r.queues {
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		read.Store(0)
		tile := c.in.Lo / n
		st := r.Peek(0, tile, c.in)
		r.work.After(st.Ready[0])
		r.work.After(st.Ready[1])
		if err := r.work.Wait(); err != nil {
			t.Fatal(err)
		}
		for j, v := range vectors(st, 2) {
			if got := v.Slice(c.in.Lo-st.At.Lo, c.in.Hi-st.At.Lo).F32(); !slices.Equal(got, m[0][j][c.in.Lo:c.in.Hi]) {
				t.Errorf("%v: vector %d differs", c.in, j)
			}
		}
		if read.Load() != 3*c.chunks*chunk {
			t.Errorf("%v: %d bytes were read, want %d", c.in, read.Load(), 3*c.chunks*chunk)
		}
		r.Release(0, tile, r.work.Mark(), false)
	}
}

// TestPartsPassOnce checks an update in two passes, of which one moves the vectors and the other
// the master copy, in whole chunks. Neither may change the other's data, even in a chunk that
// contains both.
func TestPartsPassOnce(t *testing.T) {
	var moved [2]atomic.Int64
	cfg := onDisk(t.TempDir(), "parts", 0)
	cfg.Tile, cfg.Buffers = 0, 1
	cfg.Scratch.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if i := slices.Index([]string{"read", "write"}, o.Do); i >= 0 && o.Off > 0 {
			moved[i].Add(o.Bytes)
		}
		return nil
	}}
	const chunk, n, odd = 512 << 10, 1 << 20, 150_000 // odd elements are 147 disk blocks; a chunk has 128
	r, err := newRig(t, cfg, []offload.Unit{{Name: "a", Len: n}, {Name: "b", Len: odd}})
	if err != nil {
		t.Fatal(err)
	}
	rng, m := rand.New(rand.NewPCG(1, 2)), newModel(r.units, 2)
	for unit := range r.units {
		r.update(unit, 0, m, true, rng)
	}
	for _, c := range []struct {
		unit  int
		part  offload.Part
		bytes int64
	}{{0, offload.Vectors, 2 * 4 * n}, {0, offload.Copy, 4 * n}, {1, offload.Copy, 2 * chunk}, {1, offload.Vectors, 441*4096 - chunk}} {
		for _, q := range r.queues {
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		moved[0].Store(0)
		moved[1].Store(0)
		st := r.Acquire(c.unit, 0, c.part)
		r.work.After(st.Ready[0])
		r.work.After(st.Ready[1])
		want, lent := m[c.unit][1:], st.Vec
		if c.part == offload.Copy {
			want, lent = m[c.unit][:1], []device.Buffer{st.Master}
			r.work.Cast(st.Param, st.Master)
		} else if st.Master.N+st.Param.N > 0 {
			t.Errorf("%+v: the parameter was lent", c)
		}
		if len(lent) != len(want) {
			t.Fatalf("%+v: %d vectors were lent, want %d", c, len(lent), len(want))
		}
		for i, v := range want {
			for j := range v {
				v[j]++
			}
			r.work.Copy(lent[i], device.OfF32(v))
		}
		r.Release(c.unit, 0, r.work.Mark(), true)
		for _, q := range r.queues {
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if read, written := moved[0].Load(), moved[1].Load(); read != c.bytes || written != c.bytes {
			t.Errorf("%+v: %d bytes were read and %d written", c, read, written)
		}
	}
	for unit := range r.units {
		r.update(unit, 0, m, false, rng)
	}
	if err := r.work.Wait(); err != nil {
		t.Error(err)
	}
}
