package tests

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// small is a model whose sizes have no convenient divisors.
var small = []string{"model.layers=3", "model.heads=2", "model.width=12", "model.context=7", "model.vocab=256",
	"train.micro_batch=2", "train.eval_every=0", "data.validation=0", "schedule.warmup=2", "train.steps=4",
	"optimizer.lr=1e-2", "sample.tokens=0", "parallel.timeout=1m"}

// cfg returns the small job with additional settings.
func cfg(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("data: {text: [train_test.go]}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := setup.ThisMachine(1, 0).Load(file, append(slices.Clone(small), sets...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tokens returns synthetic tokens with a pattern to learn: sample s continues an arithmetic
// sequence modulo 251.
func tokens(c *config.Config, rank, step int) zero.Batches {
	rank = config.Mesh(c).DataRank(rank)
	share := data.Share{Ranks: c.Parallel.DataRanks(), Accumulate: c.Train.Accumulate, MicroBatch: c.Train.MicroBatch}
	return func(micro int, into []data.Values) error {
		input, target, start := data.TokensOf(into)
		first, T := share.First(int64(step), micro, rank), c.Model.Context
		for i := range input {
			s, at := int(first)+i/T, i%T
			input[i], target[i] = int32((s*17+at*(s%5+1))%251), int32((s*17+(at+1)*(s%5+1))%251)
			if start != nil { // documents of different lengths in every sample
				start[i] = int32(at / (3 + s%4) * (3 + s%4))
			}
		}
		return nil
	}
}

// outcome contains a run's results: the loss of every step as reported by the trainer, and the
// final state.
type outcome struct {
	losses, norms []float64
	state         map[string][]float32 // by kind and parameter
}

// train runs the job for its number of steps.
func train(t *testing.T, c *config.Config, wrap func(int, collective.Ranks) collective.Ranks) outcome {
	t.Helper()
	return trainAs(t, c, wrap, func(*setup.Rank) {})
}

// trainAs is like train, but prepares the ranks first.
func trainAs(t *testing.T, c *config.Config, wrap func(int, collective.Ranks) collective.Ranks, prepare func(*setup.Rank)) outcome {
	t.Helper()
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapGroups: wrap}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(ranks)
	for _, r := range ranks {
		prepare(r)
	}
	return trainOn(t, c, ranks)
}

// trainOn runs the job on open ranks.
func trainOn(t *testing.T, c *config.Config, ranks []*setup.Rank) outcome {
	t.Helper()
	out := outcome{state: map[string][]float32{}}
	turn := make(chan struct{}, 1) // not a mutex: on a fake clock, a rank waiting for a mutex would stop the time
	if err := trainInto(c, ranks, &out, turn); err != nil {
		t.Fatal(err)
	}
	return out
}

// trainInto runs the job on open ranks, which may be only some of the job's ranks. Whoever sends
// to turn may write to the outcome.
func trainInto(c *config.Config, ranks []*setup.Rank, out *outcome, turn chan struct{}) error {
	return setup.Together(ranks, func(r *setup.Rank) error {
		if err := fresh(r); err != nil {
			return err
		}
		for step := range c.Train.Steps {
			s, err := r.Trainer.Step(tokens(c, r.Rank, step), c.Optimizer.LR)
			if err != nil {
				return err
			}
			if r.Rank == 0 {
				out.losses, out.norms = append(out.losses, s.Loss), append(out.norms, s.GradNorm)
			}
		}
		turn <- struct{}{}
		defer func() { <-turn }()
		return collect(r, out.state)
	})
}

// fresh sets a rank's initial parameters. They are larger than a real model's, so that all
// parameters of a small model have gradients from the first step.
func fresh(r *setup.Rank) error {
	return r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
		p.Param.Init.Std *= 10
		nn.Fill(1, p.Param, p.At, dst)
		return nil
	})
}

// collect copies a rank's part of all state to its place in the whole.
func collect(r *setup.Rank, state map[string][]float32) error {
	for _, kind := range r.Trainer.Kinds() {
		err := r.Trainer.Each(kind, zero.Staging(), func(p zero.Part, src []float32) error {
			name := kind + " " + p.Param.Name
			if state[name] == nil {
				state[name] = make([]float32, shard.Param{Shape: p.Param.Tensor()}.Numel())
			}
			for tensor, own := range p.Param.Runs(p.At) {
				copy(state[name][tensor.Lo:tensor.Hi], src[own.Lo-p.At.Lo:])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// digest returns a hash of all bits of an outcome's state.
func (o outcome) digest() uint32 {
	h := crc32.NewIEEE()
	for _, name := range o.names() {
		fmt.Fprintln(h, name)
		if err := binary.Write(h, binary.LittleEndian, o.state[name]); err != nil {
			panic(err)
		}
	}
	return h.Sum32()
}

func (o outcome) names() (names []string) {
	for name := range o.state {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// sameBits fails if two outcomes differ in any bit.
func sameBits(t *testing.T, what string, got, want outcome) {
	t.Helper()
	same := func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) } // NaN in steps that are skipped
	if !slices.EqualFunc(got.losses, want.losses, same) || !slices.EqualFunc(got.norms, want.norms, same) {
		t.Errorf("%s: losses %v and norms %v, want %v and %v", what, got.losses, got.norms, want.losses, want.norms)
	}
	if got.digest() == want.digest() {
		return
	}
	for _, name := range want.names() {
		for i, w := range want.state[name] {
			if g := got.state[name][i]; math.Float32bits(g) != math.Float32bits(w) {
				t.Errorf("%s: %s[%d] = %g, want %g", what, name, i, g, w)
				return
			}
		}
	}
	t.Errorf("%s: different parameters: %v, want %v", what, got.names(), want.names())
}

// near fails if parameters differ by more than tol, and reports the difference.
func near(t *testing.T, what string, got, want outcome, tol float64) {
	t.Helper()
	for _, name := range want.names() {
		if !strings.HasPrefix(name, zero.Master) {
			continue
		}
		for i, w := range want.state[name] {
			if g := got.state[name][i]; !(math.Abs(float64(g-w)) <= tol) {
				t.Errorf("%s: %s[%d] = %g, want %g within %g", what, name, i, g, w, tol)
				return
			}
		}
	}
}
