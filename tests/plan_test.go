package tests

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// planOf returns a job's plan on this machine.
func planOf(t *testing.T, c *spec.Job) *forecast.Plan {
	t.Helper()
	p, err := forecast.NewPlan(c, forecast.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// uses returns the allocations that contain the given categories.
func uses(a forecast.Amounts) (b device.Bytes) {
	for c, n := range a {
		b[forecast.Category(c).Use()] += n
	}
	return b
}

// TestInUseIsWithinAllocated checks that a plan allocates what a run allocates, and that no
// category ever uses more than its allocation. The arena must be fully used at some event, and so
// must gathered units and whole gradients if all units are alike.
func TestInUseIsWithinAllocated(t *testing.T) {
	for _, sets := range slices.Concat(memoryJobs, offloadJobs) {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			c := cfg(t, sets...)
			p := planOf(t, c)
			if p.Host != formula(c, 0).Host() || p.Disk != formula(c, 0).Disk() {
				t.Errorf("planned %v on the host and %d on disk, want %v and %d", p.Host, p.Disk, formula(c, 0).Host(), formula(c, 0).Disk())
			}
			sameBytes(t, "planned", p.Allocated, formula(c, 0).Bytes())
			var most device.Bytes
			for _, m := range p.Timeline {
				for use, n := range uses(m.InUse) {
					if n < 0 || n > p.Allocated[use] {
						t.Errorf("%s: %d bytes of %v in use of %d", m.Name, n, device.Use(use), p.Allocated[use])
					}
					most[use] = max(most[use], n)
				}
			}
			for use, n := range most {
				want := p.Allocated[use]
				if n != want {
					t.Errorf("at most %d bytes of %v in use, allocated are %d", n, device.Use(use), want)
				}
			}
			for use, n := range uses(p.AtRest) {
				if n > uses(p.Timeline[0].InUse)[use] || n > p.Allocated[use] {
					t.Errorf("at rest %d bytes of %v", n, device.Use(use))
				}
			}
			if strings.Contains(p.Peak.Name, "%!") || p.Peak.InUse.Total() > p.Allocated.Total() {
				t.Errorf("peak %q: %d bytes of %d", p.Peak.Name, p.Peak.InUse.Total(), p.Allocated.Total())
			}
		})
	}
}

// TestDeepSpeedEstimates compares plans with the figures that DeepSpeed's estimators print, in GiB.
// For the exact sizes of T5-3B these are in DeepSpeed's documentation.
func TestDeepSpeedEstimates(t *testing.T) {
	type figures struct{ cpu, gpu float64 }
	for _, test := range []struct {
		stage           int
		params, largest int64
		gpus, nodes     int
		want            []figures
	}{
		{3, 2851598336, 32899072, 8, 1, []figures{{71.71, 0.12}, {127.48, 0.12}, {63.74, 0.79}, {127.48, 0.79}, {1.47, 6.10}, {127.48, 6.10}}},
		{3, 2851e6, 32e6, 8, 1, []figures{{71.69, 0.12}, {127.45, 0.12}, {63.72, 0.78}, {127.45, 0.78}, {1.43, 6.09}, {127.45, 6.09}}},
		{2, 2851598336, 0, 8, 1, []figures{{127.48, 5.31}, {127.48, 11.29}}},
		{2, 2851e6, 0, 8, 1, []figures{{127.45, 5.31}, {127.45, 11.28}}},
		{2, 2851598336, 0, 8, 4, []figures{{509.91, 5.31}, {127.48, 6.81}}},
		{2, 2851e6, 0, 8, 4, []figures{{509.80, 5.31}, {127.45, 6.80}}},
		{3, 6805e6, 131e6, 4, 1, []figures{{-1, 0.49}, {-1, 0.49}, {-1, 3.66}, {-1, 3.66}, {-1, 29.01}, {-1, 29.01}}},
	} {
		rows := deepSpeed(test.stage, test.params, test.largest, test.gpus, test.nodes)
		if len(rows) != len(test.want) {
			t.Fatalf("stage %d: %d rows", test.stage, len(rows))
		}
		for i, r := range rows {
			want := test.want[i]
			const gib = 1 << 30
			if cpu := float64(r.CPU) / gib; want.cpu >= 0 && math.Abs(cpu-want.cpu) > 0.005 {
				t.Errorf("stage %d, %d parameters, %+v: %.3f GiB of host memory, want %.2f", test.stage, test.params, r, cpu, want.cpu)
			}
			if gpu := float64(r.GPU) / gib; math.Abs(gpu-want.gpu) > 0.005 {
				t.Errorf("stage %d, %d parameters, %+v: %.3f GiB a GPU, want %.2f", test.stage, test.params, r, gpu, want.gpu)
			}
		}
	}
}

