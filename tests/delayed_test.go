package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// TestDelayedUpdatesAreTwoBuffersAndALoop compares delayed updates with a loop over two buffers:
// the gradient g of P, the parameters before the last update, changes W, those after it; then P
// becomes the old W.
func TestDelayedUpdatesAreTwoBuffersAndALoop(t *testing.T) {
	nightly.Parallel(t)
	for i, ways := range [][]string{{"precision=fp32"}, {"precision=bf16", "zero.recompute=block"}, {"precision=fp32", "zero.offload.optimizer=host"},
		{"precision=bf16", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"}, {"precision=fp32", "optimizer.type=sgd"}, {"precision=bf16", "optimizer.type=lion"},
		{"precision=bf16", "parallel.pipeline=2", "model.family=llama"}, {"precision=bf16", "parallel.replicate=2"}, {"precision=fp32", "train.freeze=[\"*.mlp.*\"]"},
		{"precision=bf16", "train.lora.rank=2", "train.lora.targets=[all-linear]", "zero.offload.optimizer=host"}} {
		t.Run(strings.Join(ways, " "), func(t *testing.T) {
			t.Parallel()
			for stage := range 4 {
				if !nightly.Every(2, i+stage) || stage == 0 && slices.Contains(ways, "parallel.replicate=2") {
					continue
				}
				sets := append([]string{fmt.Sprint("zero.stage=", stage), "parallel.shard=2", "train.accumulate=2", "train.clip=0", "train.steps=5", "device=cpu"}, ways...)
				delayed, want := cfg(t, append(sets, "train.delayed_update=true")...), twoBuffers(t, cfg(t, sets...))
				zerotest.SameBits(t, fmt.Sprint("stage ", stage), zerotest.Train(t, delayed, nil), want)
				if delayed.Zero.Offload.Any() {
					zerotest.SameBits(t, fmt.Sprint("small tiles, stage ", stage), trainWith(t, delayed, setup.Hooks{Tile: 100}), want)
				}
			}
		})
	}
}

// twoBuffers trains a job with that loop, using a job that only computes gradients.
func twoBuffers(t *testing.T, c *spec.Job) (out zerotest.Outcome) {
	t.Helper()
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	dev := cpu.NewHost(1)
	defer dev.Close()
	q := dev.NewQueue("update")
	defer q.Close()
	rule := setup.Rules(c)[0].(optim.Elementwise)
	newest, inUse, state := map[string][]float32{}, map[string][]float32{}, map[string][][]float32{}
	decay := map[string]float64{}
	for _, p := range spec.Parameters(c) {
		w := make([]float32, p.Numel())
		decay[p.Name] = c.Update(p).WeightDecay
		p.Init.Std *= 10
		p.At.Lo, p.At.Hi = 0, p.Numel()
		nn.Fill(1, p, p.At, w)
		newest[p.Name], inUse[p.Name] = w, slices.Clone(w)
		for range zero.KindsOf(p, setup.Rules(c), false)[1:] {
			state[p.Name] = append(state[p.Name], make([]float32, p.Numel()))
		}
	}
	for step := range c.Train.Steps {
		grads := map[string][]float32{}
		turn := make(chan struct{}, 1)
		err := setup.Together(ranks, func(r *setup.Rank) error {
			err := r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
				copy(dst, inUse[p.Param.Name][p.At.Lo:p.At.Hi])
				return nil
			})
			if err != nil {
				return err
			}
			s, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 0})
			if err != nil {
				return err
			}
			turn <- struct{}{}
			defer func() { <-turn }()
			if r.Rank == 0 {
				out.Losses, out.Norms = append(out.Losses, s.Loss), append(out.Norms, s.GradNorm)
			}
			return shardsOfGradients(r, grads)
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, w := range newest {
			if grads[name] == nil {
				continue // frozen
			}
			copy(inUse[name], w)
			p := optim.Piece{Master: device.OfF32(w), Grad: device.OfF32(grads[name])}
			for _, s := range state[name] {
				p.State = append(p.State, device.OfF32(s))
			}
			rule.Step(q, step+1, optim.Hyper{LR: c.Optimizer.LR, Decay: decay[name], GradScale: 1, Scale: 1}, p)
		}
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	out.State = map[string][]float32{}
	for name, w := range newest {
		if out.State[zero.Master+" "+name] = w; state[name] == nil {
			out.State[zero.Master+" "+name] = inCompute(c, w) // frozen: rounded to the compute type
			continue
		}
		out.State[zero.Previous+" "+name] = inCompute(c, inUse[name])
		for i, kind := range rule.States() {
			out.State[kind+" "+name] = state[name][i]
		}
	}
	return out
}

// inCompute rounds numbers to the type that modules use.
func inCompute(c *spec.Job, x []float32) []float32 {
	if c.Precision == device.F32 {
		return x
	}
	y := slices.Clone(x)
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("cast")
	defer q.Close()
	narrow := device.OfU16(c.Precision, make([]uint16, len(x)))
	q.Cast(narrow, device.OfF32(y))
	q.Cast(device.OfF32(y), narrow)
	if err := q.Wait(); err != nil {
		panic(err)
	}
	return y
}

// shardsOfGradients copies a rank's gradient shards to their places in the whole.
func shardsOfGradients(r *setup.Rank, into map[string][]float32) error {
	for _, q := range r.Queues.All() {
		if err := q.Wait(); err != nil {
			return err
		}
	}
	for _, u := range r.Trainer.Units() {
		if u.Frozen {
			continue
		}
		grad := u.Grad.F32()
		for pc := range u.Layout.Pieces(u.Shard.Rank()) {
			p := u.Layout.Params[pc.Param]
			if into[p.Name] == nil {
				into[p.Name] = make([]float32, p.Numel())
			}
			copy(into[p.Name][pc.InParam.Lo:pc.InParam.Hi], grad[pc.InShard.Lo:pc.InShard.Hi])
		}
	}
	return nil
}

// TestDelayedUpdatesResume checks that a run with delayed updates resumes, on any number of
// ranks, as if it had not stopped. A job without delayed updates can resume from it, but not the
// reverse.
func TestDelayedUpdatesResume(t *testing.T) {
	nightly.Parallel(t)
	resumeOn(t, [][]string{
		{"parallel.ranks=4", "zero.stage=3"},
		{"parallel.ranks=1", "zero.stage=0", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=1", "zero.offload.optimizer=host"},
		{"parallel.ranks=4", "parallel.pipeline=2", "zero.stage=2", "train.accumulate=2"},
	}, "train.delayed_update=true", "device=cpu")
}

// TestDelayedUpdatesRefusals checks that incompatible settings are rejected.
func TestDelayedUpdatesRefusals(t *testing.T) {
	for set, want := range map[string]string{
		"precision=fp16":                          "train.delayed_update: updates are delayed, which fp16 does not support: the loss scale would follow a step late; want delayed_update: false, or another of the two",
		"optimizer.type=muon":                     "train.delayed_update: updates are delayed, which muon does not support",
		"zero.offload={optimizer: disk, path: .}": "train.delayed_update: updates are delayed, which optimizer state on disk does not support",
		"zero.offload.parameters=host":            "train.delayed_update: updates are delayed, which offloaded parameters do not support",
	} {
		_, err := setup.ThisMachine(1, 0).Draft("", slices.Concat(zerotest.Small, []string{"train.delayed_update=true", set, "data.validation=null", "train.eval_every=null"}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", set, err)
		}
	}
}
