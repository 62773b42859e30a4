package zero_test

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/data"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/optim"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// descent trains one step of plain gradient descent with learning rate 1. It returns how far each
// parameter moved, which is the applied gradient, and the norm reported by the trainer.
func descent(t *testing.T, sets ...string) (map[string][]float32, float64) {
	t.Helper()
	c := zerotest.Load(t, "trainer_test.go", append(sets, "optimizer.type=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.lr=1")...)
	before, after := map[string][]float32{}, map[string][]float32{}
	var norm float64
	var mu sync.Mutex
	err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
		mu.Lock()
		err := zerotest.Collect(r, before)
		mu.Unlock()
		if err != nil {
			return err
		}
		s, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		norm = s.GradNorm
		return zerotest.Collect(r, after)
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range after {
		for i := range x {
			x[i] = before[name][i] - x[i]
		}
	}
	return after, norm
}

func lengthOf(grads map[string][]float32) float64 {
	sum := 0.0
	for _, g := range grads {
		for _, x := range g {
			sum += float64(x) * float64(x)
		}
	}
	return math.Sqrt(sum)
}

// TestClipByGlobalNorm checks that the norm is that of the whole gradient and that clipping
// scales the whole gradient down to it.
func TestClipByGlobalNorm(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.stage=0", "parallel.ranks=3"},
		{"zero.stage=3", "parallel.ranks=4", "train.accumulate=2"},
		{"zero.stage=3", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"},
	} {
		free, reported := descent(t, append(sets, "precision=fp32", "train.clip=0")...)
		want := lengthOf(free)
		// w - (w - g) rounds to the precision of w, about 1e-7 per element.
		if math.Abs(reported-want) > 1e-5*want {
			t.Errorf("%v: norm %g, that of the gradient is %g", sets, reported, want)
		}
		limit := want / 3
		clipped, again := descent(t, append(sets, "precision=fp32", fmt.Sprintf("train.clip=%g", limit))...)
		if again != reported {
			t.Errorf("%v: clipping changes the reported norm from %g to %g", sets, reported, again)
		}
		if got := lengthOf(clipped); math.Abs(got-limit) > 1e-4*limit {
			t.Errorf("%v: norm %g after clipping to %g", sets, got, limit)
		}
		for name, g := range free {
			for i, x := range g {
				if d := float64(clipped[name][i]) - float64(x)/3; math.Abs(d) > 1e-6 {
					t.Fatalf("%v: %s[%d] moved by %g, want a third of %g", sets, name, i, clipped[name][i], x)
				}
			}
		}
		loose, _ := descent(t, append(sets, "precision=fp32", fmt.Sprintf("train.clip=%g", want*3))...)
		for name, g := range free {
			if !slices.Equal(loose[name], g) {
				t.Errorf("%v: a limit above the norm changes the update of %s", sets, name)
			}
		}
	}
}

// TestOverflowIsSkipped checks that a step whose fp16 gradients overflow is skipped on all ranks,
// changes no state and lowers the loss scale by DeepSpeed's rule, and that training then
// continues.
func TestOverflowIsSkipped(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.stage=0"}, {"zero.stage=2"}, {"zero.stage=3"},
		{"zero.stage=2", "optimizer.type=muon", "zero.offload.optimizer=disk", "zero.offload.path=" + t.TempDir()},
	} {
		c := zerotest.Load(t, "trainer_test.go", append(sets, "parallel.ranks=2", "precision=fp16")...)
		err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
			tr := r.Trainer
			tr.Scale.Scale = 1 << 40
			before, after := map[string][]float32{}, map[string][]float32{}
			if err := zerotest.Collect(r, before); err != nil {
				return err
			}
			skipped := 0
			for step := range 60 {
				s, err := tr.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3})
				if err != nil {
					return err
				}
				if !s.Skipped {
					break
				}
				skipped++
				if err := zerotest.Collect(r, after); err != nil {
					return err
				}
				for name := range before {
					if !slices.Equal(before[name], after[name]) {
						return fmt.Errorf("a skipped step changed %s", name)
					}
				}
			}
			// The first overflow uses up the hysteresis; each later one halves the scale.
			if want := math.Ldexp(1, 40-(skipped-1)); tr.Scale.Scale != want || tr.Skipped != skipped || skipped < 10 || tr.Updates != 1 {
				return fmt.Errorf("scale %g after %d skipped steps (counted %d), want %g; %d updates, want 1", tr.Scale.Scale, skipped, tr.Skipped, want, tr.Updates)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%v: %v", sets, err)
		}
	}
}

