// Package zerotest trains small jobs on trainers, for the tests of other packages.
package zerotest

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
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Small is a model whose sizes have no convenient divisors.
var Small = []string{"model.layers=3", "model.heads=2", "model.width=12", "model.context=7", "model.vocab=256",
	"train.micro_batch=2", "train.eval_every=0", "data.validation=0", "schedule.warmup=2", "train.steps=3",
	"optimizer.lr=1e-2", "sample.tokens=0", "parallel.timeout=1m"}

// Load returns the small job, which reads a text, with additional settings.
func Load(t *testing.T, text string, sets ...string) *spec.Job {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("data: {text: ["+text+"]}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := setup.ThisMachine(1, 0).Load(file, append(slices.Clone(Small), sets...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Tokens returns synthetic tokens with a pattern to learn: sample s continues an arithmetic
// sequence modulo 251.
func Tokens(c *spec.Job, rank, step int) zero.Batches {
	rank = spec.Mesh(c).DataRank(rank)
	share := spec.Share(c)
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

// Outcome contains a run's results: the loss of every step as reported by the trainer, and the
// final state.
type Outcome struct {
	Losses, Norms []float64
	State         map[string][]float32 // by kind and parameter
}

// Train runs the job for its number of steps.
func Train(t *testing.T, c *spec.Job, wrap func(int, collective.Ranks) collective.Ranks) Outcome {
	t.Helper()
	return TrainAs(t, c, wrap, func(*setup.Rank) {})
}

// TrainAs is like Train, but prepares the ranks first.
func TrainAs(t *testing.T, c *spec.Job, wrap func(int, collective.Ranks) collective.Ranks, prepare func(*setup.Rank)) Outcome {
	t.Helper()
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapGroups: wrap}))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(ranks)
	for _, r := range ranks {
		prepare(r)
	}
	return TrainOn(t, c, ranks)
}

// TrainOn runs the job on open ranks.
func TrainOn(t *testing.T, c *spec.Job, ranks []*setup.Rank) Outcome {
	t.Helper()
	out := Outcome{State: map[string][]float32{}}
	turn := make(chan struct{}, 1) // not a mutex: on a fake clock, a rank waiting for a mutex would stop the time
	if err := TrainInto(c, ranks, &out, turn); err != nil {
		t.Fatal(err)
	}
	return out
}

// TrainInto runs the job on open ranks, which may be only some of the job's ranks. A rank must send
// to turn before writing to the outcome.
func TrainInto(c *spec.Job, ranks []*setup.Rank, out *Outcome, turn chan struct{}) error {
	return setup.Together(ranks, func(r *setup.Rank) error {
		if err := Fresh(r); err != nil {
			return err
		}
		for step := range c.Train.Steps {
			s, err := r.Trainer.Step(zero.Work{Fill: Tokens(c, r.Rank, step), LR: c.Optimizer.LR})
			if err != nil {
				return err
			}
			if r.Rank == 0 {
				out.Losses, out.Norms = append(out.Losses, s.Loss), append(out.Norms, s.GradNorm)
			}
		}
		turn <- struct{}{}
		defer func() { <-turn }()
		return Collect(r, out.State)
	})
}

// Fresh sets a rank's initial parameters. They are larger than a real model's, so that all
// parameters of a small model have gradients from the first step.
func Fresh(r *setup.Rank) error {
	return r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
		p.Param.Init.Std *= 10
		nn.Fill(1, p.Param, p.At, dst)
		return nil
	})
}

// Collect copies a rank's part of all state to its place in the whole.
func Collect(r *setup.Rank, state map[string][]float32) error {
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

// Digest returns a hash of all bits of an outcome's state.
func (o Outcome) Digest() uint32 {
	h := crc32.NewIEEE()
	for _, name := range o.Names() {
		fmt.Fprintln(h, name)
		if err := binary.Write(h, binary.LittleEndian, o.State[name]); err != nil {
			panic(err)
		}
	}
	return h.Sum32()
}

func (o Outcome) Names() (names []string) {
	for name := range o.State {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// SameBits fails if two outcomes differ in any bit.
func SameBits(t *testing.T, what string, got, want Outcome) {
	t.Helper()
	same := func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) } // NaN in steps that are skipped
	if !slices.EqualFunc(got.Losses, want.Losses, same) || !slices.EqualFunc(got.Norms, want.Norms, same) {
		t.Errorf("%s: losses %v and norms %v, want %v and %v", what, got.Losses, got.Norms, want.Losses, want.Norms)
	}
	if got.Digest() == want.Digest() {
		return
	}
	for _, name := range want.Names() {
		for i, w := range want.State[name] {
			if g := got.State[name][i]; math.Float32bits(g) != math.Float32bits(w) {
				t.Errorf("%s: %s[%d] = %g, want %g", what, name, i, g, w)
				return
			}
		}
	}
	t.Errorf("%s: different parameters: %v, want %v", what, got.Names(), want.Names())
}

// Near fails if parameters differ by more than tol, and reports the difference.
func Near(t *testing.T, what string, got, want Outcome, tol float64) {
	t.Helper()
	for _, name := range want.Names() {
		if !strings.HasPrefix(name, zero.Master) {
			continue
		}
		for i, w := range want.State[name] {
			if g := got.State[name][i]; !(math.Abs(float64(g-w)) <= tol) {
				t.Errorf("%s: %s[%d] = %g, want %g within %g", what, name, i, g, w, tol)
				return
			}
		}
	}
}

// OnRanks opens a job, sets fresh parameters, and runs f on every rank.
func OnRanks(t *testing.T, c *spec.Job, f func(*setup.Rank) error) error {
	t.Helper()
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(ranks)
	return setup.Together(ranks, func(r *setup.Rank) error {
		if err := Fresh(r); err != nil {
			return err
		}
		return f(r)
	})
}

// CloseAll closes ranks.
func CloseAll(ranks []*setup.Rank) {
	for _, r := range ranks {
		r.Close()
	}
}
