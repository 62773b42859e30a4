package forecast

import (
	"math"
	"slices"
	"testing"

	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// everything tries every combination of settings, ratios of offloading by hundredths that are
// multiples of 10.
func everything(s *search) (all []*Choice) {
	list := []*spec.Job{s.job}
	for _, axis := range []func(*spec.Job) []*spec.Job{s.meshes, s.stages, s.shards, s.microBatches, s.passes, s.chunks, s.schedules, func(x *spec.Job) (more []*spec.Job) {
		for _, y := range s.offloads(x) {
			for part := 10; part <= parts; part += 10 {
				more = append(more, withRatio(y, part))
			}
		}
		return more
	}} {
		var next []*spec.Job
		for _, x := range list {
			if some := axis(x); some != nil {
				next = append(next, some...)
			} else {
				next = append(next, x)
			}
		}
		list = next
	}
	s.each(list)
	return s.all()
}

// TestFastestIsTheBestOfAll checks that the search finds a setting within half a percent of the
// fastest of all combinations, and something that fits whenever anything does; and that every
// listed choice can be set with its sets and then needs what it says.
func TestFastestIsTheBestOfAll(t *testing.T) {
	nightly.Parallel(t)
	for _, memory := range []int64{1 << 20, 3 << 20, 1 << 30}[:nightly.Of(2, 3)] {
		for _, host := range []int64{0, 16 << 20}[:nightly.Of(1, 2)] {
			c := spectest.Fitted(t, "zero.stage=1")
			l := Limits{Ranks: 4, Memory: memory, Host: host}
			f, err := Search(c, l)
			if err != nil {
				t.Fatal(err)
			}
			s := newSearch(c, l)
			best := slices.MinFunc(everything(s), s.compare)
			switch {
			case best.Fits() != (len(f.Fits) > 0):
				t.Errorf("%d and %d bytes: %v fits %v, and %d found choices do", memory, host, best.Sets, best.Fits(), len(f.Fits))
			case best.Fits() && f.Fits[0].Seconds() > best.Seconds()*1.005:
				t.Errorf("%d and %d bytes: %v takes %v, %v takes %v", memory, host, f.Fits[0].Sets, f.Fits[0].Seconds(), best.Sets, best.Seconds())
			}
			for _, x := range slices.Concat(f.Fits, f.Others) {
				needs, err := setup.DryRun(setup.Planned(spectest.Fitted(t, append([]string{"zero.stage=1"}, x.Sets...)...)))
				if needs != x.Needs || err != nil {
					t.Errorf("%v: needs %+v (%v), fit says %+v", x.Sets, needs, err, x.Needs)
				}
				if fits := needs.Device.Total() <= memory && needs.Host.Total() <= host; fits != slices.Contains(f.Fits, x) {
					t.Errorf("%v of %d bytes in %d: fits %v", x.Sets, needs.Device.Total(), memory, !fits)
				}
			}
		}
	}
}

// TestMeshIsTheBestOfAll checks the same where the model can be divided, and that every choice
// agrees with plan and the simulator.
func TestMeshIsTheBestOfAll(t *testing.T) {
	h := &Hardware{Name: "small", GPU: true, Flops: map[string]float64{"bf16": 2e12, "fp32": 1e12}, Memory: 1e12, Launch: 1e-7,
		Links: []Link{{Ranks: 4, Bandwidth: 50e9, Latency: 1e-7}, {Bandwidth: 2e9, Latency: 2e-6}}}
	job := []string{"model={family: llama, layers: 8, heads: 8, kv_heads: 8, width: 512, ffn: 1024, vocab: 2048, context: 256}",
		"parallel.ranks=8", "train.batch=16", "train.micro_batch=1", "device=cpu"}
	draft := func(sets []string) *spec.Job {
		c, err := setup.ThisMachine(1, 0).Draft("", append(slices.Clone(job), sets...))
		if err != nil {
			t.Fatalf("%v: %v", sets, err)
		}
		return c
	}
	for _, memory := range []int64{4_900_000_000, 20_000_000_000}[:nightly.Of(1, 2)] { // little, and plenty
		l := Limits{Ranks: 8, Memory: memory, GPU: true, Hardware: h}
		f, err := Search(draft(nil), l)
		if err != nil || len(f.Fits) == 0 {
			t.Fatalf("%d bytes: %+v, %v", memory, f, err)
		}
		for _, x := range slices.Concat(f.Fits, f.Others) {
			y := draft(x.Sets)
			p, err := NewPlan(y, l.machine(y))
			if err != nil || p.Allocated != x.Needs.Device {
				t.Errorf("%v: %d bytes, by plan %d, %v", x.Sets, x.Needs.Device.Total(), p.Allocated.Total(), err)
			}
			if !x.Fits() {
				continue
			}
			if r, err := SimulateUntraced(setup.Planned(y), h); err != nil || math.Abs(r.Seconds-x.Seconds()) > 1e-9*r.Seconds {
				t.Errorf("%v: %v s, simulated %+v, %v", x.Sets, x.Seconds(), r, err)
			}
		}
		if !nightly.All() {
			continue
		}
		for _, x := range everything(newSearch(draft(nil), l)) {
			if x.Fits() && f.Fits[0].Seconds() > x.Seconds()*1.005 {
				t.Errorf("%d bytes: %v takes %v, %v takes %v", memory, f.Fits[0].Sets, f.Fits[0].Seconds(), x.Sets, x.Seconds())
			}
		}
	}
}

// networks returns networks of 31 layers: both families, tied and untied, with every kind of
// update, with layers that are equal, different or repeating, and with all or a part of them
// trained.
func networks(t *testing.T) map[string]*spec.Job {
	job := func(sets ...string) *spec.Job {
		return spectest.Fitted(t, append([]string{"model.layers=31", "train.batch=null", "checkpoint.every=5"}, sets...)...)
	}
	llama, lora := "model.family=llama", []string{"train.lora.rank=2", "train.lora.targets=[all-linear]"}
	windows := job(llama, "model.kv_heads=1", "precision=fp32")
	windows.Model.Layout, windows.Model.Window = "wwf", 8
	own := job().Model.Network(nn.LoRA{})
	for i := 3; i < 30; i += 3 {
		own.Uses[i][0].Unit, own.Uses[i+1][0].Unit = own.Uses[i+1][0].Unit, own.Uses[i][0].Unit
	}
	given := job()
	given.Own.Model = own
	return map[string]*spec.Job{
		"gpt2": job("parallel.shard=2", "parallel.replicate=2"), "llama": job(llama, "optimizer.type=lion"), "tied": job(llama, "model.tied=true", "optimizer.type=adamw8bit", "device=cpu"),
		"long ends": job(llama, "model.vocab=5000"), "muon": job("optimizer.type=muon", "device=cpu", "checkpoint.async=false"), "windows": windows, "given": given,
		"adapters": job(append(lora, llama)...), "adapters of some": job(append(lora, `train.freeze=["*.h.1*.lora_*"]`)...),
		"ranks of some": job(append(lora, llama, "train.lora.dropout=0.1", `train.lora.rank_pattern={"layers.1.*":5}`, "train.lora.modules_to_save=[3.input_layernorm, lm_head]")...),
		"codes":         job(append(lora, llama, "model.weights=nf4")...), "codes of 8 bits": job(append(lora, llama, "model.weights=int8", "precision=fp32")...),
		"frozen ends": job(`train.freeze=["*.wte.*", "*.ln_f.*"]`), "frozen front": job(llama, `train.freeze=["*.embed_tokens.*", "*.layers.?.*"]`),
		"every fifth frozen": job(`train.freeze=["*.h.*[05].*"]`), "muon, some frozen": job("optimizer.type=muon", "device=cpu", `train.freeze=["*.h.2?.mlp.*"]`),
	}
}

// TestAllIsSearched checks that partially trained models, codes in host memory and given networks can
// be searched, and that a network without a model section cannot be enlarged.
func TestAllIsSearched(t *testing.T) {
	nightly.Parallel(t)
	all := networks(t)
	for i, name := range []string{"codes", "adapters of some", "given", "frozen front"} {
		if !nightly.Every(2, i) {
			continue
		}
		c := all[name]
		c.Train.Batch = c.Train.MicroBatch * c.Train.Accumulate * c.Parallel.Ranks
		l := Limits{Ranks: 4, Memory: 16 << 20, Host: 1 << 30}
		f, err := Search(c, l)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range slices.Concat(f.Fits, f.Others) {
			if !nightly.Every(4, i) {
				continue
			}
			if needs, err := setup.DryRun(setup.Planned(x.Config)); err != nil || needs.Device.Total() != x.Needs.Device.Total() {
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
	if _, err := FindLargest(all["given"], "model", Limits{Ranks: 4, Memory: 16 << 20}); !input.IsInput(err) {
		t.Errorf("the largest of a given network: %v", err)
	}
}
