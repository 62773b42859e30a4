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

// rig is a store on two devices of this machine, with its queues.
type rig struct {
	*offload.Store
	cfg       offload.Config
	dev, host *cpu.Device
	queues    []*cpu.Queue
	work      *cpu.Queue // updates
	units     []offload.Unit
	params    []device.Buffer
}

// newRig opens a store over units; a nil t in Fetch order is the caller's.
func newRig(t testing.TB, cfg offload.Config, units []offload.Unit) (*rig, error) {
	t.Helper()
	return newRigOf(t, cfg, units, nil, nil)
}

// newRigOf is newRig with gradients, and with wrappers around its queues.
func newRigOf(t testing.TB, cfg offload.Config, units []offload.Unit, grads []device.Buffer, wrap func(*offload.Config)) (*rig, error) {
	t.Helper()
	r := &rig{dev: cpu.NewHost(1), host: cpu.NewHost(1), units: units}
	queue := func(name string) *cpu.Queue {
		q := r.host.NewQueue(name)
		r.queues = append(r.queues, q)
		return q
	}
	cfg.Device, cfg.Host = r.dev, r.host
	cfg.ToHost, cfg.ToDevice, cfg.Read, cfg.Write = queue("to host"), queue("to device"), queue("read"), queue("write")
	r.work = queue("work")
	if cfg.Scratch.Files == nil {
		cfg.Scratch.Files = offload.OS{}
	}
	if cfg.Scratch.Dir == "" {
		cfg.Scratch.Dir = t.TempDir()
	}
	if cfg.Scratch.Run == "" {
		cfg.Scratch.Run = "cafe"
	}
	if wrap != nil {
		wrap(&cfg)
	}
	r.cfg = cfg
	r.Store = offload.New(cfg, units)
	t.Cleanup(r.close)
	rest := make([]offload.Shard, len(units))
	for i, u := range units {
		p, err := r.dev.Alloc(cfg.DType, u.Len, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		r.params = append(r.params, p)
		rest[i].Param = p
		if grads != nil {
			rest[i].Grad = grads[i]
		}
	}
	return r, r.Allocate(rest)
}

func (r *rig) close() {
	for _, q := range r.queues {
		q.Close()
	}
	if r.Store != nil {
		r.Free()
	}
	for _, p := range r.params {
		r.dev.Free(p)
	}
	r.dev.Close()
	r.host.Close()
	r.queues, r.params, r.Store = nil, nil, nil
}

// model is what a store must hold: the vectors of each unit.
type model [][][]float32

func newModel(units []offload.Unit, vecs int) model {
	m := make(model, len(units))
	for i, u := range units {
		m[i] = make([][]float32, 1+vecs)
		for j := range m[i] {
			m[i][j] = make([]float32, u.Len)
		}
	}
	return m
}

// vectors are a state's, the master copy first.
func vectors(st offload.State, vecs int) []device.Buffer {
	return append([]device.Buffer{st.Master}, st.Vec[:vecs]...)
}

// update acquires a tile, compares it with the model, and if change is set
// gives it new random values; all on the work queue.
func (r *rig) update(unit, tile int, m model, change bool, rng *rand.Rand) device.Event {
	st := r.Acquire(unit, tile)
	q := r.work
	q.Label(fmt.Sprintf("unit %d tile %d", unit, tile))
	q.After(st.Ready[0])
	q.After(st.Ready[1])
	want := m[unit]
	var next [][]float32
	for j, v := range vectors(st, len(r.cfg.Vecs[0])) {
		was := slices.Clone(want[j][st.At.Lo:st.At.Hi])
		q.Do(func() error {
			if got := v.F32(); !slices.Equal(got, was) {
				return fmt.Errorf("vector %d differs", j)
			}
			return nil
		})
		next = append(next, make([]float32, v.N))
		for i := range next[j] {
			next[j][i] = float32(rng.IntN(1 << 8)) // exact in every type
		}
		if change {
			copy(want[j][st.At.Lo:], next[j])
			q.Copy(v, device.OfF32(next[j]))
		}
	}
	if change && st.Param.N > 0 {
		q.Cast(st.Param, st.Master)
	}
	return r.Release(unit, tile, q.Mark(), change)
}

// fetched compares a unit's parameters, as a gather would see them, with the
// model's master copy; updated is their last Release.
func (r *rig) fetched(t *testing.T, unit int, m model, updated device.Event) {
	t.Helper()
	n := r.units[unit].Len
	got, err := r.dev.Alloc(r.cfg.DType, n, device.Gathered)
	if err != nil {
		t.Fatal(err)
	}
	wide := make([]float32, n)
	if r.ParamOffloaded(unit) {
		r.work.After(r.Fetch(unit, got, device.Event{}, updated))
	} else {
		r.work.After(updated)
		r.work.Copy(got, r.params[unit])
	}
	r.work.Cast(device.OfF32(wide), got)
	if err := r.work.Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(wide, m[unit][0]) {
		t.Fatalf("parameters of unit %d differ", unit)
	}
	r.dev.Free(got)
}

var places = []offload.Place{offload.Device, offload.Host, offload.Disk}

// What a store is given it gives back, wherever it rests: state of every tile,
// zero at first, and parameters with their newest value.
func TestStoreGivesBack(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	units := []offload.Unit{{Name: "wte", Len: 3000, Whole: true}, {Name: "a", Len: 64}, {Name: "b", Len: 5000}, {Name: "c", Len: 2048}}
	for _, optimizer := range places {
		for _, params := range places {
			for _, dtype := range []device.DType{device.F32, device.BF16} {
				for _, vecs := range []int{0, 1, 2} {
					name := fmt.Sprintf("%v/%v/%v/%d", optimizer, params, dtype, vecs)
					t.Run(name, func(t *testing.T) {
						cfg := offload.Config{Optimizer: optimizer, Params: params, Ratio: 0.7, Buffers: 1 + vecs, Tile: 700, DType: dtype, Vecs: [][]device.DType{make([]device.DType, vecs)}}
						r, err := newRig(t, cfg, units)
						if err != nil {
							t.Fatal(err)
						}
						if r.ParamOffloaded(0) || r.ParamOffloaded(2) != (params != offload.Device) || r.OnHost(0) || r.OnHost(3) != (optimizer != offload.Device) {
							t.Errorf("offloaded %v, %v; on the host %v, %v", r.ParamOffloaded(0), r.ParamOffloaded(2), r.OnHost(0), r.OnHost(3))
						}
						r.exercise(t)
					})
				}
			}
		}
	}
}

func (r *rig) exercise(t *testing.T) {
	rng, m := rand.New(rand.NewPCG(1, 2)), newModel(r.units, len(r.cfg.Vecs[0]))
	updated := make([]device.Event, len(r.units))
	for pass := range 4 {
		change := pass != 2 // the state of pass 1 is read twice
		for unit := range r.units {
			for tile := range r.Tiles(unit) {
				e := r.update(unit, tile, m, change, rng)
				if change {
					updated[unit] = e
				}
			}
		}
		for i := range r.units {
			unit := i
			if pass%2 == 1 {
				unit = len(r.units) - 1 - i
			}
			r.fetched(t, unit, m, updated[unit])
		}
	}
	for _, q := range r.queues {
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// The event of Release fires when the parameter rests where it belongs.
func TestReleasedIsWrittenBack(t *testing.T) {
	for _, optimizer := range places {
		var written atomic.Int64
		cfg := offload.Config{Optimizer: optimizer, Params: offload.Disk, Ratio: 1, Buffers: 2, Tile: 700, DType: device.BF16, Vecs: [][]device.DType{{device.F32}}}
		cfg.Scratch.Files = offload.Hook{Files: offload.OS{}, Before: func(o offload.Op) error {
			if o.Do == "write" && o.Bytes == 4096 && o.Off > 0 {
				time.Sleep(10 * time.Millisecond)
				written.Add(1)
			}
			return nil
		}}
		r, err := newRig(t, cfg, two)
		if err != nil {
			t.Fatal(err)
		}
		rng, m := rand.New(rand.NewPCG(1, 2)), newModel(two, 1)
		for tile := range r.Tiles(0) {
			e := r.update(0, tile, m, true, rng)
			if err := e.On.Await(e.Seq); err != nil || written.Load() < int64(tile+1) {
				t.Errorf("state on the %v: %d of %d tiles of parameters are written (%v)", optimizer, written.Load(), tile+1, err)
			}
		}
	}
}

// counted is a queue that adds up what it copies.
type counted struct {
	device.Queue
	bytes *int64
}

func (q counted) Copy(dst, src device.Buffer) {
	*q.bytes += int64(src.Bytes())
	q.Queue.Copy(dst, src)
}

// heard adds up what a listener is told, by kind, and what is wrong with it.
type heard struct {
	bytes [4]int64
	kinds map[device.Queue]offload.Kind
	units []offload.Unit
	wrong []offload.Event
}

func (h *heard) Offloaded(e offload.Event) {
	h.bytes[e.Kind] += e.Bytes
	if k, ok := h.kinds[e.Queue]; !ok || k != e.Kind || e.Unit >= len(h.units) || e.Param != (e.Kind >= offload.ToHost || e.Bytes == 4096) {
		h.wrong = append(h.wrong, e)
	}
}

// A listener hears every byte that is read, written and copied, of what, and on
// which queue; also of a part of a tile.
func TestListener(t *testing.T) {
	units := []offload.Unit{{Name: "wte", Len: 3000, Whole: true}, {Name: "a", Len: 64}, {Name: "b", Len: 5000}}
	for _, optimizer := range places {
		for _, params := range places {
			var files, copies [2]int64
			var mu sync.Mutex
			h := &heard{units: units, kinds: map[device.Queue]offload.Kind{}}
			cfg := offload.Config{Optimizer: optimizer, Params: params, Ratio: 0.8, Buffers: 2, Tile: 1500, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Listener: h}
			cfg.Scratch.Files = offload.Hook{Files: offload.OS{}, Before: func(o offload.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if at := slices.Index([]string{"read", "write"}, o.Do); at >= 0 && o.Off > 0 { // not the header
					files[at] += int64(o.Bytes)
				}
				return nil
			}}
			r, err := newRigOf(t, cfg, units, nil, func(c *offload.Config) {
				c.ToHost, c.ToDevice = counted{c.ToHost, &copies[0]}, counted{c.ToDevice, &copies[1]}
				for k, q := range []device.Queue{c.Read, c.Write, c.ToHost, c.ToDevice} {
					h.kinds[q] = offload.Kind(k)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			r.exercise(t)
			*h, files, copies = heard{units: units, kinds: h.kinds}, [2]int64{}, [2]int64{} // from here on nothing is zeros
			r.again(t)
			if got := [4]int64{files[0], files[1], copies[0], copies[1]}; got != h.bytes || h.wrong != nil {
				t.Errorf("%v, %v: heard %v, moved %v; wrong are %+v", optimizer, params, h.bytes, got, h.wrong)
			}
			if moves := h.bytes != [4]int64{}; moves != (optimizer != offload.Device || params != offload.Device) {
				t.Errorf("%v, %v: moved %v", optimizer, params, h.bytes)
			}
		}
	}
}

// again updates and fetches all units, and looks at a part of each tile.
func (r *rig) again(t *testing.T) {
	for unit := range r.units {
		var done device.Event
		for tile := range r.Tiles(unit) {
			st := r.Acquire(unit, tile)
			r.work.After(st.Ready[0])
			r.work.After(st.Ready[1])
			done = r.Release(unit, tile, r.work.Mark(), true)
			at := r.Tile(unit, tile)
			st = r.Peek(unit, tile, shard.Range{Lo: at.Lo, Hi: at.Lo + 1})
			r.work.After(st.Ready[0])
			r.work.After(st.Ready[1])
			r.Release(unit, tile, r.work.Mark(), false)
		}
		if r.ParamOffloaded(unit) {
			got := device.OfU16(device.BF16, make([]uint16, r.units[unit].Len))
			r.Fetch(unit, got, device.Event{}, done)
		}
	}
	for _, q := range r.queues {
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// The first units stay on the device, as many as make about 1-ratio of all.
func TestSplit(t *testing.T) {
	units := []offload.Unit{{Len: 400}, {Len: 100}, {Len: 100}, {Len: 400}}
	for ratio, want := range map[float64]int{1: 0, 0.81: 0, 0.79: 1, 0.6: 1, 0.5: 2, 0.4: 3, 0.21: 3, 0.19: 4, 0: 4} {
		if got := offload.Split(units, ratio); got != want {
			t.Errorf("ratio %g: units from %d on are offloaded, want %d", ratio, got, want)
		}
	}
	if got := offload.Split(nil, 1); got != 0 {
		t.Errorf("of no units, those from %d on", got)
	}
}

func onDisk(dir, run string, rank int) offload.Config {
	return offload.Config{Optimizer: offload.Disk, Ratio: 1, Buffers: 2, Tile: 1000, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Scratch: offload.Scratch{Dir: dir, Run: run, Rank: rank}}
}

var two = []offload.Unit{{Name: "a", Len: 2500}, {Name: "b", Len: 100}}

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

// A budget that is too small fails Allocate with the category, and holds nothing.
func TestBudget(t *testing.T) {
	dev, host := cpu.NewHost(1), cpu.NewHost(1)
	defer dev.Close()
	defer host.Close()
	host.Budget(3000)
	s := offload.New(offload.Config{Optimizer: offload.Host, Ratio: 1, Buffers: 1, DType: device.F32, Vecs: [][]device.DType{{device.F32, device.F32}}, Device: dev, Host: host}, []offload.Unit{{Name: "a", Len: 300}})
	if live := host.Usage().Peak.Total(); live != 0 {
		t.Errorf("New takes %d bytes", live)
	}
	err := s.Allocate(make([]offload.Shard, 1))
	if err == nil || err.Error() != "offload: 2.93 KiB budget: 1.17 KiB of optimizer do not fit beside 2.34 KiB" {
		t.Errorf("error %v", err)
	}
	if live := host.Usage().Live.Total(); live != 0 {
		t.Errorf("%d bytes are held", live)
	}
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

// Tiles are apart while they take different slots: with two of them, each from
// the next and not from the one after.
func TestApart(t *testing.T) {
	r, err := newRig(t, onDisk(t.TempDir(), "apart", 0), two)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Apart(0, 0, 0, 1) || r.Apart(0, 0, 0, 2) || !r.Apart(0, 2, 1, 0) || r.Apart(0, 1, 1, 0) || r.Apart(0, 1, 0, 1) {
		t.Error("tiles 0 to 2 of a and 0 of b on two slots")
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
