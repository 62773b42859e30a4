package fsdp_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/shard"
)

// spoilt is a device whose memory, except for parameters, starts as NaN.
type spoilt struct{ *cpu.Device }

func (d spoilt) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b, err := d.Device.Alloc(t, n, use)
	if err == nil && use != device.Params && n > 0 {
		spoil(b)
	}
	return b, err
}

func spoil(b device.Buffer) {
	raw := b.Raw()
	for i := range raw {
		raw[i] = 0xff
	}
}

// counted is a group that counts its operations by length, delays them, and overwrites what they
// leave undefined: the parts that a gather will fill, before it, and those that a reduction leaves
// undefined, after it.
type counted struct {
	collective.Group
	rng              *rand.Rand
	gathers, reduces map[int]int
}

func count(g collective.Group, seed uint64) *counted {
	return &counted{g, rand.New(rand.NewPCG(seed, uint64(g.Rank()))), map[int]int{}, map[int]int{}}
}

func (w *counted) AllGather(q device.Queue, whole, own device.Buffer) {
	w.gathers[whole.N]++
	w.spoilOthers(q, whole, own)
	w.Group.AllGather(q, whole, own)
}

func (w *counted) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	w.reduces[whole.N]++
	w.Group.ReduceScatter(q, own, whole)
	w.spoilOthers(q, whole, own)
}

func (w *counted) spoilOthers(q device.Queue, whole, own device.Buffer) {
	delay := time.Duration(w.rng.IntN(100))
	q.Do(func() error {
		for r := range w.Size() {
			if part := collective.Part(w, whole, r); part.N > 0 && part.Ptr != own.Ptr {
				spoil(part)
			}
		}
		time.Sleep(delay)
		return nil
	})
}

// setup is a test case: a policy with its environment.
type setup struct {
	mesh      shard.Mesh
	policy    fsdp.Policy
	micro     int
	layers    int
	offloaded bool // gradients, and parameters that are not whole, are on a host
	form      form
}

// rank is one rank of a world that trains the toy.
type rank struct {
	setup
	at                    int // in the world
	dev                   *cpu.Device
	compute, comm, update *cpu.Queue
	groups                collective.Ranks
	shards, replicas      *counted
	heard                 *heard
	run                   *fsdp.Runner
	batch                 nn.Batch

	host             *cpu.Device
	toHost, toDevice *cpu.Queue
	rest             []device.Buffer // offloaded parameters, by unit
}

const arenaSize = 1 << 14

// newRank opens a rank with the oracle's parameters.
func newRank(s setup, at int, g collective.Ranks, o *oracle) (*rank, error) {
	r := &rank{setup: s, at: at, groups: g, dev: cpu.NewHost(1), heard: &heard{}}
	r.compute, r.comm, r.update = r.dev.NewQueue("compute"), r.dev.NewQueue("comm"), r.dev.NewQueue("update")
	r.shards, r.replicas = count(g.Shard, 1), count(g.Replica, 2)
	r.host = cpu.NewHost(1)
	r.toHost, r.toDevice = r.host.NewQueue("to host"), r.host.NewQueue("to device")
	ints, floats := func() device.Buffer { return device.OfI32(make([]int32, rows)) }, make([]float32, rows)
	r.batch = nn.Batch{B: 2, T: 3, Input: ints(), Target: ints(), Loss: device.OfF32(floats), Scale: 1, Compute: device.F32}
	var err error
	m := toyOf(s.layers, s.form)
	units := fsdp.LayOut(m, s.policy, 1, r.members)
	r.place(units)
	r.run, err = fsdp.New(fsdp.Config{
		Device: spoilt{r.dev}, Compute: r.compute, Comm: r.comm,
		Model: m, Units: units, DType: device.F32, Policy: s.policy, Micro: s.micro, Streams: 1, Arenas: slices.Repeat([]int{arenaSize}, 6),
		Listener: r.heard, Host: fsdp.Host{Device: spoilt{r.host}, ToHost: slow{r.toHost, 500}, ToDevice: slow{r.toDevice, 500}, Params: r},
	})
	if err != nil {
		return r, err
	}
	for i, u := range r.run.Units {
		if u.ParamOffloaded && u.Param.N > 0 {
			return r, fmt.Errorf("unit %s has %d parameters on the device", u.Name, u.Param.N)
		}
		if u.ParamOffloaded {
			u.Param = r.rest[i]
		}
	}
	for _, u := range r.run.Units {
		for pc := range u.Layout.Pieces(u.Shard.Rank()) {
			from := o.p[u.Layout.Params[pc.Param].Name][pc.InParam.Lo:pc.InParam.Hi]
			copy(u.Param.F32()[pc.InShard.Lo:pc.InShard.Hi], from)
		}
	}
	return r, nil
}