// TestZeROPaperTable checks the states of a bf16 model by stage, in GB, against the ZeRO paper's
// figure 1 and table 1. The paper keeps gradients in 16 bits and we keep them in float32, so its
// 2 + 2 + 12 bytes per parameter are our 2 + 4 + 12 minus 2 per gradient. At
// stage 3, the 2 bytes of the parameter are missing: it is cast from the master copy.
func TestZeROPaperTable(t *testing.T) {
	for _, row := range []struct {
		params, ranks int
		want          [3]float64 // GB at stages 1, 2, 3
	}{
		{7.5e9, 1, [3]float64{120, 120, 120}}, {7.5e9, 4, [3]float64{52.5, 41.25, 30}}, {7.5e9, 16, [3]float64{35.6, 21.6, 7.5}},
		{7.5e9, 64, [3]float64{31.4, 16.6, 1.88}}, {7.5e9, 256, [3]float64{30.4, 15.4, 0.47}}, {7.5e9, 1024, [3]float64{30.1, 15.1, 0.12}},
		{128e9, 1, [3]float64{2048, 2048, 2048}}, {128e9, 4, [3]float64{896, 704, 512}}, {128e9, 16, [3]float64{608, 368, 128}},
		{128e9, 64, [3]float64{536, 284, 32}}, {128e9, 256, [3]float64{518, 263, 8}}, {128e9, 1024, [3]float64{513.5, 257.8, 2}},
		{1e12, 1, [3]float64{16000, 16000, 16000}}, {1e12, 4, [3]float64{7000, 5500, 4000}}, {1e12, 16, [3]float64{4750, 2875, 1000}},
		{1e12, 64, [3]float64{4187.5, 2218.8, 250}}, {1e12, 256, [3]float64{4046.9, 2054.7, 62.5}}, {1e12, 1024, [3]float64{4011.7, 2013.7, 15.6}},
	} {
		const units = 1000
		sizes := make([]unitSize, units)
		for i := range sizes {
			sizes[i].Numel = row.params / units
		}
		for i, want := range row.want {
			s := zero.Stage(i + 1)
			b := footprint{Units: sizes, Mesh: s.Mesh(shard.Mesh{Shard: row.ranks, Replicate: 1}), Policy: s.Policy(0, nn.RecomputeNone), DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}, Micro: 1}.Bytes()
			grads := b[device.Grads] / 2
			if s < 2 {
				grads = b[device.UnitGrads] / 2
			}
			got := float64(b[device.Params]+grads+b[device.Master]+b[device.States]) / 1e9
			if s == 3 {
				want *= 14.0 / 16
			}
			if math.Abs(got-want) > 0.005*want+0.005 {
				t.Errorf("%d parameters on %d ranks, stage %d: %.2f GB, want %.2f", row.params, row.ranks, s, got, want)
			}
		}
	}
}

// modelFolder writes a config.json and returns its folder.
func modelFolder(t *testing.T, config string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	return folder
}

func gpt2Config(layers, heads, width int) string {
	return fmt.Sprintf(`{"model_type":"gpt2","n_layer":%d,"n_head":%d,"n_embd":%d,"n_positions":1024,"vocab_size":50257}`, layers, heads, width)
}

func llamaConfig(layers, heads, kv, width, ffn int, tied bool) string {
	return fmt.Sprintf(`{"model_type":"llama","num_hidden_layers":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"hidden_size":%d,"intermediate_size":%d,
		"vocab_size":128256,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":5e5,"tie_word_embeddings":%t}`, layers, heads, kv, width, ffn, tied)
}

