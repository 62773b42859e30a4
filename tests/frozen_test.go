package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// frozen returns two jobs: in one, the parameters with one of names in their names are frozen; in
// the other, they are trained but their gradients are discarded. Both divide units alike, since
// block boundaries (every 64 elements) affect the last bit of a norm.
func frozen(t *testing.T, c *spec.Job, names ...string) (still, thrown *spec.Job) {
	t.Helper()
	is := func(p shard.Param) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(p.Name, n) })
	}
	still, thrown = c.Copy(), c.Copy()
	still.Own.Model = spec.Network(c).Frozen(is)
	net := spec.Network(c).Frozen(is)
	for i, m := range net.Modules {
		net.Modules[i] = throwing{m, is}
	}
	thrown.Own.Model = net
	return still, thrown
}

// throwing is a module that discards the gradients of some parameters.
type throwing struct {
	nn.Module
	is func(shard.Param) bool
}

func (m throwing) Params() []shard.Param {
	all := slices.Clone(m.Module.Params())
	for i := range all {
		all[i].Frozen = false
	}
	return all
}

func (m throwing) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, bt *nn.Batch, x, d device.Buffer, s *nn.Saved) {
	m.Module.Backward(q, mem, w, dw, bt, x, d, s)
	for i, p := range m.Params() {
		if m.is(p) {
			q.Zero(dw[i])
		}
	}
}

// frozenIsThrown checks that training with frozen parameters equals, to the bit, training with
// their gradients discarded: losses, norms, parameters and the state of the others. Frozen
// parameters have no state and keep their initial values, in their type. The job must not use
// weight decay, which changes parameters without a gradient.
func frozenIsThrown(t *testing.T, c *spec.Job, names ...string) zerotest.Outcome {
	t.Helper()
	c.Optimizer.WeightDecay = 0
	still, thrown := frozen(t, c, names...)
	got, want := zerotest.Train(t, still, nil), zerotest.Train(t, thrown, nil)
	for name, x := range want.State {
		kind, param, _ := strings.Cut(name, " ")
		if !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(param, n) }) {
			continue
		}
		if kind != zero.Master {
			delete(want.State, name)
			continue
		}
		for i := range x {
			switch c.Precision {
			case device.BF16:
				x[i] = device.WideBF16(device.RoundBF16(x[i]))
			case device.F16:
				x[i] = device.WideF16(device.RoundF16(x[i]))
			}
		}
	}
	if names := slices.Sorted(maps.Keys(got.State)); !slices.Equal(names, want.Names()) {
		t.Fatalf("state %v, want %v", names, want.Names())
	}
	zerotest.SameBits(t, fmt.Sprintf("%v frozen", names), got, want)
	return got
}

// TestEachParameterFrozen checks that any single parameter can be frozen, including one in the
// middle of a unit or in a unit that two modules share.
func TestEachParameterFrozen(t *testing.T) {
	for _, sets := range [][]string{
		{"precision=fp32"}, {"precision=bf16", "model.family=llama", "model.kv_heads=1"}, {"precision=fp32", "model.family=llama", "model.tied=true"},
	} {
		c := cfg(t, append(sets, "model.layers=1", "zero.stage=3", "parallel.ranks=1", "train.steps=2")...)
		for _, p := range spec.Parameters(c) {
			t.Run(fmt.Sprint(sets, p.Name), func(t *testing.T) { t.Parallel(); frozenIsThrown(t, copied(c), p.Name) })
		}
	}
}

func copied(c *spec.Job) *spec.Job { x := *c; return &x }

// manyFrozen lists units to freeze: the first blocks and the embedding, the last block, all
// biases, all matrices of blocks.
var manyFrozen = [][]string{{"wte", "wpe", ".h.0.", ".h.1."}, {".h.2."}, {".bias"}, {".c_attn.", ".c_proj.", ".c_fc."}}

// TestFrozenStagesAgreeToTheBit checks that jobs with frozen units have the same bits at all
// stages, in all precisions and on any number of ranks, within the same classes as others.
func TestFrozenStagesAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for i, names := range manyFrozen {
		for k, sets := range [][]string{
			{"precision=fp32", "parallel.ranks=2"}, {"precision=bf16", "parallel.ranks=3"}, {"precision=fp16", "parallel.ranks=2", "zero.recompute=block"},
			{"precision=bf16", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"},
			{"precision=bf16", "parallel.ranks=2", "train.accumulate=3", "zero.prefetch=0"},
		} {
			if !nightly.Every(2, i+k) {
				continue
			}
			t.Run(fmt.Sprint(names, sets), func(t *testing.T) {
				t.Parallel()
				var want [2]*zerotest.Outcome // by class of sums
				for stage := range 4 {
					if stage == 0 && len(sets) > 3 {
						continue
					}
					got := frozenIsThrown(t, cfg(t, append(sets, fmt.Sprint("zero.stage=", stage), "train.clip=0.5")...), names...)
					class := 0
					if stage > 1 && strings.Contains(fmt.Sprint(sets), "accumulate") {
						class = 1
					}
					if want[class] == nil {
						want[class] = &got
					}
					zerotest.SameBits(t, fmt.Sprint("stage ", stage), got, *want[class])
				}
			})
		}
	}
}

