package fit

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/config/configtest"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// networks returns networks of 31 layers: both families, tied and untied, with every kind of
// update, with layers that are equal, different or repeating, and with all or a part of them
// trained.
func networks(t *testing.T) map[string]*config.Config {
	job := func(sets ...string) *config.Config {
		return configtest.Fitted(t, append([]string{"model.layers=31", "train.batch=null", "checkpoint.every=5"}, sets...)...)
	}
	llama, lora := "model.family=llama", []string{"train.lora.rank=2", "train.lora.targets=[all-linear]"}
	windows := job(llama, "model.kv_heads=1", "precision=fp32")
	windows.Model.Layout, windows.Model.Window = "wwf", 8
	own := job().Model.Network(nn.LoRA{})
	for i := 3; i < 30; i += 3 {
		own.Uses[i][0].Unit, own.Uses[i+1][0].Unit = own.Uses[i+1][0].Unit, own.Uses[i][0].Unit
	}
	given := config.Standing(job(), own)
	return map[string]*config.Config{
		"gpt2": job("parallel.shard=2", "parallel.replicate=2"), "llama": job(llama, "optimizer.type=lion"), "tied": job(llama, "model.tied=true", "optimizer.type=adamw8bit", "device=cpu"),
		"long ends": job(llama, "model.vocab=5000"), "muon": job("optimizer.type=muon", "device=cpu", "checkpoint.async=false"), "windows": windows, "given": given,
		"adapters": job(append(lora, llama)...), "adapters of some": job(append(lora, `train.freeze=["*.h.1*.lora_*"]`)...),
		"ranks of some": job(append(lora, llama, "train.lora.dropout=0.1", `train.lora.rank_pattern={"layers.1.*":5}`, "train.lora.modules_to_save=[3.input_layernorm, lm_head]")...),
		"codes":         job(append(lora, llama, "model.weights=nf4")...), "codes of 8 bits": job(append(lora, llama, "model.weights=int8", "precision=fp32")...),
		"frozen ends": job(`train.freeze=["*.wte.*", "*.ln_f.*"]`), "frozen front": job(llama, `train.freeze=["*.embed_tokens.*", "*.layers.?.*"]`),
		"every fifth frozen": job(`train.freeze=["*.h.*[05].*"]`), "muon, some frozen": job("optimizer.type=muon", "device=cpu", `train.freeze=["*.h.2?.mlp.*"]`),
	}
}

// settings calls f with every combination of settings that affect memory, and some offload ratios.
func settings(c *config.Config, f func(config.Config)) {
	for stage := range zero.Stages {
		places := []config.Offload{{Optimizer: "none", Parameters: "none"}, {Optimizer: "host", Parameters: "none"}, {Optimizer: "disk", Parameters: "none"}}
		if stage == 3 {
			places = append(places, config.Offload{Optimizer: "host", Parameters: "host"}, config.Offload{Optimizer: "none", Parameters: "disk"}, config.Offload{Optimizer: "disk", Parameters: "host"})
		}
		for prefetch := range 4 {
			for _, recompute := range config.Recomputes {
				for _, accumulate := range []int{1, 2, 5} {
					for i, o := range places {
						x := *c
						o.Path, o.Buffers, o.Ratio = ".", 1+(3*i+prefetch)%6, []float64{1, 0.5, 0.07, 0.93}[(stage+prefetch+i+accumulate)%4]
						x.Zero.Stage, x.Zero.Prefetch, x.Zero.Recompute, x.Train.Accumulate, x.Zero.Offload = stage, prefetch, recompute, accumulate, o
						x.Train.MicroBatch, x.Train.LossChunk = 1+prefetch%2, []int{1024, 10}[i%2]
						f(x)
					}
				}
			}
		}
	}
}

// TestFewLayersAreAll checks that extrapolation from a few layers equals a full run: to the byte
// in every category, and to the operation.
func TestFewLayersAreAll(t *testing.T) {
	for name, c := range networks(t) {
		s := bareOf(t, c, Limits{Ranks: 4, Rates: roughRates})
		var all, some []*config.Config
		settings(s.job, func(x config.Config) { all = append(all, &x) })
		every := nightly.Of(40, 3)
		for i := range all {
			if i%every == len(name)%every {
				some = append(some, all[i])
			}
		}
		t.Run(fmt.Sprint(name, " ", len(some)), func(t *testing.T) {
			var wait sync.WaitGroup
			for w := range runtime.GOMAXPROCS(0) {
				wait.Go(func() {
					for i := w; i < len(some); i += runtime.GOMAXPROCS(0) {
						fewAreAll(t, s, some[i])
					}
				})
			}
			wait.Wait()
		})
		for run := range s.runs.of {
			if n := strings.Count(run.modules, "{"); n > 16 && (name == "gpt2" || name == "llama" || name == "tied") {
				t.Errorf("%s: a dry run of %d modules", name, n)
			}
		}
	}
}

