package tests

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"

	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// formula returns the closed form for a job with tiles of tile elements.
func formula(c *spec.Job, tile int) footprint {
	units, peak := gpt2Sizes(c)
	if c.Model.Family == "llama" {
		units, peak = llamaSizes(c)
	}
	f32 := device.F32
	vecs := map[string][][]device.DType{"adamw": {{f32, f32}}, "lion": {{f32}}, "sgd": {{f32}}, "adamw8bit": {{device.Q8, device.U8}}, "muon": {{f32, f32}, {f32}}}[c.Optimizer.Type]
	if slices.Contains([]string{"adamw8bit", "muon"}, c.Optimizer.Type) { // including gaps between parameters; divided
		units = unitSizes(spec.Network(c), setup.Rules(c))
	}
	if c.Optimizer.Type == "muon" {
		m, n := c.Model.Width, max(4*c.Model.Width, c.Model.FFN) // matrix of the MLP
		if c.Model.Family == "llama" {
			m, n = min(m, c.Model.FFN), max(m, c.Model.FFN)
		}
		for i := range units {
			if units[i].Rule == 1 {
				units[i].Matrix = [2]int{m, n}
			}
		}
	}
	return footprint{
		Units: units, Mesh: spec.Mesh(c), Policy: zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, spec.Recompute(c)), DType: c.Precision,
		Vecs: vecs, Micro: c.Train.Accumulate, Rows: c.Train.MicroBatch * c.Model.Context, Packed: c.Data.Pack, Delayed: c.Train.Delayed, Peak: peak, Work: deviceWork(c), HostWork: hostWork(c),
		Separate: cpu.Separate, Offload: offloadSizes{Optimizer: restsAt(c.Zero.Offload.Optimizer), Params: restsAt(c.Zero.Offload.Parameters), Ratio: c.Zero.Offload.Ratio, Buffers: c.Zero.Offload.Buffers, Tile: tile},
	}
}

// deviceWork returns the bytes of device memory for the kernels of a rank's queues.
func deviceWork(c *spec.Job) int64 {
	m := c.Model
	s := device.Sizes{
		Type: c.Precision, Rows: c.Train.MicroBatch * m.Context, Width: max(m.Width, m.Heads*m.Head()), Vocab: m.Vocab,
		Attn: device.Attn{T: m.Context, D: m.Head(), Cap: float32(m.CapScores)}, Rope: spec.Network(c).Rotated, Whole: c.Optimizer.Type == "muon",
	}
	for _, p := range spec.Parameters(c) {
		s.Widest = max(s.Widest, slices.Max(p.Shape))
	}
	if c.On() == "cuda" {
		return cuda.Workspace(s)
	}
	queues := 3 // of modules, collectives and updates
	if setup.Saves(c) {
		queues++
	}
	if c.Parallel.Pipeline > 1 {
		queues += 4 // links
	}
	return cpu.Workspace(setup.Workers(c), queues, s)
}

// hostWork returns the bytes of host memory for the kernels of a rank's queues.
func hostWork(c *spec.Job) int64 {
	queues := 3 // for updates, copies to the host and copies to the device
	if c.On() == "cuda" {
		queues = 1 // the GPU copies
	}
	if c.Zero.Offload.Disk() {
		queues += 2
	}
	return cpu.Workspace(setup.Workers(c), queues, device.Sizes{})
}

func restsAt(name string) offload.Tier {
	return map[string]offload.Tier{"none": offload.Device, "host": offload.Host, "disk": offload.Disk}[name]
}