// members returns the ranks that a unit belongs to: norms are whole on every rank.
func (r *rank) members(unit nn.Unit) fsdp.Groups {
	if unit.Name == "norms" {
		return fsdp.Groups{Shard: collective.NewLocal(1)[0], Replica: count(r.groups.World, 3)}
	}
	return fsdp.Groups{Shard: r.shards, Replica: r.replicas}
}

// place selects the offloaded parameters and allocates memory for them on the host.
func (r *rank) place(units []*fsdp.Unit) {
	r.rest = make([]device.Buffer, len(units))
	for i, u := range units {
		if !r.offloaded {
			continue
		}
		u.GradOffloaded, u.ParamOffloaded = true, !u.Whole()
		if u.ParamOffloaded {
			r.rest[i] = device.OfF32(make([]float32, u.Layout.ShardLen()))
		}
	}
}

// Fetch implements fsdp.Source.
func (r *rank) Fetch(unit int, dst device.Buffer, free, updated device.Event) device.Event {
	q := slow{r.toDevice, 10}
	q.After(free)
	q.After(updated)
	q.Copy(dst, r.rest[unit])
	return q.Mark()
}

// slow is a queue with slow copies, which overwrites their destinations first.
type slow struct {
	*cpu.Queue
	by time.Duration
}

func (q slow) Copy(dst, src device.Buffer) {
	q.Do(func() error {
		spoil(dst)
		time.Sleep(q.by)
		return nil
	})
	q.Queue.Copy(dst, src)
}

func (r *rank) close() {
	_ = r.groups.Close()
	for _, q := range []*cpu.Queue{r.compute, r.comm, r.update, r.toHost, r.toDevice} {
		q.Close()
	}
	if r.run != nil {
		r.run.Free()
	}
	r.dev.Close()
	r.host.Close()
}

// train runs a step on the real schedule, up to the gradients. It returns the concatenated losses
// of its micro-batches.
func (r *rank) train(step int) (loss []float32, err error) {
	r.run.Begin()
	d := r.run.OpenStream(0, rows)
	defer r.run.CloseStream(0)
	for m := range r.micro {
		if err := r.fill(step, m); err != nil {
			return nil, err
		}
		f := r.run.Flight(0, 0)
		r.run.Forward(f, &r.batch, m, device.Buffer{}, true)
		r.run.Backward(f, &r.batch, m, d)
		if m == r.micro-1 {
			r.run.End()
		}
		if err := r.compute.Wait(); err != nil {
			return nil, err
		}
		loss = append(loss, r.batch.Loss.F32()...)
	}
	return loss, nil
}

// eval returns the losses of a micro-batch.
func (r *rank) eval(step int) ([]float32, error) {
	if err := r.fill(step, 0); err != nil {
		return nil, err
	}
	r.run.Forward(r.run.Flight(0, 0), &r.batch, 0, device.Buffer{}, false)
	err := r.compute.Wait()
	return r.batch.Loss.F32(), err
}

func (r *rank) fill(step, micro int) error {
	err := r.compute.Wait()
	tokens(step, r.at, micro, r.batch.Input.I32(), r.batch.Target.I32())
	return err
}