// golden lists published models: their parameters and, by the ZeRO paper's 2 + 2 + 12 bytes,
// their bf16 states in GB on one rank, and on 8 and 64 at stages 1 to 3.
var golden = []struct {
	name, config string
	parameters   int64
	one          float64
	eight, many  [3]float64
}{
	{"GPT-2 124M", gpt2Config(12, 12, 768), 124439808, 1.991, [3]float64{0.684, 0.467, 0.249}, [3]float64{0.521, 0.276, 0.031}},
	{"GPT-2 355M", gpt2Config(24, 16, 1024), 354823168, 5.677, [3]float64{1.952, 1.331, 0.710}, [3]float64{1.486, 0.787, 0.089}},
	{"GPT-2 774M", gpt2Config(36, 20, 1280), 774030080, 12.384, [3]float64{4.257, 2.903, 1.548}, [3]float64{3.241, 1.717, 0.194}},
	{"GPT-2 1.5B", gpt2Config(48, 25, 1600), 1557611200, 24.922, [3]float64{8.567, 5.841, 3.115}, [3]float64{6.522, 3.456, 0.389}},
	{"Llama-3.2 1B", llamaConfig(16, 32, 8, 2048, 8192, true), 1235814400, 19.773, [3]float64{6.797, 4.634, 2.472}, [3]float64{5.175, 2.742, 0.309}},
	{"Llama-3 8B", llamaConfig(32, 32, 8, 4096, 14336, false), 8030261248, 128.48, [3]float64{44.17, 30.11, 16.06}, [3]float64{33.63, 17.82, 2.01}},
	{"Llama-3 70B", llamaConfig(80, 64, 8, 8192, 28672, false), 70553706496, 1128.9, [3]float64{388.0, 264.6, 141.1}, [3]float64{295.4, 156.5, 17.6}},
	{"Llama-3 405B", llamaConfig(126, 128, 8, 16384, 53248, false), 405853388800, 6493.7, [3]float64{2232, 1522, 811.7}, [3]float64{1700, 900.5, 101.5}},
}

// TestGoldenModels checks the number of parameters and the model states of published models on 1
// to 1,024 ranks.
func TestGoldenModels(t *testing.T) {
	nightly.Parallel(t)
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			folder := modelFolder(t, g.config)
			states := func(stage, ranks int) float64 {
				c, err := spec.Draft("", []string{fmt.Sprintf("model.from=%q", folder), "model.context=1024", "train.micro_batch=1",
					fmt.Sprintf("zero.stage=%d", stage), fmt.Sprintf("parallel.ranks=%d", ranks)})
				if err != nil {
					t.Fatal(err)
				}
				p, err := forecast.NewPlan(c, forecast.Machine{GPU: true})
				if err != nil {
					t.Fatal(err)
				}
				if p.Parameters != g.parameters {
					t.Fatalf("%d parameters, want %d", p.Parameters, g.parameters)
				}
				if p.Allocated[device.States] != 2*p.Allocated[device.Master] {
					t.Errorf("two moments of %d bytes, a master copy of %d", p.Allocated[device.States], p.Allocated[device.Master])
				}
				// Units in their own slots are not counted as shards, so the master copy
				// determines both.
				part, params, grads := p.Allocated[device.Master]/4, p.Allocated[device.Params]/2, p.Allocated[device.UnitGrads]/4
				if stage == 3 {
					params = part
				}
				if stage > 1 {
					grads = part
				}
				return float64(2*params+2*grads+12*part) / 1e9
			}
			near := func(what string, got, want float64) {
				if math.Abs(got-want) > 0.0025*want+0.0006 {
					t.Errorf("%s: %.4f GB, want %.4g", what, got, want)
				}
			}
			near("one rank", states(0, 1), g.one)
			for stage := 1; stage <= 3; stage++ {
				near(fmt.Sprintf("8 ranks, stage %d", stage), states(stage, 8), g.eight[stage-1])
				near(fmt.Sprintf("64 ranks, stage %d", stage), states(stage, 64), g.many[stage-1])
			}
			states(3, 1024)
		})
	}
}

// TestPlanIsSmall checks that a plan for many ranks uses little memory for any model.
func TestPlanIsSmall(t *testing.T) {
	c, err := spec.Draft("", []string{fmt.Sprintf("model.from=%q", modelFolder(t, golden[len(golden)-1].config)), "model.context=8192", "train.micro_batch=1",
		"parallel.ranks=1024", "train.accumulate=64"})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p, err := forecast.NewPlan(c, forecast.Machine{GPU: true})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Errorf("the plan of 405B parameters took %d bytes", got)
	}
	if len(p.Timeline) > 4000 || p.Parameters != 405853388800 {
		t.Errorf("%d events of %d parameters", len(p.Timeline), p.Parameters)
	}
}