// TestUpdateEndsTogether checks that no rank goes on after an update that a loss could interrupt, by which it would overwrite
// gradients, before all ranks have issued theirs.
func TestUpdateEndsTogether(t *testing.T) {
	c := zerotest.Load(t, "trainer_test.go", "parallel={ranks: 4, shard: 2, replicate: 2}", "zero.stage=1", "optimizer.type=muon", "faults.survive=true")
	met := make([]atomic.Int64, 4)
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapGroups: func(rank int, g collective.Ranks) collective.Ranks {
		g.World = collectivetest.Faulty(g.World, func(int) collectivetest.Fault { met[rank].Add(1); return collectivetest.Fault{} })
		return g
	}}))
	if err != nil {
		t.Fatal(err)
	}
	defer zerotest.CloseAll(ranks)
	err = setup.Together(ranks, func(r *setup.Rank) error {
		if err := zerotest.Fresh(r); err != nil {
			return err
		}
		for step := range 3 {
			if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3}); err != nil {
				return err
			}
			if err := r.Trainer.Complete(); err != nil {
				return err
			}
			for other := range met {
				if n := met[other].Load(); n < int64(2*step+2) {
					t.Errorf("rank %d ends update %d, and rank %d has met the others %d times", r.Rank, step+1, other, n)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGradientNotFinite checks that a non-finite gradient without loss scaling ends the run on
// every rank, with the step, the unit and the rank.
func TestGradientNotFinite(t *testing.T) {
	c := zerotest.Load(t, "trainer_test.go", "zero.stage=3", "parallel.ranks=3", "precision=fp16")
	errs := make([]error, 3)
	_ = zerotest.OnRanks(t, c, func(r *setup.Rank) error {
		if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1e-6}); err != nil {
			return err
		}
		r.Trainer.Scale = optim.StaticLossScale(1 << 60)
		_, errs[r.Rank] = r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 1), LR: 1e-6})
		return errs[r.Rank]
	})
	for rank, err := range errs {
		want := fmt.Sprintf("step 2: rank %d: the gradient of unit ", rank)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "is not finite on rank") {
			t.Errorf("rank %d: %v, want %q…", rank, err, want)
		}
	}
}

// TestLossNotFinite checks the same for a loss that is NaN.
func TestLossNotFinite(t *testing.T) {
	c := zerotest.Load(t, "trainer_test.go", "zero.stage=2", "parallel.ranks=2", "precision=bf16")
	err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
		err := r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
			for i := range dst {
				dst[i] = float32(math.NaN())
			}
			return nil
		})
		if err != nil {
			return err
		}
		_, err = r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1e-6})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "step 1: rank 0: the loss is not finite on rank 0") {
		t.Errorf("error %v", err)
	}
}

// TestRanksStopTogether checks that all ranks stop after the step in which any of them asks to, and
// hear in the same step of a trace that another wants.
func TestRanksStopTogether(t *testing.T) {
	c := zerotest.Load(t, "trainer_test.go", "zero.stage=3", "parallel.ranks=4")
	stopped := make([]int, 4)
	err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
		for step := range 10 {
			w := zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3, Stop: func() bool { return r.Rank == 2 && step == 3 }}
			if r.Rank == 1 && step == 3 {
				w.Trace = 20
			}
			s, err := r.Trainer.Step(w)
			if err != nil {
				return err
			}
			if s.Save || s.Stop != (s.Trace == 20) {
				return fmt.Errorf("step %d: %+v", step, s)
			}
			if s.Stop {
				stopped[r.Rank] = step
				return nil
			}
		}
		return nil
	})
	if err != nil || !slices.Equal(stopped, []int{3, 3, 3, 3}) {
		t.Errorf("ranks stopped after steps %v (error %v), want 3", stopped, err)
	}
}

// TestEvaluationLeavesNoTrace checks that an evaluation returns the mean loss of its data, the
// same at every stage, and does not affect training.
func TestEvaluationLeavesNoTrace(t *testing.T) {
	for _, stage := range []string{"zero.stage=0", "zero.stage=3"} {
		c := zerotest.Load(t, "trainer_test.go", stage, "parallel.ranks=2", "precision=fp32")
		want := zerotest.Train(t, c, nil)
		got := zerotest.Outcome{State: map[string][]float32{}}
		var evals [2]float64
		var mu sync.Mutex
		err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
			for step := range c.Train.Steps {
				eval, err := r.Trainer.Eval(1, zero.Work{Fill: zerotest.Tokens(c, r.Rank, step)})
				if err != nil {
					return err
				}
				s, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: c.Optimizer.LR})
				if err != nil {
					return err
				}
				if d := eval.Loss - s.Loss; math.Abs(d) > 1e-6 {
					return fmt.Errorf("evaluation of the batch of step %d is %g, its training loss %g", step, eval.Loss, s.Loss)
				}
				evals[r.Rank] = eval.Loss
				if r.Rank == 0 {
					got.Losses, got.Norms = append(got.Losses, s.Loss), append(got.Norms, s.GradNorm)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			return zerotest.Collect(r, got.State)
		})
		if err != nil {
			t.Fatal(err)
		}
		zerotest.SameBits(t, stage, got, want)
		if evals[0] != evals[1] {
			t.Errorf("ranks see losses %v", evals)
		}
	}
}