// descend updates every unit as soon as its gradient is reduced, with random delays.
func (r *rank) descend() {
	for i := len(r.run.Units) - 1; i >= 0; i-- {
		u := r.run.Units[i]
		r.update.After(u.Reduced)
		r.update.Do(func() error {
			time.Sleep(time.Duration(20 * (i + r.at)))
			descend(u.Param.F32(), u.Grad.F32())
			return nil
		})
		u.MarkUpdated(r.update.Mark())
	}
}

// sameGradients compares a rank's gradient shards, and their padding with zero.
func (r *rank) sameGradients(want map[string][]float32) error {
	for _, q := range []*cpu.Queue{r.comm, r.toHost} {
		if err := q.Wait(); err != nil {
			return err
		}
	}
	for _, u := range r.run.Units {
		got, whole := u.Grad.F32(), make([]float32, u.Layout.Len())
		for _, p := range u.Layout.Params {
			copy(whole[p.At.Lo:p.At.Hi], want[p.Name])
		}
		mine := u.Layout.Shard(u.Shard.Rank())
		if w := whole[mine.Lo:mine.Hi]; !slices.Equal(got, w) {
			return fmt.Errorf("unit %s: gradient shard\n%v\nwant\n%v", u.Name, got, w)
		}
	}
	return nil
}

// onRanks runs f on every rank of a world that trains the toy.
func onRanks(t *testing.T, s setup, o *oracle, f func(*rank) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		worlds := collective.LocalWorld(s.mesh)
		errs := make([]error, len(worlds))
		var wg sync.WaitGroup
		for at, g := range worlds {
			wg.Go(func() {
				r, err := newRank(s, at, g, o)
				defer r.close()
				if err == nil {
					err = f(r)
				}
				if errs[at] = err; err != nil {
					_ = g.Close()
				}
			})
		}
		wg.Wait()
		for at, err := range errs {
			if err != nil && !errors.Is(err, collective.ErrClosed) {
				t.Errorf("%+v: rank %d: %v", s, at, err)
			}
		}
		if err := errors.Join(errs...); err != nil && !t.Failed() {
			t.Errorf("%+v: %v", s, err)
		}
	})
}

// setups returns all policies on several meshes.
func setups(layers int, meshes ...shard.Mesh) (all []setup) {
	for i, mesh := range meshes {
		for _, prefetch := range []int{0, 1, 2, layers + 3} {
			for _, micro := range []int{1, 3} {
				for bits := range 4 {
					recompute := []nn.Recompute{nn.RecomputeNone, nn.RecomputeBlock}[(i+bits+micro/2)%2]
					p := fsdp.Policy{KeepParams: bits&1 > 0, KeepGrads: bits&2 > 0, Prefetch: prefetch, Recompute: recompute, HostActivations: (i+prefetch+bits/2)%2 > 0}
					all = append(all, setup{mesh, p, micro, layers, false, plain})
					if mesh.Shard > 1 && prefetch < 2 {
						all = append(all, setup{mesh, p, micro, layers, true, plain})
					}
					if prefetch < 2 && micro > 1 {
						all = append(all, setup{mesh, p, micro, layers, mesh.Shard > 1, pairs}, setup{mesh, p, micro, layers, false, norms})
					}
				}
			}
		}
	}
	return all
}

// reductions checks the reductions of a step and resets the counts.
func (r *rank) reductions() error {
	each := r.micro
	if r.policy.KeepGrads {
		each = 1
	}
	for _, u := range r.run.Units {
		whole, part := u.Layout.Len(), u.Layout.ShardLen()
		if n := r.shards.reduces[whole]; n != each {
			return fmt.Errorf("%d reductions of unit %s, want %d", n, u.Name, each)
		}
		if n, m := r.replicas.reduces[part], r.replicas.gathers[part]; n != 1 || m != 1 {
			return fmt.Errorf("%d reductions and %d gathers of unit %s between replicas, want 1", n, m, u.Name)
		}
	}
	if len(r.shards.reduces) != len(r.run.Units) || len(r.replicas.reduces) != len(r.run.Units) {
		return fmt.Errorf("reductions of %v and %v elements", r.shards.reduces, r.replicas.reduces)
	}
	clear(r.shards.reduces)
	clear(r.replicas.reduces)
	clear(r.replicas.gathers)
	return nil
}