// llamaSizes returns the units and the peak activation bytes of a Llama.
func llamaSizes(c *spec.Job) (units []unitSize, peak int) {
	m := c.Model
	l := m.Llama
	l.Shape = m.Shape
	w, kv := l.Width, l.Width/l.Heads*l.KV
	ends := []unitSize{{Numel: l.Vocab * w, Lookup: true}, {Numel: l.Vocab*w + w}}
	if m.Tied {
		ends = []unitSize{{Numel: l.Vocab*w + w, Shared: true}}
	}
	units = append(units, ends[0])
	for range l.Layers {
		units = append(units, unitSize{Numel: 2*w*w + 2*w*kv + 3*w*l.FFN + 2*w})
	}
	units = append(units, ends[1:]...)
	return units, llamaActivations(l, c.Precision, m.Context*c.Train.MicroBatch, c.Train.LossChunk, c.Train.MLPChunk, spec.Recompute(c))
}

// gpt2Sizes returns the units and the peak activation bytes of a GPT-2.
func gpt2Sizes(c *spec.Job) (units []unitSize, peak int) {
	g := nn.GPT2{Shape: nn.Shape{Layers: c.Model.Layers, Heads: c.Model.Heads, Width: c.Model.Width, Context: c.Model.Context, Vocab: c.Model.Vocab}}
	w, rows := g.Width, c.Train.MicroBatch*c.Model.Context
	units = []unitSize{{Numel: (g.Vocab+g.Context)*w + 2*w, Shared: true}}
	for range g.Layers {
		units = append(units, unitSize{Numel: 12*w*w + 13*w})
	}
	g.Dropout.Residual = c.Model.Dropout.Residual
	return units, gpt2Activations(g, c.Precision, rows, c.Train.LossChunk, c.Train.MLPChunk, spec.Recompute(c))
}