// TestTimeline checks that the timeline matches the schedule: every unit is gathered, used,
// reduced and updated, and the peak is the maximum of the timeline. Recomputation adds a working
// set and saves memory.
func TestTimeline(t *testing.T) {
	peaks := map[string]int64{}
	for _, recompute := range []string{"none", "block"} {
		p := planOf(t, cfg(t, "parallel.ranks=4", "zero.recompute="+recompute, "train.loss_chunk=5", "precision=bf16"))
		count := map[string]int{}
		var recomputed, logits int64
		for _, m := range p.Timeline {
			count[string(m.Phase)+" "+m.Unit]++
			recomputed, logits = max(recomputed, m.InUse[forecast.Recomputed]), max(logits, m.InUse[forecast.Logits])
			if m.InUse.Total() > p.Peak.InUse.Total() {
				t.Errorf("%s is higher than the peak", m.Name)
			}
		}
		for event, n := range map[string]int{
			"all-gather root": 1, "forward root": 2, "backward root": 2, "reduce-scatter root": 1, "norm root": 1, "update root": 1,
			"all-gather h.1": 1, "forward h.1": 1, "backward h.1": 1, "reduce-scatter h.1": 1, "update h.1": 1,
			"recompute h.1": map[string]int{"block": 1}[recompute], "all-gather h.0": 2,
		} {
			if count[event] != n {
				t.Errorf("recompute %s: %d times %s, want %d", recompute, count[event], event, n)
			}
		}
		if (recomputed > 0) != (recompute == "block") {
			t.Errorf("recompute %s: a working set of %d bytes", recompute, recomputed)
		}
		if want := int64((2*5*256 + 63) / 64 * 64); logits != want {
			t.Errorf("%d bytes of logits, want %d", logits, want)
		}
		peaks[recompute] = p.Peak.InUse.Total()
	}
	if peaks["block"] >= peaks["none"] {
		t.Errorf("peaks: %v", peaks)
	}
}

// at returns the events of a phase of a unit, in order.
func at(p *forecast.Plan, phase, unit string) (list []*forecast.Moment) {
	for _, m := range p.Timeline {
		if string(m.Phase) == phase && m.Unit == unit {
			list = append(list, m)
		}
	}
	return list
}

// TestInUseByHand compares the memory in use at single events with values counted by hand. The
// units have 3180 (root) and 1884 (blocks) elements, padded to 3328 and 2048 on 4 ranks.
func TestInUseByHand(t *testing.T) {
	const root, block, e = 3328, 2048, 2
	const row = (14*12*e + 63) / 64 * 64 // a residual stream of 2 × 7 positions of width 12
	check := func(what string, got forecast.Amounts, c forecast.Category, want int64) {
		t.Helper()
		if got[c] != want {
			t.Errorf("%s: %d bytes of %v, want %d", what, got[c], c, want)
		}
	}
	p := planOf(t, cfg(t, "zero.stage=3", "parallel.ranks=4", "train.accumulate=2", "precision=bf16"))
	check("before the first block", at(p, "forward", "root")[0].InUse, forecast.GatheredUnits, e*(root+block))
	head := at(p, "backward", "root")[0].InUse
	check("the output layer", head, forecast.GatheredUnits, e*(root+2*block)) // both slots are needed again
	check("the output layer", head, forecast.UnitGradients, 4*root)
	check("the output layer", head, forecast.Gradients, 0)
	first := at(p, "reduce-scatter", "h.0")
	check("block 0 is reduced", first[0].InUse, forecast.SavedActivations, 2*row) // the embedding and the gradient
	check("block 0 is reduced", first[0].InUse, forecast.UnitGradients, 4*(root+2*block))
	check("block 0 is reduced", first[0].InUse, forecast.Gradients, 4*3*block/4)
	check("block 0 is reduced again", first[1].InUse, forecast.Gradients, 4*(root+3*block)/4)
	check("the norm", at(p, "norm", "h.2")[0].InUse, forecast.SavedActivations, 0)
	last := at(p, "update", "h.1")[0].InUse
	check("two units are updated", last, forecast.Gradients, 4*2*block/4)
	check("two units are updated", last, forecast.UnitGradients, 0)
	check("two units are updated", last, forecast.GatheredUnits, 0)
	if want := int64((4+12)*3*(block-1884) + (e+4+12)*(root-3180)); p.Padding != want {
		t.Errorf("%d bytes of padding, want %d", p.Padding, want)
	}

	p = planOf(t, cfg(t, "zero.stage=3", "parallel.ranks=4", "zero.prefetch=0", "precision=bf16"))
	check("without prefetch", at(p, "all-gather", "h.0")[1].InUse, forecast.UnitGradients, 4*root) // h.1 is reduced before it proceeds
	check("without prefetch", at(p, "backward", "h.1")[0].InUse, forecast.UnitGradients, 4*(root+block))

	p = planOf(t, cfg(t, "zero.stage=1", "parallel.ranks=4", "train.accumulate=2", "precision=bf16"))
	whole := at(p, "backward", "h.1")
	check("kept", whole[0].InUse, forecast.UnitGradients, 4*(root+2*block))
	check("kept, and one more", whole[1].InUse, forecast.UnitGradients, 4*(root+3*block+root+block))
	check("one unit is updated", at(p, "update", "h.0")[0].InUse, forecast.UnitGradients, 4*3*block)
	check("stage 1", whole[1].InUse, forecast.GatheredUnits, 0)
	check("stage 1", whole[1].InUse, forecast.Params, e*(root+3*block))
}

