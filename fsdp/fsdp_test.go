package fsdp_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

// spoilt is a device whose memory, but for parameters, starts as NaN.
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

// counted is a group that counts its operations by the length of what they are
// on, delays them, and spoils what they leave undefined: the parts that a
// gather is going to fill before it, those that a reduction does not after it.
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

// setup is a case: a policy and all it meets.
type setup struct {
	mesh      shard.Mesh
	policy    fsdp.Policy
	micro     int
	layers    int
	offloaded bool // gradients, and parameters that are not whole, rest on a host
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

// newRank opens a rank, with the oracle's parameters.
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
		Model: m, Units: units, DType: device.F32, Policy: s.policy, Micro: s.micro, ArenaSize: arenaSize,
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

// members are the ranks a unit belongs to: norms are whole on every rank.
func (r *rank) members(unit string) fsdp.Groups {
	if unit == "norms" {
		return fsdp.Groups{Shard: collective.NewLocal(1)[0], Replica: count(r.groups.World, 3)}
	}
	return fsdp.Groups{Shard: r.shards, Replica: r.replicas}
}

// place says what rests on the host, and has memory for the parameters there.
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

// slow is a queue whose copies take a while, and which spoils what they go to
// before.
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

// train is a step on the real schedule, up to the gradients; it returns the
// losses of its micro-batches, end to end.
func (r *rank) train(step int) (loss []float32, err error) {
	for m := range r.micro {
		if err := r.fill(step, m); err != nil {
			return nil, err
		}
		r.run.Forward(&r.batch, true)
		r.run.Backward(&r.batch, m)
		if err := r.compute.Wait(); err != nil {
			return nil, err
		}
		loss = append(loss, r.batch.Loss.F32()...)
	}
	return loss, nil
}

// eval is the losses of a micro-batch.
func (r *rank) eval(step int) ([]float32, error) {
	if err := r.fill(step, 0); err != nil {
		return nil, err
	}
	r.run.Forward(&r.batch, false)
	err := r.compute.Wait()
	return r.batch.Loss.F32(), err
}

func (r *rank) fill(step, micro int) error {
	err := r.compute.Wait()
	tokens(step, r.at, micro, r.batch.Input.I32(), r.batch.Target.I32())
	return err
}

// descend updates every unit as soon as its gradient is reduced, at a pace of
// its own.
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

// sameGradients compares a rank's gradient shards, and their padding to zero.
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

// setups are all policies on several meshes.
func setups(layers int, meshes ...shard.Mesh) (all []setup) {
	for i, mesh := range meshes {
		for _, prefetch := range []int{0, 1, 2, layers + 3} {
			for _, micro := range []int{1, 3} {
				for bits := range 4 {
					recompute := (i+bits+micro/2)%2 > 0
					p := fsdp.Policy{KeepParams: bits&1 > 0, KeepGrads: bits&2 > 0, Prefetch: prefetch, Recompute: recompute}
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

// Losses and gradients of several steps are the oracle's under every policy,
// whatever was in the memory before, with evaluations in between, and with
// updates that come late: the padding of gradients is zero.
func TestStepsAreTheOracles(t *testing.T) {
	for _, s := range setups(4, shard.Mesh{Shard: 3, Replicate: 1}, shard.Mesh{Shard: 1, Replicate: 2}, shard.Mesh{Shard: 2, Replicate: 2}) {
		o := newOracle(s.layers)
		const steps = 3
		var losses, evals [steps][][]float32
		var grads [steps]map[string][]float32
		start := newOracle(s.layers)
		for step := range steps {
			losses[step], grads[step] = o.step(step, s.mesh.World(), s.micro)
			for name, w := range o.p {
				descend(w, grads[step][name])
			}
			evals[step], _ = o.step(step+7, s.mesh.World(), 1)
		}
		onRanks(t, s, start, func(r *rank) error {
			for step := range steps {
				loss, err := r.train(step)
				if err != nil || !slices.Equal(loss, losses[step][r.at]) {
					return fmt.Errorf("step %d: losses %v, want %v (error %v)", step, loss, losses[step][r.at], err)
				}
				r.descend()
				if (step+s.micro)%2 > 0 { // after the others the next pass follows while updates are under way
					if err := r.sameGradients(grads[step]); err != nil {
						return fmt.Errorf("step %d: %w", step, err)
					}
				}
				if step == 1 { // the others are followed by a step at once
					loss, err := r.eval(step + 7)
					if err != nil || !slices.Equal(loss, evals[step][r.at]) {
						return fmt.Errorf("evaluation after step %d: losses %v, want %v (error %v)", step, loss, evals[step][r.at], err)
					}
				}
			}
			return r.update.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

// A unit is gathered as often as its slot loses it. Units with slots of their
// own: once after an update. L units that take turns in S slots: the first
// pass after an update gathers all, every pass in the opposite direction all
// but the S that the pass before left in the slots, and a forward pass after a
// forward pass all but those S of which nothing has taken the slot before
// their turn, which are 2S-L if any. A gradient is reduced between the ranks
// of a shard group once a step if it is kept, else once a micro-batch, and
// between replicas once.
func TestOperationsPerStep(t *testing.T) {
	for _, s := range setups(5, shard.Mesh{Shard: 1, Replicate: 1}, shard.Mesh{Shard: 2, Replicate: 2}) {
		if s.form != plain {
			continue
		}
		L, S := s.layers, s.policy.Prefetch+1
		kept := min(L, S)
		perStep, again := L+(2*s.micro-1)*(L-kept), max(0, min(L, 2*(L-S)))
		if s.policy.KeepParams {
			perStep, again = L, 0
		}
		onRanks(t, s, newOracle(s.layers), func(r *rank) error {
			root := r.run.Units[0].Layout.Len()
			expect := func(when string, roots, turns int) error {
				all := 0
				for _, n := range r.shards.gathers {
					all += n
				}
				if got := r.shards.gathers[root]; got != roots || all-got != turns {
					return fmt.Errorf("%s: %d gathers of the root unit and %d of others, want %d and %d", when, got, all-got, roots, turns)
				}
				clear(r.shards.gathers)
				return nil
			}
			for step := range 2 {
				if _, err := r.train(step); err != nil {
					return err
				}
				if err := expect(fmt.Sprintf("step %d", step), 1, perStep); err != nil {
					return err
				}
				if err := r.reductions(); err != nil {
					return err
				}
				r.descend()
				if err := r.update.Wait(); err != nil {
					return err
				}
			}
			for i, want := range [][2]int{{1, L}, {0, again}, {0, again}} {
				if _, err := r.eval(i); err != nil {
					return err
				}
				if err := expect(fmt.Sprintf("evaluation %d after an update", i), want[0], want[1]); err != nil {
					return err
				}
			}
			return nil
		})
		if t.Failed() {
			return
		}
	}
}

// reductions checks the reductions of a step, and forgets them.
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

// Passes give back all activation memory: many use as much as one.
func TestPassesBalanceTheArena(t *testing.T) {
	for _, recompute := range []bool{false, true} {
		s := setup{shard.Mesh{Shard: 1, Replicate: 1}, fsdp.Policy{Recompute: recompute, Prefetch: 1}, 1, 4, false, plain}
		onRanks(t, s, newOracle(s.layers), func(r *rank) error {
			const stream = rows * width * 4 // bytes of x; an arena rounds up to 64
			const each = (stream + 63) / 64 * 64
			want := (1 + 1 + 4 + 4) * each // gradient, every module's y but the head's, what layers save
			if recompute {
				want -= 3 * each // the head's backward needs none, a layer's its own
			}
			for step := range 5 {
				if _, err := r.train(step); err != nil {
					return err
				}
				if _, err := r.eval(step); err != nil {
					return err
				}
				if got := r.run.ArenaPeak(); got != want {
					return fmt.Errorf("%d bytes of activations after %d passes, want %d", got, 3*(step+1), want)
				}
			}
			return nil
		})
	}
}

// A runner that only runs forward has no memory for gradients.
func TestForwardOnly(t *testing.T) {
	o := newOracle(3)
	want, _ := o.step(2, 2, 1)
	for _, keep := range []bool{false, true} {
		s := setup{shard.Mesh{Shard: 2, Replicate: 1}, fsdp.Policy{KeepParams: keep, KeepGrads: keep, Prefetch: 1}, 0, 3, keep, plain}
		onRanks(t, s, o, func(r *rank) error {
			if live := r.dev.Usage().Live; live[device.Grads]+live[device.UnitGrads] > 0 {
				return fmt.Errorf("%d bytes for gradients", live[device.Grads]+live[device.UnitGrads])
			}
			if loss, err := r.eval(2); err != nil || !slices.Equal(loss, want[r.at]) {
				return fmt.Errorf("losses %v, want %v (error %v)", loss, want[r.at], err)
			}
			return nil
		})
	}
}

// Units come in the order of their first use, cut for the shard group into
// multiples of Align that the replicas can divide again.
func TestUnits(t *testing.T) {
	s := setup{shard.Mesh{Shard: 2, Replicate: 3}, fsdp.Policy{}, 1, 2, false, plain}
	onRanks(t, s, newOracle(s.layers), func(r *rank) error {
		var names []string
		for _, u := range r.run.Units {
			names = append(names, u.Name)
			l := u.Layout
			if l.World != 2 || l.ShardLen()%(3*fsdp.Align) != 0 || l.ShardLen()-3*fsdp.Align >= l.Numel() || u.Param.N != l.ShardLen() || u.Grad.N != l.ShardLen() {
				return fmt.Errorf("unit %s of %d elements: %d shards of %d, parameter %d, gradient %d", u.Name, l.Numel(), l.World, l.ShardLen(), u.Param.N, u.Grad.N)
			}
		}
		if want := []string{"root", "h.0", "h.1"}; !slices.Equal(names, want) {
			return fmt.Errorf("units %v, want %v", names, want)
		}
		return nil
	})
}

// A step that uses two units gathers both; units of a step that take turns have
// slots apart, norms are one unit that every rank has whole. A frozen unit has no
// gradient, and nothing of it is reduced.
func TestUnitsOfAStep(t *testing.T) {
	policy := fsdp.Policy{Prefetch: 1}
	for f, want := range map[form][]string{
		plain: {"root", "h.0", "h.1", "h.2"}, pairs: {"root", "h.0", "g.0", "h.1", "g.1", "h.2", "g.2"}, norms: {"root", "h.0", "norms", "h.1", "h.2"},
	} {
		s := setup{shard.Mesh{Shard: 2, Replicate: 2}, policy, 1, 3, false, f}
		onRanks(t, s, newOracle(s.layers), func(r *rank) error {
			var names []string
			gathered := 2 * r.run.Units[0].Layout.Len() // with the root's gradient
			for _, u := range r.run.Units {
				names = append(names, u.Name)
				shards, replicas := 2, 2
				if u.Name == "norms" {
					shards, replicas = 1, 4
					gathered += 2 * u.Layout.Len()
				}
				if u.Shard.Size() != shards || u.Replica.Size() != replicas || u.Param.N != u.Layout.Len()/shards || u.Grad.N != u.Param.N {
					return fmt.Errorf("unit %s of %d elements: %d shards and %d replicas, parameter %d, gradient %d", u.Name, u.Layout.Len(), u.Shard.Size(), u.Replica.Size(), u.Param.N, u.Grad.N)
				}
			}
			for _, own := range []string{"h.", "g."} { // two slots each of parameters and of gradients, by the longest
				var most [2]int
				turn := 0
				for _, u := range r.run.Units {
					if strings.HasPrefix(u.Name, own) {
						most[turn%2] = max(most[turn%2], u.Layout.Len())
						turn++
					}
				}
				gathered += 2 * (most[0] + most[1])
			}
			live := r.dev.Usage().Live
			if got := int(live[device.Gathered]+live[device.UnitGrads]) / 4; got != gathered || !slices.Equal(names, want) {
				return fmt.Errorf("units %v, %d elements in slots; want %v, %d", names, got, want, gathered)
			}
			return nil
		})
	}
}

// A frozen unit is gathered and used, and has neither gradient nor reduction.
func TestFrozenUnit(t *testing.T) {
	m := toyOf(2, pairs)
	for i, mod := range m.Modules {
		if l, ok := mod.(layer); ok {
			m.Modules[i] = frozen{l}
		}
	}
	for bits := range 4 {
		policy := fsdp.Policy{KeepParams: bits&1 > 0, KeepGrads: bits&2 > 0, Prefetch: 1}
		group := count(collective.NewLocal(1)[0], 1)
		units := fsdp.LayOut(m, policy, 1, func(string) fsdp.Groups {
			return fsdp.Groups{Shard: group, Replica: collective.NewLocal(1)[0]}
		})
		dev := cpu.NewHost(1)
		compute, comm := dev.NewQueue("compute"), dev.NewQueue("comm")
		run, err := fsdp.New(fsdp.Config{Device: spoilt{dev}, Compute: compute, Comm: comm, Model: m, Units: units, DType: device.F32, Policy: policy, Micro: 2, ArenaSize: arenaSize})
		if err != nil {
			t.Fatal(err)
		}
		batch := nn.Batch{B: 2, T: 3, Input: device.OfI32(make([]int32, rows)), Target: device.OfI32(make([]int32, rows)), Loss: device.OfF32(make([]float32, rows)), Scale: 1, Compute: device.F32}
		for micro := range 2 {
			run.Forward(&batch, true)
			run.Backward(&batch, micro)
		}
		if err := errors.Join(compute.Wait(), comm.Wait()); err != nil {
			t.Fatal(err)
		}
		for _, u := range run.Units {
			reduced := group.reduces[u.Layout.Len()] > 0
			if still := strings.HasPrefix(u.Name, "h."); u.Frozen != still || reduced == still || (u.Grad.N == 0) != still || u.Param.N == 0 {
				t.Errorf("policy %+v: unit %s frozen %v: gradient of %d, reduced %v", policy, u.Name, u.Frozen, u.Grad.N, reduced)
			}
		}
		compute.Close()
		comm.Close()
		run.Free()
		dev.Close()
	}
}

// frozen is a layer whose u is.
type frozen struct{ layer }

func (l frozen) Params() []shard.Param {
	all := l.layer.Params()
	all[0].Frozen = true
	return all
}

// heard listens to a rank.
type heard struct {
	count  [16]int // of each op
	passes []string
	inside bool // a pass is begun and not done
	height int
	sent   int64
	err    error
}

func (h *heard) Event(e fsdp.Event) {
	h.sent += e.Sent
	if e.Op > fsdp.Backward {
		h.count[e.Op]++
		if e.Step != -1 || e.Queue == nil || len(e.Units) != 1 {
			h.err = fmt.Errorf("%v with %+v", e.Op, e)
		}
		return
	}
	if e.Done != h.inside {
		h.err = fmt.Errorf("%v of step %d: done is %v, inside a pass %v", e.Op, e.Step, e.Done, h.inside)
	}
	if h.inside = !e.Done; h.inside {
		h.passes = append(h.passes, fmt.Sprintf("%v %d %s", e.Op, e.Step, e.Units[0].Name))
	}
}

func (h *heard) Arena(_ string, height int) { h.height = height }

// A listener hears every operation: passes in order, each begun and ended, what
// is exchanged as often as groups are asked to, and the arena down to its floor.
func TestListener(t *testing.T) {
	for _, recompute := range []bool{false, true} {
		s := setup{shard.Mesh{Shard: 2, Replicate: 2}, fsdp.Policy{Prefetch: 1, Recompute: recompute}, 2, 3, true, plain}
		onRanks(t, s, newOracle(s.layers), func(r *rank) error {
			if _, err := r.train(0); err != nil {
				return err
			}
			if err := r.comm.Wait(); err != nil {
				return err
			}
			total := func(m map[int]int) (n int) {
				for _, x := range m {
					n += x
				}
				return n
			}
			h, units := r.heard, len(r.run.Units)
			want := map[fsdp.Op]int{
				fsdp.Gather: total(r.shards.gathers), fsdp.Reduce: total(r.shards.reduces), fsdp.Replicate: total(r.replicas.reduces),
				fsdp.ToHost: 2 * units, fsdp.FromHost: units,
			}
			for op, n := range want {
				if h.count[op] != n || n == 0 {
					return fmt.Errorf("%d events of %v, want %d", h.count[op], op, n)
				}
			}
			var sent int64
			for n, times := range r.shards.gathers {
				sent += int64(4 * n / 2 * times)
			}
			for n, times := range r.shards.reduces {
				sent += int64(4 * n / 2 * times)
			}
			for n, times := range r.replicas.reduces {
				sent += int64(2 * 4 * n / 2 * times)
			}
			var micro []string
			for i, name := range []string{"root", "h.0", "h.1", "h.2", "root"} {
				micro = append(micro, fmt.Sprintf("forward %d %s", i, name))
			}
			for i := 4; i >= 0; i-- {
				name := []string{"root", "h.0", "h.1", "h.2", "root"}[i]
				if recompute && i > 0 && i < 4 {
					micro = append(micro, fmt.Sprintf("recompute %d %s", i, name))
				}
				micro = append(micro, fmt.Sprintf("backward %d %s", i, name))
			}
			if want := append(micro, micro...); h.err != nil || !slices.Equal(h.passes, want) || h.height != 0 || h.inside || h.sent != sent {
				return fmt.Errorf("heard %v, height %d, %d bytes sent, error %v; want %v, %d bytes", h.passes, h.height, h.sent, h.err, want, sent)
			}
			return nil
		})
	}
}

// full is a device that has no memory left after some allocations.
type full struct {
	*cpu.Device
	left int
}

var errFull = errors.New("out of memory")

func (d *full) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	if d.left == 0 {
		return device.Buffer{}, errFull
	}
	d.left--
	return d.Device.Alloc(t, n, use)
}

// New fails if any allocation does, and holds nothing then.
func TestAllocationFails(t *testing.T) {
	for bits := range 4 {
		for n := 0; ; n++ {
			dev := &full{cpu.NewHost(1), n}
			compute, comm := dev.NewQueue("compute"), dev.NewQueue("comm")
			m, policy := toy(3), fsdp.Policy{KeepParams: bits&1 > 0, KeepGrads: bits&2 > 0, Prefetch: 1}
			units := fsdp.LayOut(m, policy, 1, func(string) fsdp.Groups {
				return fsdp.Groups{Shard: collective.Dry{Of: 2}, Replica: collective.Dry{Of: 1}}
			})
			run, err := fsdp.New(fsdp.Config{
				Device: dev, Compute: compute, Comm: comm,
				Model: m, Units: units, DType: device.F32, Policy: policy, Micro: 2, ArenaSize: arenaSize,
			})
			if (run == nil) != (err != nil) || err != nil && (!errors.Is(err, errFull) || !strings.HasPrefix(err.Error(), "fsdp: ")) {
				t.Errorf("allocation %d fails: %v", n, err)
			}
			if run != nil {
				run.Free()
			}
			if live := dev.Usage().Live.Total(); live != 0 {
				t.Errorf("%d bytes held after allocation %d failed or Free", live, n)
			}
			compute.Close()
			comm.Close()
			dev.Close()
			if run != nil {
				if n < 7 {
					t.Errorf("only %d allocations", n)
				}
				break
			}
		}
	}
}