var memoryJobs = [][]string{
	{"zero.stage=0", "parallel.ranks=1", "precision=fp32"},
	{"zero.stage=0", "parallel.ranks=3", "precision=bf16", "train.accumulate=2"},
	{"zero.stage=1", "parallel.ranks=2", "precision=bf16"},
	{"zero.stage=1", "parallel.ranks=4", "precision=fp16", "train.accumulate=3", "zero.recompute=block"},
	{"zero.stage=2", "parallel.ranks=4", "precision=bf16", "zero.prefetch=0"},
	{"zero.stage=2", "parallel.ranks=3", "precision=fp32", "train.accumulate=2", "optimizer.type=lion"},
	{"zero.stage=3", "parallel.ranks=1", "precision=bf16"},
	{"zero.stage=3", "parallel.ranks=4", "precision=bf16", "zero.prefetch=2", "model.layers=7"},
	{"zero.stage=3", "parallel.ranks=4", "precision=fp32", "zero.recompute=block", "train.loss_chunk=5"},
	{"zero.stage=3", "parallel.ranks=6", "parallel.shard=3", "parallel.replicate=2", "precision=bf16"},
	{"zero.stage=1", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "precision=fp32", "train.accumulate=2"},
	{"zero.stage=3", "parallel.ranks=2", "precision=fp16", "optimizer.type=sgd", "train.micro_batch=3"},
	{"zero.stage=3", "parallel.ranks=3", "precision=bf16", "optimizer.type=adamw8bit", "device=cpu", "train.accumulate=2"},
	{"zero.stage=1", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "precision=fp32", "optimizer.type=adamw8bit", "device=cpu"},
	{"zero.stage=0", "parallel.ranks=1", "optimizer.type=adamw8bit", "device=cpu", "model.family=llama"},
	{"zero.stage=3", "parallel.ranks=3", "precision=bf16", "optimizer.type=muon", "train.accumulate=2"},
	{"zero.stage=2", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2", "precision=fp32", "optimizer.type=muon", "zero.prefetch=0"},
	{"zero.stage=1", "parallel.ranks=2", "precision=fp32", "optimizer.type=muon", "model.layers=2"},
	{"zero.stage=0", "parallel.ranks=2", "precision=fp16", "optimizer.type=muon", "model.family=llama", "model.kv_heads=1"},
	{"zero.stage=3", "parallel.ranks=2", "precision=bf16", "model.dropout=0.1", "model.attention_dropout=0.1", "zero.recompute=block"},
	{"zero.stage=1", "parallel.ranks=2", "precision=fp32", "model.dropout=0.1"},
	{"model.family=llama", "zero.stage=2", "parallel.ranks=2", "precision=bf16", "model.dropout=0.1"},
	{"model.family=llama", "zero.stage=0", "parallel.ranks=1", "precision=fp32"},
	{"model.family=llama", "model.kv_heads=1", "zero.stage=3", "parallel.ranks=3", "precision=bf16", "zero.recompute=block", "model.ffn=100"},
	{"model.family=llama", "model.kv_heads=1", "zero.stage=2", "parallel.ranks=2", "precision=bf16", "train.accumulate=2", "train.loss_chunk=3"},
	{"model.family=llama", "model.tied=true", "zero.stage=3", "parallel.ranks=4", "precision=fp16", "zero.prefetch=2"},
	{"model.family=llama", "model.layers=4", "model.vocab=3000", "zero.stage=3", "parallel.ranks=4", "precision=bf16", "train.accumulate=3"},
	{"model.family=llama", "model.layers=4", "model.vocab=3000", "zero.stage=3", "parallel.ranks=2", "zero.prefetch=2", "train.accumulate=2"},
	{"model.family=llama", "model.layers=1", "model.vocab=3000", "zero.stage=3", "parallel.ranks=2", "zero.prefetch=4", "train.accumulate=2"},
	{"model.family=llama", "model.layers=2", "model.vocab=3000", "zero.stage=2", "parallel.ranks=2", "precision=fp32", "train.accumulate=2"},
	{"model.family=llama", "model.layers=4", "model.vocab=3000", "zero.stage=1", "parallel.ranks=2", "precision=bf16", "train.accumulate=2"},
	{"data.text=", "data.documents=[testdata/documents.jsonl]", "data.pack=true", "zero.stage=3", "parallel.ranks=2", "train.accumulate=3"},
	{"zero.stage=0", "parallel.ranks=2", "precision=fp32", "train.delayed_update=true"},
	{"zero.stage=3", "parallel.ranks=2", "precision=fp32", "train.delayed_update=true", "train.accumulate=2"},
	{"zero.stage=2", "parallel.ranks=2", "precision=bf16", "train.delayed_update=true", "optimizer.type=lion"},
	{"model.family=llama", "model.tied=true", "model.vocab=5000", "zero.stage=1", "parallel.ranks=2", "precision=bf16", "zero.recompute=block"},
	{"model.family=llama", "model.layers=3", "zero.stage=1", "parallel.ranks=2", "precision=bf16", "zero.recompute=elementwise"},
	{"model.family=llama", "model.layers=3", "zero.stage=2", "parallel.ranks=2", "precision=fp32", "zero.recompute=mlp", "train.accumulate=2"},
	{"model.family=llama", "model.layers=3", "model.kv_heads=1", "zero.stage=3", "parallel.ranks=2", "precision=bf16", "zero.recompute=linear"},
	{"model.layers=3", "zero.stage=1", "parallel.ranks=2", "precision=bf16", "zero.recompute=elementwise"},
	{"model.layers=3", "zero.stage=0", "parallel.ranks=2", "precision=fp32", "zero.recompute=mlp"},
	{"model.layers=3", "zero.stage=3", "parallel.ranks=2", "precision=fp16", "zero.recompute=linear", "train.accumulate=2"},
	{"model.layers=3", "zero.stage=3", "parallel.ranks=2", "precision=bf16", "zero.recompute=linear", "train.mlp_chunk=3"},
	{"model.family=llama", "model.layers=3", "zero.stage=1", "parallel.ranks=2", "precision=bf16", "zero.recompute=mlp", "train.mlp_chunk=1"},
	{"model.family=llama", "model.layers=3", "zero.stage=3", "parallel.ranks=2", "precision=fp32", "zero.recompute=block", "train.mlp_chunk=5"},
}

var offloadJobs = [][]string{
	{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "train.accumulate=2"},
	{"zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5", "precision=fp32"},
	{"zero.stage=1", "zero.offload.optimizer=host", "train.accumulate=2"},
	{"zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5", "precision=fp32", "train.delayed_update=true", "device=cpu"},
	{"zero.stage=3", "zero.offload.parameters=host", "parallel.ranks=6", "parallel.replicate=2"},
	{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=."},
	{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.path=.", "optimizer.type=adamw8bit", "device=cpu", "train.accumulate=2"},
	{"zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5", "optimizer.type=adamw8bit", "device=cpu", "precision=fp32"},
	{"zero.stage=3", "zero.offload.parameters=host", "optimizer.type=muon", "train.accumulate=2"},
	{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.ratio=0.5", "optimizer.type=muon", "train.accumulate=2"},
	{"zero.stage=2", "zero.offload.optimizer=disk", "zero.offload.path=.", "optimizer.type=muon"},
}

// TestAllocatedIsPlannedIsFormula checks that a job's bytes in each category equal the closed
// forms, a dry run's counts, and the allocator's counts on every rank, before the first step,
// after steps and at the peak.
func TestAllocatedIsPlannedIsFormula(t *testing.T) {
	for _, sets := range memoryJobs {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			c := cfg(t, sets...)
			f, err := setup.DryRun(setup.Planned(c))
			if err != nil {
				t.Fatal(err)
			}
			plan, arena := f.Device, f.Arena
			sameBytes(t, "planned", plan, formula(c, 0).Bytes())
			ranks, err := setup.Open(setup.Local(c))
			if err != nil {
				t.Fatal(err)
			}
			defer zerotest.CloseAll(ranks)
			for _, r := range ranks {
				sameBytes(t, fmt.Sprintf("rank %d before step 1", r.Rank), r.Device.Usage().Live, plan)
			}
			steps(t, c, ranks, 2)
			for _, r := range ranks {
				u := r.Device.Usage()
				sameBytes(t, fmt.Sprintf("rank %d after steps", r.Rank), u.Live, plan)
				sameBytes(t, fmt.Sprintf("rank %d at its peak", r.Rank), u.Peak, plan)
				if got, _ := r.Trainer.ArenaPeak(); got != arena {
					t.Errorf("rank %d used %d bytes of its arena of %d", r.Rank, got, arena)
				}
			}
		})
	}
}

// TestOffloadedIsPlannedIsFormula checks the same for the device, the host and the disk with
// every kind of offload.
func TestOffloadedIsPlannedIsFormula(t *testing.T) {
	nightly.Parallel(t)
	for n, sets := range memoryJobs {
		if slices.Contains(sets, "train.delayed_update=true") {
			continue // offloads little; see offloadJobs
		}
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			stage := cfg(t, sets...).Zero.Stage
			for i, way := range offloads(t, stage) {
				if !nightly.Every(8, n+i) {
					continue
				}
				c := cfg(t, append(append(slices.Clone(sets), way...), fmt.Sprintf("zero.offload.buffers=%d", 1+i%5))...)
				offloadedIsPlanned(t, fmt.Sprint(way), c, 500*(i%2))
			}
		})
	}
}

