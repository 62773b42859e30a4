package offload_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/offload"
	"zeroth/shard"
)

func onDisk(dir, run string, rank int) offload.Config {
	return offload.Config{Optimizer: offload.Disk, Ratio: 1, Buffers: 2, Tile: 1000, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Scratch: offload.Scratch{Dir: dir, Run: run, Rank: rank}}
}

// The file says what it is, is as long as announced, and is gone after Free.
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

// Files of dead runs are removed and reported; those of runs that are alive,
// and files that only have such a name, are left alone.
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
	if left := []string{"other.offload", "zeroth-alive-rank-0.offload", "zeroth-folder-rank-4.offload", "zeroth-link-rank-5.offload", "zeroth-new-rank-0.offload",
		"zeroth-notes-rank-3.offload", "zeroth-notes.txt", "zeroth-zero-rank-6.offload"}; !slices.Equal(names, left) {
		t.Errorf("left are %q, want %q", names, left)
	}
	alive.exercise(t)
}

// A file in use cannot be claimed, and a name not be made twice.
func TestLocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := offload.OS{}.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (offload.OS{}).Claim(name); err != offload.ErrInUse && !strings.Contains(fmt.Sprint(err), offload.ErrInUse.Error()) {
		t.Errorf("claiming a file in use: %v", err)
	}
	if _, err := (offload.OS{}).Create(name); !os.IsExist(err) {
		t.Errorf("making it again: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := offload.OS{}.Claim(name)
	if err != nil {
		t.Fatalf("claiming it once it is closed: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// noDirect is a file system without direct transfers; refusing, one that says
// it has them and then refuses.
type noDirect struct {
	offload.Files
	refusing bool
	transfer func(on bool)
}

type bufferedFile struct {
	offload.File
	fs *noDirect
	on bool
}

func (f *noDirect) Create(name string) (offload.File, error) {
	file, err := f.Files.Create(name)
	return &bufferedFile{file, f, false}, err
}

func (f *bufferedFile) Direct(on bool) bool { f.on = on && f.fs.refusing; return f.on }

func (f *bufferedFile) WriteAt(b []byte, off int64) (int, error) {
	f.fs.transfer(f.on)
	if f.on {
		return 0, os.ErrInvalid
	}
	return f.File.WriteAt(b, off)
}

// Where direct transfers are not to be had, the page cache serves.
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
		cfg.Scratch.Files = &noDirect{Files: offload.OS{}, refusing: refusing, transfer: count}
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

// A file that somebody cuts off is an error that says so.
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
	if err == nil || !strings.Contains(err.Error(), "unit a: optimizer state: "+dir) || !strings.Contains(err.Error(), "read 12288 bytes at offset 16384: the file ends after 4096 of them") {
		t.Errorf("error %v", err)
	}
}

// A disk that does not answer is given up after the timeout, with an error that
// says so; closing does not wait for it, and what it may still write to stays.
func TestStuckDisk(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	answer := make(chan struct{})
	cfg := onDisk(t.TempDir(), "stuck", 0)
	cfg.Scratch.Timeout = 50 * time.Millisecond
	cfg.Scratch.Files = offload.Hook{Files: offload.OS{}, Before: func(o offload.Op) error {
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
	if err == nil || !strings.HasSuffix(err.Error(), "offset 4096: not done after 50ms: the disk does not answer, or is far too slow") {
		t.Errorf("error %v", err)
	}
	host := r.host
	r.close()
	if host.Usage().Live[device.Staging] == 0 {
		t.Error("memory that the disk may still read was given back")
	}
	close(answer)
}

// A file's transfers are the same past the page cache, where the kernel moves
// them on its own, and through it: bytes, their number at the end of the file,
// and many at once.
func TestFileTransfers(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dev := cpu.NewHost(1)
	defer dev.Close()
	const block, blocks = 4096, 40
	for _, direct := range []bool{false, true} {
		f, err := offload.OS{}.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Direct(direct) != direct {
			t.Logf("no direct transfers in %s", t.TempDir())
		}
		mem := make([]device.Buffer, blocks)
		for i := range mem {
			if mem[i], err = dev.Alloc(device.F32, block/4, device.Staging); err != nil {
				t.Fatal(err)
			}
		}
		all := func(op func(i int, b []byte) error) {
			var wg sync.WaitGroup
			for i := range mem {
				wg.Go(func() {
					if err := op(i, mem[i].Raw()); err != nil {
						t.Errorf("direct %v: block %d: %v", direct, i, err)
					}
				})
			}
			wg.Wait()
		}
		all(func(i int, b []byte) error {
			for j := range b {
				b[j] = byte(i + j)
			}
			n, err := f.WriteAt(b, int64(i)*block)
			if n != block {
				err = fmt.Errorf("%d bytes written: %w", n, err)
			}
			return err
		})
		all(func(i int, b []byte) error {
			clear(b)
			at := (i + 7) % blocks
			if n, err := f.ReadAt(b, int64(at)*block); n != block || err != nil {
				return fmt.Errorf("%d bytes read: %w", n, err)
			}
			for j := range b {
				if b[j] != byte(at+j) {
					return fmt.Errorf("byte %d is %d", j, b[j])
				}
			}
			return nil
		})
		if n, err := f.ReadAt(mem[0].Raw(), blocks*block); n != 0 || err != io.EOF {
			t.Errorf("direct %v: behind the end: %d bytes, %v", direct, n, err)
		}
		if _, err := f.ReadAt(mem[0].Raw(), -block); err == nil {
			t.Errorf("direct %v: a read before the start succeeds", direct)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		for _, m := range mem {
			dev.Free(m)
		}
	}
}

// Peek reads of a tile what is asked for, to the chunk, and no more; and it is
// what was written.
func TestPeekReadsWhatIsAskedFor(t *testing.T) {
	var read atomic.Int64
	cfg := onDisk(t.TempDir(), "peek", 0)
	cfg.Tile, cfg.Buffers = 0, 2
	cfg.Scratch.Files = offload.Hook{Files: offload.OS{}, Before: func(o offload.Op) error {
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
			t.Errorf("%v: %d bytes are read, want %d", c.in, read.Load(), 3*c.chunks*chunk)
		}
		r.Release(0, tile, r.work.Mark(), false)
	}
}

// An update in two goes has the vectors pass over the disk in one and the master copy in
// the other, to the chunk, and neither changes what is the other's, also where a chunk
// has some of both.
func TestPartsPassOnce(t *testing.T) {
	var moved [2]atomic.Int64
	cfg := onDisk(t.TempDir(), "parts", 0)
	cfg.Tile, cfg.Buffers = 0, 1
	cfg.Scratch.Files = offload.Hook{Files: offload.OS{}, Before: func(o offload.Op) error {
		if i := slices.Index([]string{"read", "write"}, o.Do); i >= 0 && o.Off > 0 {
			moved[i].Add(o.Bytes)
		}
		return nil
	}}
	const chunk, n, odd = 512 << 10, 1 << 20, 150_000 // odd are 147 blocks of a disk, of 128 in a chunk
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
			t.Errorf("%+v: the parameter is lent", c)
		}
		if len(lent) != len(want) {
			t.Fatalf("%+v: %d vectors are lent, want %d", c, len(lent), len(want))
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
			t.Errorf("%+v: %d bytes are read and %d written", c, read, written)
		}
	}
	for unit := range r.units {
		r.update(unit, 0, m, false, rng)
	}
	if err := r.work.Wait(); err != nil {
		t.Error(err)
	}
}

// Many small transfers, of which several end between two looks at what has
// ended, all end, while the runtime sends its threads signals.
func TestManyTransfersEnd(t *testing.T) {
	f, err := offload.OS{}.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Direct(true)
	dev := cpu.NewHost(1)
	defer dev.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		go func() { // keeps processors busy, so that the runtime preempts by signals
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	defer close(stop)
	for lane := range 24 { // more than are under way at once
		mem, err := dev.Alloc(device.F32, 1024, device.Staging)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Free(mem)
		wg.Go(func() {
			for i := range 6 {
				at := int64(lane*6+i) * 4096
				if _, err := f.WriteAt(mem.Raw(), at); err != nil {
					t.Error(err)
				}
				if n, err := f.ReadAt(mem.Raw(), at); n != 4096 || err != nil {
					t.Error(n, err)
				}
			}
		})
	}
	wg.Wait()
}