// TestPeakIsNamed checks that the plan names the peak.
func TestPeakIsNamed(t *testing.T) {
	for want, sets := range map[string][]string{
		"backward of h.1, before its reduce-scatter": {"zero.stage=3"},
		"backward of h.1": {"zero.stage=3", "parallel.ranks=1"},
		"backward of h.2, before its reduce-scatter":       {"zero.stage=3", "train.micro_batch=50", "train.loss_chunk=1"},
		"backward of the output layer, micro-batch 2 of 2": {"zero.stage=2", "train.accumulate=2"},
		"backward of h.2, micro-batch 2 of 3":              {"zero.stage=1", "train.accumulate=3", "zero.recompute=block"},
		"backward of the output layer":                     {"zero.stage=3", "model.vocab=20000", "zero.recompute=block"},
	} {
		if p := planOf(t, cfg(t, append([]string{"parallel.ranks=4"}, sets...)...)); p.Peak.Name != want {
			t.Errorf("%v: the peak is %q, want %q", sets, p.Peak.Name, want)
		}
	}
}

// TestTimelineFiles checks that all three drawings contain the timeline's data and that the page
// loads nothing from elsewhere.
func TestTimelineFiles(t *testing.T) {
	p := planOf(t, cfg(t, "zero.recompute=block", "train.accumulate=6", "train.batch=null"))
	var table, page bytes.Buffer
	if err := errors.Join(p.WriteCSV(&table), p.WriteHTML(&page)); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&table).ReadAll()
	if err != nil || len(lines) != len(p.Timeline)+1 {
		t.Fatalf("%d lines for %d events: %v", len(lines), len(p.Timeline), err)
	}
	for i, m := range p.Timeline {
		line := lines[i+1]
		if n := len(line); line[1] != string(m.Phase) || line[n-2] != fmt.Sprint(m.InUse.Total()) || line[n-1] != fmt.Sprint(p.Allocated.Total()) {
			t.Errorf("event %d: %v", i, line)
		}
	}
	text := page.String()
	for _, outside := range []string{"http:", "https:", "src=", "href=", "@import", "url("} {
		if strings.Contains(text, outside) {
			t.Errorf("the page has %s", outside)
		}
	}
	_, data, _ := strings.Cut(text, "const plan = ")
	data, _, _ = strings.Cut(data, ";\n")
	var drawn struct {
		Allocated int64
		Peak      int
		Events    []struct {
			Name  string
			Bytes []int64
		}
		Stretches, Micros []stretch
	}
	if err := json.Unmarshal([]byte(data), &drawn); err != nil || len(drawn.Events) != len(p.Timeline) || p.Timeline[drawn.Peak] != p.Peak {
		t.Fatalf("what the page draws: %v\n%.200s", err, data)
	}
	for i, e := range drawn.Events {
		var sum int64
		for _, n := range e.Bytes {
			sum += n
		}
		if e.Name != p.Timeline[i].Name || sum != p.Timeline[i].InUse.Total() {
			t.Errorf("event %d on the page: %s, %d bytes", i, e.Name, sum)
		}
	}
	checkStretches(t, p, drawn.Stretches, drawn.Micros)
	if want := "micro-batches 3 to 5 look like micro-batch 2 and are not drawn"; !strings.Contains(text, want) {
		t.Errorf("the page does not say that %s", want)
	}
	var drawing strings.Builder
	for _, memory := range []int64{0, 2, 3} {
		p.Machine.Memory = memory * p.Allocated.Total()
		drawing.Reset()
		if err := p.WriteSVG(&drawing); err != nil {
			t.Fatal(err)
		}
		has := ">device has " + show.ByteSize(p.Machine.Memory) + "<"
		for word, want := range map[string]bool{
			">saved activations<": true, ">optimizer states<": true, ">allocated, ": true, "MiB)<": true, ">forward<": true, ">backward<": true, ">update<": true, ">micro-batch 6<": true,
			"3 to 5 look like micro-batch 2": true, has: memory == 2, ">↑ " + has[1:]: memory == 3,
		} {
			if strings.Contains(drawing.String(), word) != want {
				t.Errorf("device of %d times what is allocated: %q in the drawing: %v", memory, word, !want)
			}
		}
	}
}