func offloadedIsPlanned(t *testing.T, way string, c *spec.Job, tile int) {
	t.Helper()
	want, hooks := formula(c, tile), setup.Hooks{Tile: tile}
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, hooks))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	steps(t, c, ranks, 1)
	for _, r := range ranks {
		dev, host := r.Device.Usage(), r.Host.Usage()
		sameBytes(t, way+" on the device", dev.Live, want.Bytes())
		sameBytes(t, way+" on the device at its peak", dev.Peak, want.Bytes())
		sameBytes(t, way+" on the host", host.Live, want.Host())
		sameBytes(t, way+" on the host at its peak", host.Peak, want.Host())
		if got := r.Trainer.DiskBytes(); got != want.Disk() {
			t.Errorf("%s: %d bytes on disk, want %d", way, got, want.Disk())
		}
	}
	if tile > 0 {
		return // Footprint ignores hooks
	}
	if f, err := setup.DryRun(setup.Planned(c)); err != nil || f.Device != want.Bytes() || f.Host != want.Host() || f.Disk != want.Disk() {
		t.Errorf("%s: planned %+v (%v), want %v, %v and %d", way, f, err, want.Bytes(), want.Host(), want.Disk())
	}
}

// TestSaverIsPlanned checks the same for a job that saves checkpoints.
func TestSaverIsPlanned(t *testing.T) {
	for _, async := range []string{"true", "false"} {
		c := cfg(t, "parallel.ranks=2", "zero.stage=2", "checkpoint.every=1", "checkpoint.async="+async)
		plan, err := setup.DryRun(setup.Planned(c))
		if err != nil {
			t.Fatal(err)
		}
		j := setup.Local(c)
		ranks, err := setup.Open(j)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := state.OpenSavers(j, ranks); err != nil {
			t.Fatal(err)
		}
		for _, r := range ranks {
			sameBytes(t, "async "+async, r.Device.Usage().Live, plan.Device)
		}
		zerotest.CloseAll(ranks)
	}
}

