package fit

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/job/config"
	"zeroth/job/plan"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// drawnMesh returns a job with some layers on a random mesh, nil if the drawn job is invalid.
func drawnMesh(t *testing.T, r *rand.Rand) *config.Config {
	pick := func(of ...any) string { return fmt.Sprint(of[r.IntN(len(of))]) }
	sets := []string{"train.batch=null", "checkpoint.every=5", "model.heads=4", "device=cpu", "parallel.ranks=16",
		"model.layers=" + pick(9, 16, 31), "model.family=" + pick("gpt2", "llama"), "model.tied=" + pick(true, false), "model.vocab=" + pick(300, 5000),
		"optimizer.type=" + pick("adamw", "adamw", "lion", "muon"), "parallel.tensor=" + pick(1, 2, 4), "zero.stage=" + pick(0, 1, 2, 3), "zero.prefetch=" + pick(0, 1, 2),
		"zero.recompute=" + pick("none", "block"), "train.micro_batch=" + pick(1, 2), "train.loss_chunk=" + pick(10, 1024)}
	if sets[5] == "model.family=gpt2" {
		sets[6] = "model.tied=null"
	} else {
		sets = append(sets, "model.kv_heads=4")
	}
	if pipeline := pick(1, 2, 4); pipeline != "1" {
		schedule := pick("1F1B", "GPipe", "ZBH1", "Interleaved1F1B")
		sets = append(sets, "parallel.pipeline="+pipeline, "pipeline.schedule="+schedule, "train.accumulate="+pick(4, 8, 20))
	} else {
		sets = append(sets, "train.accumulate="+pick(1, 2, 5))
	}
	sets = append(sets, "parallel.context="+pick(1, 1, 2))
	if sets[11] != "zero.stage=0" {
		sets = append(sets, "parallel.replicate="+pick(1, 2))
	}
	if r.IntN(4) == 0 {
		sets = append(sets, "zero.offload.optimizer=host", "zero.offload.ratio="+pick(1, 0.5))
	}
	c, err := setup.ThisMachine(1, 0).Draft("", sets)
	if err != nil {
		return nil
	}
	return c
}

// TestFewLayersAreAllOnMeshes checks that extrapolation equals a full run to the byte on pipelines
// and divided matrices, too, and that omitted places do not need more.
func TestFewLayersAreAllOnMeshes(t *testing.T) {
	r, n := rand.New(rand.NewPCG(1, 2)), nightly.Of(15, 150)
	for done := 0; done < n; {
		if c := drawnMesh(t, r); c != nil {
			s := bareOf(t, c, Limits{Ranks: c.Parallel.Ranks, Rates: roughRates})
			fewAreAll(t, s, s.job)
			done++
		}
	}
}

// TestDividedIsTheBestOfAll checks that the search by bounds and estimates finds the best of all
// simulated settings, and that every line agrees with plan and the simulator.
func TestDividedIsTheBestOfAll(t *testing.T) {
	h := &sim.Hardware{Name: "small", GPU: true, Flops: map[string]float64{"bf16": 2e12, "fp32": 1e12}, Memory: 1e12, Launch: 1e-7,
		Links: []sim.Link{{Ranks: 4, Bandwidth: 50e9, Latency: 1e-7}, {Bandwidth: 2e9, Latency: 2e-6}}}
	for i, memory := range []int64{4_900_000_000, 20_000_000_000}[:nightly.Of(1, 2)] { // little, and plenty
		c, err := setup.ThisMachine(1, 0).Draft("", []string{"model={family: llama, layers: 8, heads: 8, kv_heads: 8, width: 512, ffn: 1024, vocab: 2048, context: 256}",
			"parallel.ranks=8", "train.batch=16", "train.micro_batch=1", "device=cpu"})
		if err != nil {
			t.Fatal(err)
		}
		l := Limits{Ranks: 8, Memory: memory, GPU: true, Hardware: h, Rates: h.Rates(c.Precision)}
		f, err := Search(c, l)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Fits) == 0 {
			t.Fatalf("%d bytes: nothing fits", memory)
		}
		for _, x := range slices.Concat(f.Fits, f.Others) {
			y, err := setup.ThisMachine(1, 0).Draft("", append([]string{"model={family: llama, layers: 8, heads: 8, kv_heads: 8, width: 512, ffn: 1024, vocab: 2048, context: 256}",
				"parallel.ranks=8", "train.batch=16", "train.micro_batch=1", "device=cpu"}, x.Sets...))
			if err != nil {
				t.Fatalf("%v: %v", x.Sets, err)
			}
			p, err := plan.New(y, l.machine(y))
			r, wrong := sim.SimulateUntraced(setup.Planned(y), h)
			if err != nil || wrong != nil || p.Allocated != x.Needs.Device || math.Abs(r.Seconds-x.Seconds()) > 0.001*r.Seconds {
				t.Errorf("%v: %d bytes and %v s, by plan %d and %v, %v, %v", x.Sets, x.Needs.Device.Total(), x.Seconds(), p.Allocated.Total(), r, err, wrong)
			}
		}
		best, worst := math.Inf(1), 0.0
		s := searched(t, c, l)
		err = s.everything(func(x *Choice) {
			if err := x.simulate(); err != nil {
				t.Fatal(err)
			}
			best = min(best, x.Simulated.Seconds)
			worst = max(worst, x.Cost.Seconds()/x.Simulated.Seconds, x.Simulated.Seconds/x.Cost.Seconds())
		})
		if err != nil {
			t.Fatal(err)
		}
		if first := f.Fits[0]; first.Seconds() > best*1.01 {
			t.Errorf("%d: %v takes %v, the best %v", i, first.Sets, first.Seconds(), best)
		}
		t.Logf("%d bytes: %v, %v s; estimates are off by a factor of up to %.3f", memory, f.Fits[0].Sets, f.Fits[0].Seconds(), worst)
	}
}