func fewAreAll(t *testing.T, s *search, x *config.Config) {
	t.Helper()
	c, err := s.choice(x)
	if err == nil {
		err = s.weigh(c)
	}
	if err != nil {
		t.Error(err)
		return
	}
	what := fmt.Sprintf("stage %d, prefetch %d, recompute %s, accumulate %d, %+v", x.Zero.Stage, x.Zero.Prefetch, x.Zero.Recompute, x.Train.Accumulate, x.Zero.Offload)
	needs, err := setup.DryRun(setup.Planned(x))
	if err != nil || c.Needs != needs {
		t.Errorf("%s: needs %+v, a run of all %+v, %v", what, c.Needs, needs, err)
	}
	places, err := s.pipelineRanks(x)
	if err != nil {
		t.Error(err)
	}
	for _, p := range places {
		k := s.keyOf(x, p)
		k.moves = true
		few, err1 := s.measure(x, p, k)
		moves, err2 := s.runUnits(x, p, k, every(len(p.modules)))
		if err1 != nil || err2 != nil || few.traffic != moves.traffic {
			t.Errorf("%s: place %d moves %v, a run of all %v, %v, %v", what, p.at, few.traffic, moves.traffic, err1, err2)
		}
	}
	alone := unpiped(x)
	alone.Train.MicroBatch, alone.Train.LossChunk, alone.Zero.Recompute = x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute
	l, err1 := s.network(x)
	kinds, err2 := s.profile(x)
	if err := cmp.Or(err1, err2); err != nil {
		t.Fatal(err)
	}
	var few sim.Operations
	for _, kind := range l.kind {
		few = few.Plus(kinds[kind].ops, 1)
	}
	if p, err := profiled(alone, l.model); err != nil || few != p.recording.Operations {
		t.Errorf("%s: %+v, a run of all %+v, %v", what, few, p.recording.Operations, err)
	}
}

// every returns the indices of n modules.
func every(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestWholeUnitsMoveAsMuch checks that tiles of whole units move as many bytes as a run, which
// divides units into many tiles.
func TestWholeUnitsMoveAsMuch(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=."},
		{"zero.offload.optimizer=disk", "zero.offload.path=.", "optimizer.type=adamw8bit"},
		{"zero.offload.optimizer=disk", "zero.offload.path=.", "optimizer.type=muon"},
	} {
		c := configtest.Fitted(t, append(sets, "device=cpu", "zero.stage=3", "model.layers=3", "model.width=1000", "model.heads=10", "train.accumulate=2", "train.micro_batch=1", "train.batch=null")...)
		s := bareOf(t, c, Limits{Ranks: 4, Rates: roughRates})
		places, err := s.pipelineRanks(s.job)
		if err != nil {
			t.Fatal(err)
		}
		k := s.keyOf(s.job, places[0])
		k.moves = true
		whole, err := s.runUnits(s.job, places[0], k, every(len(places[0].modules)))
		if err != nil {
			t.Fatal(err)
		}
		var meter *sim.Meter
		r, _, _, err := setup.DryRank(setup.Planned(s.job), 0, func(z *zero.Config) { meter = sim.NewMeter(z, nil) })
		if err != nil {
			t.Fatal(err)
		}
		meter.Step(r)
		if meter.Step(r); whole.traffic != meter.Traffic {
			t.Errorf("%v: %v, in many tiles %v", sets, whole.traffic, meter.Traffic)
		}
	}
}

// TestAllIsSearched checks that partially trained models, codes in host memory and given networks can
// be searched, and that a network without a model section cannot be enlarged.
func TestAllIsSearched(t *testing.T) {
	all := networks(t)
	for _, name := range []string{"adapters of some", "codes", "frozen front", "given"} {
		c := all[name]
		c.Train.Batch = c.Train.MicroBatch * c.Train.Accumulate * c.Parallel.Ranks
		l := Limits{Ranks: 4, Memory: 16 << 20, Host: 1 << 30, Rates: roughRates}
		f, err := Search(c, l)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range slices.Concat(f.Fits, f.Others) {
			if needs, err := setup.DryRun(setup.Planned(x.Config)); err != nil || needs.Device.Total() != x.Needs.Device.Total() || !x.Exact {
				t.Errorf("%s: %v: needs %+v, a dry run %+v, %v", name, x.Sets, x.Needs, needs, err)
			}
		}
		if len(f.Fits) == 0 {
			t.Errorf("%s: nothing fits", name)
		}
		if name == "codes" && !slices.ContainsFunc(slices.Concat(f.Fits, f.Others), func(x *Choice) bool { return x.Config.Zero.Offload.Parameters == "host" }) {
			t.Errorf("%s: nothing tried has codes in host memory", name)
		}
	}
	if _, err := FindLargest(all["given"], "model", Limits{Ranks: 4, Memory: 16 << 20, Rates: roughRates}); !input.IsInput(err) {
		t.Errorf("the largest of a given network: %v", err)
	}
}

// TestSplitFromRatio checks that a ratio computed from a split gives that split.
func TestSplitFromRatio(t *testing.T) {
	for _, frozen := range []int{-1, 0, 3, 7} {
		var units []offload.Unit
		for i := range 8 {
			units = append(units, offload.Unit{Len: 64 * (1 + i*i%5), Frozen: i == frozen})
		}
		for first := range len(units) + 1 {
			if first < len(units) && units[first].Frozen {
				continue
			}
			if got := offload.Split(units, offload.RatioFrom(units, first)); got != first {
				t.Errorf("frozen %d: first %d, split at %d", frozen, first, got)
			}
		}
	}
}
