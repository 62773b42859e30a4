package fsdp_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/shard"
)

// TestStepsAreTheOracles compares losses and gradients of several steps with the oracle's under
// every policy, with arbitrary initial memory, evaluations in between, and delayed updates. The
// padding of gradients must be zero.
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
				if (step+s.micro)%2 > 0 { // in the other cases the next pass follows while updates are in progress
					if err := r.sameGradients(grads[step]); err != nil {
						return fmt.Errorf("step %d: %w", step, err)
					}
				}
				if step == 1 { // in the other cases a step follows immediately
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

// TestOperationsPerStep counts operations. A unit is gathered whenever its slot was reused. Units
// with their own slots are gathered once after an update. For L units in rotation over S slots, the
// first pass after an update gathers all of them; every pass in the opposite direction all but the
// S still in slots; and a forward pass after a forward pass all but those of the S whose slot was
// not reused before their turn, 2S-L if positive. A gradient is reduced within a shard group once
// per step if it is kept, else once per micro-batch, and once across replicas.
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

// TestPassesBalanceTheArena checks that passes release all activation memory: many use as much as
// one.
func TestPassesBalanceTheArena(t *testing.T) {
	for _, recompute := range []nn.Recompute{nn.RecomputeNone, nn.RecomputeBlock} {
		s := setup{shard.Mesh{Shard: 1, Replicate: 1}, fsdp.Policy{Recompute: recompute, Prefetch: 1}, 1, 4, false, plain}
		onRanks(t, s, newOracle(s.layers), func(r *rank) error {
			const stream = rows * width * 4 // bytes of x; an arena rounds up to 64
			const each = (stream + 63) / 64 * 64
			want := (1 + 4 + 4) * each // every module's y except the head's, and what layers save
			if recompute > nn.RecomputeNone {
				want -= 3 * each // the head's backward needs none, a layer's only its own
			}
			for step := range 5 {
				if _, err := r.train(step); err != nil {
					return err
				}
				if _, err := r.eval(step); err != nil {
					return err
				}
				if got := r.run.Peaks()[0]; got != want {
					return fmt.Errorf("%d bytes of activations after %d passes, want %d", got, 3*(step+1), want)
				}
			}
			return nil
		})
	}
}

// TestForwardOnly checks that a runner for forward passes has no memory for gradients.
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

// TestUnits checks that units are in order of first use, with shards that are multiples of Align
// and that the replicas can divide again.
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

// TestUnitsOfAStep checks steps with two units: both are gathered, and rotating units have separate
// slots. Norms form one unit that every rank holds whole. A frozen unit has no gradient and
// is not reduced.
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
			for _, own := range []string{"h.", "g."} { // two slots each for parameters and gradients, of the longest length
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

// TestFrozenUnit checks that a frozen unit is gathered and used, but has no gradient and no
// reduction.
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
		units := fsdp.LayOut(m, policy, 1, func(nn.Unit) fsdp.Groups {
			return fsdp.Groups{Shard: group, Replica: collective.NewLocal(1)[0]}
		})
		dev := cpu.NewHost(1)
		compute, comm := dev.NewQueue("compute"), dev.NewQueue("comm")
		run, err := fsdp.New(fsdp.Config{Device: spoilt{dev}, Compute: compute, Comm: comm, Model: m, Units: units, DType: device.F32, Policy: policy, Micro: 2, Streams: 1, Arenas: []int{arenaSize, arenaSize}})
		if err != nil {
			t.Fatal(err)
		}
		batch := nn.Batch{B: 2, T: 3, Input: device.OfI32(make([]int32, rows)), Target: device.OfI32(make([]int32, rows)), Loss: device.OfF32(make([]float32, rows)), Scale: 1, Compute: device.F32}
		run.Begin()
		d := run.OpenStream(0, rows)
		for micro := range 2 {
			run.Forward(run.Flight(0, 0), &batch, micro, device.Buffer{}, true)
			run.Backward(run.Flight(0, 0), &batch, micro, d)
		}
		run.End()
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

// frozen is a layer whose u is frozen.
type frozen struct{ layer }

func (l frozen) Params() []shard.Param {
	all := l.layer.Params()
	all[0].Frozen = true
	return all
}

// heard records the events of a rank.
type heard struct {
	count  [21]int // of each op
	inUse  map[string]int64
	passes []string
	inside bool // between the begin and the end of a pass
	height int
	sent   int64
	err    error
}

func (h *heard) Event(e fsdp.Event) {
	h.sent += e.Sent
	if e.Op > fsdp.Backward {
		h.count[e.Op]++
		if e.Op == fsdp.InUse {
			if h.inUse == nil {
				h.inUse = map[string]int64{}
			}
			of := e.Units[0].Name + ": " + e.Use.String()
			if h.inUse[of] += e.Bytes; h.inUse[of] < 0 || e.Bytes == 0 {
				h.err = fmt.Errorf("%d bytes more of %s make %d", e.Bytes, of, h.inUse[of])
			}
		}
		if e.Step != -1 || len(e.Units) != 1 {
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

func (h *heard) Arena(_ int, _ string, height int) { h.height = height }

// TestListener checks that every operation is reported: passes in order with begin and end, as many
// exchanges as groups execute, and the arena down to its floor.
func TestListener(t *testing.T) {
	for _, recompute := range []nn.Recompute{nn.RecomputeNone, nn.RecomputeBlock} {
		s := setup{shard.Mesh{Shard: 2, Replicate: 2}, fsdp.Policy{Prefetch: 1, Recompute: recompute, HostActivations: true}, 2, 3, true, plain}
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
				fsdp.SendKept: 2 * 4, fsdp.BringKept: 2 * 1, // of four outputs, the last three are still on the device
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
				if recompute > nn.RecomputeNone && i > 0 && i < 4 {
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

// full is a device that runs out of memory after some allocations.
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

// TestAllocationFails checks that New fails if any allocation does, and then holds nothing.
func TestAllocationFails(t *testing.T) {
	for bits := range 4 {
		for n := 0; ; n++ {
			dev := &full{cpu.NewHost(1), n}
			compute, comm := dev.NewQueue("compute"), dev.NewQueue("comm")
			m, policy := toy(3), fsdp.Policy{KeepParams: bits&1 > 0, KeepGrads: bits&2 > 0, Prefetch: 1}
			units := fsdp.LayOut(m, policy, 1, func(nn.Unit) fsdp.Groups {
				return fsdp.Groups{Shard: collective.Dry{Of: 2}, Replica: collective.Dry{Of: 1}}
			})
			run, err := fsdp.New(fsdp.Config{
				Device: dev, Compute: compute, Comm: comm,
				Model: m, Units: units, DType: device.F32, Policy: policy, Micro: 2, Streams: 1, Arenas: []int{arenaSize, arenaSize},
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