// everything weighs every way to divide and shard the model, without bounds.
func (s *search) everything(fits func(*Choice)) error {
	ways, err := s.passages()
	for _, w := range ways {
		for stage := range zero.Stages {
			ranks := w.Parallel.DataRanks()
			for _, group := range divisors(ranks) {
				x := w.Config.Copy()
				x.Zero.Stage, x.Parallel.Shard, x.Parallel.Replicate = stage, group, ranks/group
				if stage == 0 && group < ranks || group*x.Parallel.Context == 1 && ranks > 1 {
					continue
				}
				c, wrong := s.choice(x)
				if wrong == nil && c.Fits() {
					wrong = s.weigh(c)
					fits(c)
				}
				err = cmp.Or(err, wrong)
			}
		}
	}
	for _, c := range s.all {
		if c.Fits() {
			fits(c)
		}
	}
	return err
}

// TestEstimates checks that estimates for pipelines of a large model are within ten percent of a
// simulation. Communication of units is hidden less than the estimate assumes.
func TestEstimates(t *testing.T) {
	h, err := sim.OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	for _, sets := range [][]string{
		{"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B", "pipeline.virtual=4", "parallel.tensor=4", "parallel.shard=8", "zero.stage=3", "train.accumulate=8"},
		{"parallel.pipeline=4", "parallel.tensor=8", "parallel.shard=2", "zero.stage=1", "train.accumulate=16"},
		{"parallel.pipeline=4", "pipeline.schedule=ZBH1", "parallel.tensor=8", "parallel.shard=4", "zero.stage=1", "train.accumulate=8", "zero.recompute=block"},
		{"parallel.pipeline=8", "parallel.tensor=2", "parallel.shard=4", "zero.stage=2", "train.accumulate=80"},
		{"parallel.pipeline=4", "pipeline.schedule=GPipe", "parallel.tensor=4", "parallel.shard=8", "zero.stage=2", "train.accumulate=4"},
	} {
		c, err := setup.ThisMachine(1, 0).Draft("", append([]string{"model={family: llama, layers: 40, heads: 64, kv_heads: 8, width: 8192, ffn: 28672, vocab: 128256, context: 8192}",
			"parallel.ranks=128", "train.micro_batch=1", "device=cpu", "train.batch=null", "parallel.replicate=" + replicas(sets)}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		x := one(t, c, Limits{Ranks: 128, Memory: 1 << 50, GPU: true, Hardware: h, Rates: h.Rates(c.Precision)})
		estimate := x.Seconds()
		if err := x.simulate(); err != nil {
			t.Fatal(err)
		}
		if of := estimate / x.Seconds(); of < 0.9 || of > 1.1 {
			t.Errorf("%v: %v s, simulated %v", sets, estimate, x.Seconds())
		} else {
			t.Logf("%v: %v s, simulated %v: %.3f", sets, estimate, x.Seconds(), of)
		}
	}
}

// replicas returns 128 divided by the dimensions in sets.
func replicas(sets []string) string {
	n := 128
	for _, set := range sets {
		var by int
		for _, of := range []string{"pipeline", "tensor", "shard"} {
			if _, err := fmt.Sscanf(set, "parallel."+of+"=%d", &by); err == nil {
				n /= by
			}
		}
	}
	return fmt.Sprint(n)
}