// TestCloseFreesEverything checks that closing a rank frees what New allocated.
func TestCloseFreesEverything(t *testing.T) {
	c := cfg(t, "parallel.ranks=3", "zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=host", "zero.offload.path="+t.TempDir())
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	steps(t, c, ranks, 1)
	zerotest.CloseAll(ranks)
	for _, r := range ranks {
		sameBytes(t, fmt.Sprintf("rank %d closed", r.Rank), r.Device.Usage().Live, device.Bytes{})
		sameBytes(t, fmt.Sprintf("host of rank %d closed", r.Rank), r.Host.Usage().Live, device.Bytes{})
	}
	if left, err := os.ReadDir(c.Zero.Offload.Path); err != nil || len(left) > 0 {
		t.Errorf("%v is left on the disk (%v)", left, err)
	}
}

// TestModelStatesFollowTheZeROTable checks the states of the ZeRO paper's table for a model so
// large that padding, slots and activations are negligible: per parameter 2 bytes of bf16, 4 of
// gradient, and 12 of master copy and two moments. Stage 3 casts the 2 bytes from the master copy.
func TestModelStatesFollowTheZeROTable(t *testing.T) {
	const n, world = 1 << 40, 64
	var units []unitSize
	for range 1 << 10 {
		units = append(units, unitSize{Numel: n >> 10})
	}
	for stage, want := range []float64{2 + 4 + 12, 2 + 4 + 12.0/world, 2 + (4+12.0)/world, (4 + 12.0) / world} {
		s := zero.Stage(stage)
		f := footprint{Units: units, Mesh: s.Mesh(shard.Mesh{Shard: world, Replicate: 1}), Policy: s.Policy(0, nn.RecomputeNone), DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Micro: 1}
		b := f.Bytes()
		if got := float64(b.Total()) / n; got < want || got > want*1.05+0.01 {
			t.Errorf("stage %d: %.4f bytes a parameter, want %.4f", stage, got, want)
		}
	}
}