// TestParametersAreRoundedMasters checks that a step uses the master copy rounded once.
func TestParametersAreRoundedMasters(t *testing.T) {
	c := zerotest.Load(t, "trainer_test.go", "zero.stage=2", "parallel.ranks=2", "precision=bf16")
	err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
		if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, 0), LR: 1e-2}); err != nil {
			return err
		}
		for _, q := range r.Queues.All() {
			if err := q.Wait(); err != nil {
				return err
			}
		}
		units := map[string][]uint16{}
		for _, u := range r.Trainer.Units() {
			for p := range u.Layout.Pieces(r.Rank) {
				bits := make([]uint16, p.InShard.Len())
				r.Queues[0].Copy(device.OfU16(device.BF16, bits), u.Param.Slice(p.InShard.Lo, p.InShard.Hi))
				units[u.Layout.Params[p.Param].Name] = bits
			}
		}
		if err := r.Queues[0].Wait(); err != nil {
			return err
		}
		return r.Trainer.Each(zero.Master, zero.Staging(), func(p zero.Part, src []float32) error {
			for i, x := range src {
				rounded := uint16((math.Float32bits(x) + 0x7fff + math.Float32bits(x)>>16&1) >> 16)
				if got := units[p.Param.Name][i]; got != rounded {
					return fmt.Errorf("%s[%d] is %#x in %v, its master %g rounds to %#x", p.Param.Name, p.At.Lo+i, got, device.BF16, x, rounded)
				}
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInputBuffersAlternate checks that token ids of two micro-batches fit in memory and that a buffer
// is not refilled before the micro-batch in it is computed. A step on a slow queue must equal one
// in which the host waits for the queue before each fill.
func TestInputBuffersAlternate(t *testing.T) {
	for _, stage := range []int{0, 3} {
		c := zerotest.Load(t, "trainer_test.go", "parallel.ranks=2", "train.accumulate=5", fmt.Sprintf("zero.stage=%d", stage))
		var got [2]zero.Stats
		for i := range got {
			err := zerotest.OnRanks(t, c, func(r *setup.Rank) error {
				compute, fill := r.Queues[0], zerotest.Tokens(c, r.Rank, 0)
				waits := func(micro int, into []data.Values) error {
					return cmp.Or(compute.Wait(), fill(micro, into))
				}
				if i == 0 {
					if err := compute.Wait(); err != nil {
						return err
					}
					compute.Trace(func(s device.Span) {
						if s.Task == "embedding" || s.Task == "embedding gradient, added" {
							time.Sleep(5 * time.Millisecond)
						}
					})
					waits = fill
				}
				s, err := r.Trainer.Step(zero.Work{Fill: waits, LR: 1e-3})
				if r.Rank == 0 {
					got[i] = s
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("stage %d: a slow queue has %+v, want %+v", stage, got[0], got[1])
		}
	}
}

// TestEvaluationStopsTogether checks that all ranks leave an evaluation after the batch in which any of them
// asks to, and that being ready to do so does not change the bits.
func TestEvaluationStopsTogether(t *testing.T) {
	for _, mesh := range []string{"{ranks: 4, replicate: 2}", "{ranks: 4, pipeline: 2}", "{ranks: 4, tensor: 2}"} {
		c := zerotest.Load(t, "trainer_test.go", "model.family=llama", "model.layers=2", "train.accumulate=2", "parallel="+mesh)
		whole, last := make([]zero.Stats, 4), make([]int, 4)
		err := zerotest.OnRanks(t, c, func(r *setup.Rank) (err error) {
			read := func(micro int, into []data.Values) error {
				last[r.Rank] = micro
				return zerotest.Tokens(c, r.Rank, micro)(0, into)
			}
			if whole[r.Rank], err = r.Trainer.Eval(7, zero.Work{Fill: read}); err != nil {
				return err
			}
			at, rounds := -1, 0
			stops := zero.Work{Fill: read, Stop: func() bool { rounds++; return r.Rank == 1 && rounds-1 == at }}
			s, err := r.Trainer.Eval(7, stops)
			if err != nil || s.Loss != whole[r.Rank].Loss || s.Loss != whole[0].Loss || s.Stop || rounds != 4 {
				return fmt.Errorf("rank %d: %+v in %d batches, want %+v in 4: %v", r.Rank, s, rounds, whole[r.Rank], err)
			}
			at, rounds = 1, 0
			if s, err = r.Trainer.Eval(7, stops); err != nil || !s.Stop || rounds != 2 || last[r.Rank] == 6 {
				return fmt.Errorf("rank %d: %+v after %d batches, micro-batch %d: %v", r.Rank, s, rounds, last[r.Rank], err)
			}
			if s, err = r.Trainer.Eval(7, zero.Work{Fill: read}); err != nil || s.Loss != whole[r.Rank].Loss || s.Stop {
				return fmt.Errorf("rank %d: %+v after an evaluation that was stopped, want %+v: %v", r.Rank, s, whole[r.Rank], err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", mesh, err)
		}
	}
}