// TestFrozenOffloaded checks the same with any offload, in tiles, and that the bytes on the
// device, the host and the disk equal the plan and the closed forms.
func TestFrozenOffloaded(t *testing.T) {
	nightly.Parallel(t)
	for _, names := range manyFrozen {
		for stage := 1; stage < 4; stage++ {
			for i, way := range append(offloads(t, stage), []string{"zero.prefetch=2"}) {
				if !nightly.Every(5, i+stage) {
					continue
				}
				sets := append([]string{fmt.Sprint("zero.stage=", stage), "parallel.ranks=2", []string{"precision=bf16", "precision=fp32"}[i%2]}, way...)
				t.Run(fmt.Sprint(names, sets), func(t *testing.T) {
					t.Parallel()
					still, _ := frozen(t, cfg(t, sets...), names...)
					resident, _ := frozen(t, cfg(t, sets[:3]...), names...)
					zerotest.SameBits(t, "offloaded", trainWith(t, still, setup.Hooks{Tile: 500}), zerotest.Train(t, resident, nil))
					frozenIsPlanned(t, still)
				})
			}
		}
	}
}

func frozenIsPlanned(t *testing.T, c *spec.Job) {
	t.Helper()
	plan, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	want := formula(c, 0)
	want.Units, want.Peak = unitSizes(spec.Network(c), setup.Rules(c)), plan.Arena // there are no closed forms for activations
	if plan.Device != want.Bytes() || plan.Host != want.Host() || plan.Disk != want.Disk() {
		t.Errorf("planned are %v, %v and %d, by the closed forms %v, %v and %d", plan.Device, plan.Host, plan.Disk, want.Bytes(), want.Host(), want.Disk())
	}
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	steps(t, c, ranks, 2)
	for _, r := range ranks {
		sameBytes(t, "on the device at its peak", r.Device.Usage().Peak, plan.Device)
		if r.Host != nil {
			sameBytes(t, "on the host at its peak", r.Host.Usage().Peak, plan.Host)
		}
		if got := r.Trainer.DiskBytes(); got != plan.Disk {
			t.Errorf("%d bytes on disk, want %d", got, plan.Disk)
		}
	}
}

// TestFrozenResume checks that checkpoints contain frozen parameters with their initial values
// and without state. A run that resumes on other ranks, at another stage or with another offload
// equals one that never stopped.
func TestFrozenResume(t *testing.T) {
	nightly.Parallel(t)
	for _, way := range [][]string{
		{"zero.stage=3", "parallel.ranks=2", "precision=bf16"},
		{"zero.stage=3", "parallel.ranks=2", "precision=bf16", "checkpoint.async=false", "zero.offload.parameters=disk", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
		{"zero.stage=2", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "precision=fp32", "train.accumulate=1"},
	} {
		t.Run(fmt.Sprint(way), func(t *testing.T) {
			dir := t.TempDir()
			job1 := func(dir string, sets ...string) *spec.Job {
				c, _ := frozen(t, saving(t, dir, append(way[:len(way):len(way)], sets...)...), "wte", ".h.0.", ".h.1.mlp")
				return c
			}
			whole, saved := run(t, job1(dir), ""), filepath.Join(dir, "step-00000006")
			straight := digest(t, dir, "6")
			if err := os.RemoveAll(saved); err != nil {
				t.Fatal(err)
			}
			out := run(t, job1(dir, "parallel.timeout=1m"), "3")
			if got := digest(t, dir, "6"); got != straight {
				t.Error("resumed at step 3, step 6 differs")
			}
			if got, want := losses(t, out, 3), losses(t, whole, 3); !slices.Equal(got, want) {
				t.Errorf("resumed %v, want %v", got, want)
			}
			ck, err := checkpoint.Open(saved)
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			for _, p := range spec.Parameters(job1(dir)) {
				has := 0
				for _, kind := range []string{"master", "exp_avg", "exp_avg_sq"} {
					if _, ok := ck.Tensor(p.Name, kind); ok {
						has++
					}
				}
				if want := map[bool]int{true: 1, false: 3}[p.Frozen]; has != want {
					t.Errorf("%s, frozen %v: %d kinds of state", p.Name, p.Frozen, has)
				}
			}
		})
	}
}

// TestFrozenMeasuredIsPlanned checks that a run uses the planned memory at every event of a step:
// frozen units are gathered and have no gradient.
func TestFrozenMeasuredIsPlanned(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{
		{"zero.stage=3", "train.accumulate=3"}, {"zero.stage=1", "train.accumulate=2"}, {"zero.stage=2", "precision=fp32"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
	} {
		for _, names := range manyFrozen {
			c, _ := frozen(t, cfg(t, append(sets, "parallel.ranks=2", "train.steps=2")...), names...)
			seen := &job.Observation{}
			if err := job.Run(t.Context(), c, job.Options{Out: t.TempDir(), Timeline: seen}); err != nil {
				t.Fatal(err)
			}
			m := seen.Plan.Measured
			if m.Allocated != seen.Plan.Allocated || len(m.Timeline) != len(seen.Plan.Timeline) {
				t.Fatalf("%v %v: %d events, planned are %d; %v allocated, planned are %v", sets, names, len(m.Timeline), len(seen.Plan.Timeline), m.Allocated, seen.Plan.Allocated)
			}
			for i, x := range m.Timeline {
				if p := seen.Plan.Timeline[i]; x.InUse != p.InUse {
					t.Errorf("%v %v: %s: %v in use, planned are %v", sets, names, p.Name, x.InUse, p.InUse)
				}
			}
		}
	}
}

// TestAllFrozen checks that freezing the whole model is an error.
func TestAllFrozen(t *testing.T) {
	c, _ := frozen(t, cfg(t), "transformer.")
	if _, err := setup.Open(setup.Local(c)); err == nil || !strings.Contains(err.Error(), "every parameter is frozen") {
		t.Errorf("error %v", err)
	}
}
