package offload_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/offload"
	"zeroth/shard"
)

// rig is a store with two devices of this machine and its queues.
type rig struct {
	*offload.Store
	cfg       offload.Config
	dev, host *cpu.Device
	queues    []*cpu.Queue
	work      *cpu.Queue // updates
	units     []offload.Unit
	params    []device.Buffer
}

// newRig creates a store for units, with gradients of its own.
func newRig(t testing.TB, cfg offload.Config, units []offload.Unit) (*rig, error) {
	t.Helper()
	return newRigOf(t, cfg, units, nil, nil)
}

// newRigOf is like newRig with the given gradients; wrap may replace the queues.
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
		cfg.Scratch.Files = vfs.OS{}
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

// model is the expected content of a store: the vectors of each unit.
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

// vectors returns the vectors of a state, the master copy first.
func vectors(st offload.State, vecs int) []device.Buffer {
	return append([]device.Buffer{st.Master}, st.Vec[:vecs]...)
}

// update acquires a tile, compares it with the model and, if change is set, writes new
// random values, all on the work queue.
func (r *rig) update(unit, tile int, m model, change bool, rng *rand.Rand) device.Event {
	st := r.Acquire(unit, tile, offload.All)
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

// fetched compares a unit's parameters, as a gather would read them, with the model's
// master copy; updated is the event of their last Release.
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
	} else if r.work.After(updated); r.MasterOnly(unit) {
		r.work.Cast(got, r.Master(unit))
	} else {
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

var places = []offload.Tier{offload.Device, offload.Host, offload.Disk}

// TestStoreReadsBack checks that a store returns what was written to it, in any kind
// of memory: the state of every tile, initially zero, and the newest parameters.
func TestStoreReadsBack(t *testing.T) {
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

// TestReleasedIsWrittenBack checks that the event of Release fires once the parameter has been
// written back.
func TestReleasedIsWrittenBack(t *testing.T) {
	for _, optimizer := range places {
		var written atomic.Int64
		cfg := offload.Config{Optimizer: optimizer, Params: offload.Disk, Ratio: 1, Buffers: 2, Tile: 700, DType: device.BF16, Vecs: [][]device.DType{{device.F32}}}
		cfg.Scratch.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
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
				t.Errorf("state on the %v: %d of %d tiles of parameters were written (%v)", optimizer, written.Load(), tile+1, err)
			}
		}
	}
}

// counter sums the bytes of a listener's events by kind and collects wrong events.
type counter struct {
	bytes [2]int64
	queue map[device.Queue]offload.Kind
	wrong []offload.Event
}

func (h *counter) Offloaded(e offload.Event) {
	h.bytes[e.Kind] += e.Bytes
	if k, ok := h.queue[e.Queue]; !ok || k != e.Kind {
		h.wrong = append(h.wrong, e)
	}
}

// TestListener checks that the listener receives every byte read and written, with its queue, also for parts
// of tiles.
func TestListener(t *testing.T) {
	units := []offload.Unit{{Name: "wte", Len: 3000, Whole: true}, {Name: "a", Len: 64}, {Name: "b", Len: 5000}}
	for _, optimizer := range places {
		for _, params := range places {
			var files [2]int64
			var mu sync.Mutex
			h := &counter{queue: map[device.Queue]offload.Kind{}}
			cfg := offload.Config{Optimizer: optimizer, Params: params, Ratio: 0.8, Buffers: 2, Tile: 1500, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Listener: h}
			cfg.Scratch.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if at := slices.Index([]string{"read", "write"}, o.Do); at >= 0 && o.Off > 0 { // not the header
					files[at] += int64(o.Bytes)
				}
				return nil
			}}
			r, err := newRigOf(t, cfg, units, nil, func(c *offload.Config) {
				h.queue[c.Read], h.queue[c.Write] = offload.Read, offload.Write
			})
			if err != nil {
				t.Fatal(err)
			}
			r.exercise(t)
			h.bytes, h.wrong, files = [2]int64{}, nil, [2]int64{} // all blocks have been written by now
			r.again(t)
			if files != h.bytes || h.wrong != nil {
				t.Errorf("%v, %v: events for %v, moved %v; wrong events %+v", optimizer, params, h.bytes, files, h.wrong)
			}
			if moves := h.bytes != [2]int64{}; moves != (optimizer == offload.Disk || params == offload.Disk) {
				t.Errorf("%v, %v: moved %v", optimizer, params, h.bytes)
			}
		}
	}
}

// again updates and fetches all units, and peeks at a part of each tile.
func (r *rig) again(t *testing.T) {
	for unit := range r.units {
		var done device.Event
		for tile := range r.Tiles(unit) {
			st := r.Acquire(unit, tile, offload.All)
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

// TestSplit checks that the first units stay on the device, up to about 1-ratio of all elements.
func TestSplit(t *testing.T) {
	units := []offload.Unit{{Len: 400}, {Len: 100}, {Len: 100}, {Len: 400}}
	for ratio, want := range map[float64]int{1: 0, 0.81: 0, 0.79: 1, 0.6: 1, 0.5: 2, 0.4: 3, 0.21: 3, 0.19: 4, 0: 4} {
		if got := offload.Split(units, ratio); got != want {
			t.Errorf("ratio %g: the first offloaded unit is %d, want %d", ratio, got, want)
		}
	}
	if got := offload.Split(nil, 1); got != 0 {
		t.Errorf("without units, the first offloaded unit is %d", got)
	}
}

var two = []offload.Unit{{Name: "a", Len: 2500}, {Name: "b", Len: 100}}

// TestBudget checks that Allocate fails with the category that exceeds the budget, and allocates
// nothing.
func TestBudget(t *testing.T) {
	dev, host := cpu.NewHost(1), cpu.NewHost(1)
	defer dev.Close()
	defer host.Close()
	host.Budget(3000)
	s := offload.New(offload.Config{Optimizer: offload.Host, Ratio: 1, Buffers: 1, DType: device.F32, Vecs: [][]device.DType{{device.F32, device.F32}}, Device: dev, Host: host}, []offload.Unit{{Name: "a", Len: 300}})
	if live := host.Usage().Peak.Total(); live != 0 {
		t.Errorf("New allocates %d bytes", live)
	}
	err := s.Allocate(make([]offload.Shard, 1))
	if err == nil || err.Error() != "offload: 2.93 KiB budget: 1.17 KiB of optimizer do not fit in addition to 2.34 KiB" {
		t.Errorf("error %v", err)
	}
	if live := host.Usage().Live.Total(); live != 0 {
		t.Errorf("%d bytes remain allocated", live)
	}
}

// TestCanOverlap checks that tiles can overlap if they use different slots: with two slots,
// neighbours can and tiles two apart cannot.
func TestCanOverlap(t *testing.T) {
	r, err := newRig(t, onDisk(t.TempDir(), "apart", 0), two)
	if err != nil {
		t.Fatal(err)
	}
	if !r.CanOverlap(0, 0, 0, 1) || r.CanOverlap(0, 0, 0, 2) || !r.CanOverlap(0, 2, 1, 0) || r.CanOverlap(0, 1, 1, 0) || r.CanOverlap(0, 1, 0, 1) {
		t.Error("tiles 0 to 2 of a and 0 of b on two slots")
	}
}