// TestStepAllocatesNothing checks that a step does not allocate on the Go heap, on any rank.
func TestStepAllocatesNothing(t *testing.T) {
	nightly.Long(t)
	for _, sets := range [][]string{
		{"zero.stage=3", "precision=bf16", "train.accumulate=2", "zero.recompute=block"},
		{"zero.stage=1", "precision=fp32", "train.accumulate=2"},
		{"zero.stage=0", "precision=fp16"},
		{"zero.stage=3", "train.accumulate=2", "zero.offload.optimizer=host", "zero.offload.parameters=host", "zero.offload.ratio=0.5"},
		{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
		{"zero.stage=3", "zero.offload.parameters=disk", "zero.offload.path=" + t.TempDir()},
		{"zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
		{"model.family=llama", "model.kv_heads=1", "zero.stage=3", "precision=bf16", "train.accumulate=2"},
		{"zero.stage=3", "model.family=llama", "model.experts={count: 4, per_token: 2}", "zero.recompute=block", "train.accumulate=2"},
		{"zero.stage=3", "optimizer.type=muon"},
		{"zero.stage=3", "optimizer.type=muon", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"},
		{"zero.stage=2", "optimizer.type=muon", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
	} {
		c := cfg(t, append(sets, "parallel.ranks=2")...)
		ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{Tile: 200}))
		if err != nil {
			t.Fatal(err)
		}
		steps(t, c, ranks, 3)
		// Together's goroutines and the runtime's bookkeeping (timers, semaphores, threads that
		// wait for a disk) allocate a few objects per run, and more on a busy machine. The
		// minimum of six measurements counts.
		const n, spells = 5, 6
		var mem [spells + 1]runtime.MemStats
		err = setup.Together(ranks, func(r *setup.Rank) error {
			fill := zerotest.Tokens(c, r.Rank, 1)
			for step := range 5 + n*spells + 1 {
				if at := step - 5; r.Rank == 0 && at >= 0 && at%n == 0 {
					runtime.ReadMemStats(&mem[at/n])
				}
				if _, err := r.Trainer.Step(zero.Work{Fill: fill, LR: 1e-3}); err != nil {
					return err
				}
			}
			return nil
		})
		zerotest.CloseAll(ranks)
		if err != nil {
			t.Fatal(err)
		}
		least := uint64(math.MaxUint64)
		for i := range spells {
			least = min(least, mem[i+1].Mallocs-mem[i].Mallocs)
		}
		if least > n {
			t.Errorf("%v: %d objects allocated in %d steps", sets, least, n)
		}
	}
}

func sameBytes(t *testing.T, what string, got, want device.Bytes) {
	t.Helper()
	for use := range device.Uses {
		if got[use] != want[use] {
			t.Errorf("%s: %d bytes of %v, want %d", what, got[use], use, want[use])
		}
	}
}

// steps trains from fresh parameters.
func steps(t *testing.T, c *spec.Job, ranks []*setup.Rank, n int) {
	t.Helper()
	err := setup.Together(ranks, func(r *setup.Rank) error {
		if err := zerotest.Fresh(r); err != nil {
			return err
		}
		for step := range n {
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3}); err != nil {
				return err
			}
		}
		for _, q := range r.Queues.All() {
			if err := q.Wait(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEvaluationNeedsTheMemoryOfTraining checks that forward passes without training fit the memory planned
// for training, at every level of recomputation, and have the same loss, in a pipeline whose stages save
// little: a block each.
func TestEvaluationNeedsTheMemoryOfTraining(t *testing.T) {
	for _, family := range []string{"gpt2", "llama"} {
		var want float64
		for i, level := range config.Recomputes {
			c := cfg(t, "parallel.ranks=2", "parallel.pipeline=2", "model.layers=2", "train.accumulate=2", "zero.recompute="+level, "model.family="+family)
			ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{}))
			if err != nil {
				t.Fatal(err)
			}
			defer zerotest.CloseAll(ranks)
			err = setup.Together(ranks, func(r *setup.Rank) error {
				if err := zerotest.Fresh(r); err != nil {
					return err
				}
				s, err := r.Trainer.Eval(3, zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0)})
				if r.Rank > 0 {
					return err
				}
				if i == 0 {
					want = s.Loss
				}
				if s.Loss != want {
					t.Errorf("%s, %s: loss %v, want %v", family, level, s.Loss, want)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