// stretch is a part of a drawn step: events From to To-1.
type stretch struct {
	From, To int
	Name     string
}

// checkStretches checks that every event is in the passes of a drawn step, in order, and in the
// micro-batches below them.
func checkStretches(t *testing.T, p *forecast.Plan, passes, micros []stretch) {
	t.Helper()
	at := 0
	var names []string
	for _, s := range passes {
		if s.From != at || s.To <= at {
			t.Errorf("%s is from event %d to %d, and the one before ends at %d", s.Name, s.From, s.To, at)
		}
		names, at = append(names, s.Name), s.To
		for _, m := range p.Timeline[s.From:s.To] {
			want := map[forecast.Phase]string{"forward": "forward", "backward": "backward", "recompute": "backward", "reduce-scatter": "backward", "norm": "update", "update": "update"}[m.Phase]
			if want != "" && want != s.Name {
				t.Errorf("%s is in the %s pass", m.Name, s.Name)
			}
		}
	}
	if got := strings.Join(names, " "); at != len(p.Timeline) || got != "forward backward forward backward forward backward update" {
		t.Errorf("the passes are %s, to event %d of %d", got, at, len(p.Timeline))
	}
	for _, s := range micros {
		for _, m := range p.Timeline[s.From:s.To] {
			if want := fmt.Sprintf("micro-batch %d", m.Micro+1); s.Name != want {
				t.Errorf("%s is in %s, want %s", m.Name, s.Name, want)
			}
		}
	}
	if len(micros) != 3 {
		t.Errorf("%d micro-batches are drawn", len(micros))
	}
}

// TestStages checks that the drawing of the stages shows what each allocates and which fit.
func TestStages(t *testing.T) {
	var s forecast.Stages
	for stage := range 4 {
		p := planOf(t, cfg(t, fmt.Sprintf("zero.stage=%d", stage), "parallel.ranks=2"))
		s.Plans = append(s.Plans, p)
	}
	between := (s.Plans[0].Allocated.Total() + s.Plans[3].Allocated.Total()) / 2
	for _, p := range s.Plans {
		p.Machine.Memory = between
	}
	var drawing strings.Builder
	if err := s.WriteSVG(&drawing); err != nil {
		t.Fatal(err)
	}
	lines := s.Lines()
	for i, p := range s.Plans {
		verdict := ": fits"
		if p.Allocated.Total() > between {
			verdict = ": does not fit"
		}
		amount := show.ByteSize(p.Allocated.Total())
		if !strings.Contains(drawing.String(), ">"+amount+"<") || !strings.HasPrefix(lines[i], fmt.Sprintf("stage %d %s", i, amount)) || !strings.HasSuffix(lines[i], verdict) {
			t.Errorf("stage %d, %s%s: %s", i, amount, verdict, lines[i])
		}
	}
	for _, word := range []string{">does not fit<", ">fits<", ">arena of activations<", ">device has " + show.ByteSize(between) + "<"} {
		if !strings.Contains(drawing.String(), word) {
			t.Errorf("no %q in the drawing", word)
		}
	}
}

// BenchmarkPlan measures the plan of a large model and the forecast of its step.
func BenchmarkPlan(b *testing.B) {
	for _, g := range golden[5:] {
		folder := b.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(g.config), 0o666); err != nil {
			b.Fatal(err)
		}
		for _, ranks := range []int{1, 8, 64, 1024} {
			b.Run(fmt.Sprintf("%s, %d ranks", g.name, ranks), func(b *testing.B) {
				for b.Loop() {
					c, err := spec.Draft("", []string{fmt.Sprintf("model.from=%q", folder), "model.context=8192", "train.micro_batch=1", fmt.Sprintf("parallel.ranks=%d", ranks)})
					if err != nil {
						b.Fatal(err)
					}
					h, err := forecast.OpenHardware("h100")
					if err != nil {
						b.Fatal(err)
					}
					if _, err = forecast.NewPlan(c, forecast.Machine{GPU: true}); err == nil {
						_, err = forecast.Simulate(setup.Planned(c), h)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
