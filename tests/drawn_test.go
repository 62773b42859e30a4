package tests

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// TestDrawnJobs runs random jobs at every stage, and once more with offloaded state and activations. Every rank's
// allocator must hold the planned bytes in every category, at the end and at the peak, and the
// first rank must use the planned bytes at every event of its first step. The stages of a class
// (see TestStagesAgreeToTheBit) must agree to the bit in metrics, final parameters and adapters.
func TestDrawnJobs(t *testing.T) {
	nightly.Parallel(t)
	jobs := nightly.Of(2, 30)
	families := familyFolders(t)
	for i := range jobs {
		rng := rand.New(rand.NewPCG(22, uint64(i)))
		sets, classes := drawn(t, rng, families)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for _, stages := range classes {
				var want *leaving
				for _, stage := range stages {
					for i, places := range placesOf(t, rng, stage) {
						all := append(slices.Clone(sets), places...)
						c := drawnConfig(t, all)
						if i > 0 {
							c = hosted(c)
						}
						got := asPlanned(t, c)
						if want == nil {
							want = got
						}
						got.same(t, strings.Join(all, " "), want)
					}
				}
			}
		})
	}
}

// drawn returns the settings of a random job and the classes of stages that agree to the bit.
func drawn(t *testing.T, rng *rand.Rand, families []string) (sets []string, classes [][]int) {
	draw := func(key string, values ...string) string {
		v := values[rng.IntN(len(values))]
		sets = append(sets, key+"="+v)
		return v
	}
	if folder := families[rng.IntN(len(families))]; rng.IntN(3) > 0 {
		sets = append(sets, "model.from="+folder, "model.context=24")
		if rng.IntN(2) == 0 {
			sets = append(sets, "train.lora.targets=[all-linear]")
			draw("train.lora.rank", "2", "3")
		}
	} else {
		sets = append(sets, "model.heads=2", "model.width=12", "model.vocab=300", "model.context=7")
		draw("model.layers", "1", "2", "5")
		if draw("model.family", "gpt2", "llama") == "llama" {
			draw("model.tied", "true", "false")
		}
		draw("model.dropout", "0", "0.1")
	}
	ranks := draw("parallel.ranks", "1", "2", "3", "4")
	hybrid := ranks == "4" && draw("parallel.replicate", "1", "2") == "2"
	micro := draw("train.accumulate", "1", "2", "3") != "1"
	draw("train.micro_batch", "1", "2")
	draw("precision", "fp32", "bf16", "fp16")
	draw("optimizer.type", "adamw", "adamw8bit", "muon", "lion", "sgd")
	if level := draw("zero.recompute", "none", "elementwise", "mlp", "linear", "block"); level != "none" && level != "elementwise" {
		draw("train.mlp_chunk", "0", "5")
	}
	draw("zero.prefetch", "0", "1", "3")
	draw("train.loss_chunk", "5", "1024")
	draw("checkpoint.every", "0", "2")
	switch {
	case hybrid && micro: // stage 1 sums over micro-batches before ranks, the others after
		classes = [][]int{{0}, {1}, {2, 3}}
	case hybrid:
		classes = [][]int{{0}, {1, 2, 3}}
	case micro:
		classes = [][]int{{0, 1}, {2, 3}}
	default:
		classes = [][]int{{0, 1, 2, 3}}
	}
	return sets, classes
}

// placesOf returns two ways to place the state at a stage: on the device and offloaded.
func placesOf(t *testing.T, rng *rand.Rand, stage int) [][]string {
	at, stay := fmt.Sprint("zero.stage=", stage), []string{}
	if stage == 0 {
		stay = append(stay, "parallel.replicate=null") // all are replicas
	}
	elsewhere := append(slices.Clone(stay), at, "zero.offload.path="+t.TempDir())
	optimizer, parameters := []string{"host", "disk"}[rng.IntN(2)], []string{"host", "disk"}[rng.IntN(2)]
	elsewhere = append(elsewhere, []string{"zero.offload.ratio=1", "zero.offload.ratio=0.4"}[rng.IntN(2)])
	if stage < 3 {
		parameters = "none"
	}
	if optimizer != "disk" && parameters != "disk" {
		elsewhere = slices.DeleteFunc(elsewhere, func(s string) bool { return strings.HasPrefix(s, "zero.offload.path=") })
	}
	elsewhere = append(elsewhere, "zero.offload.optimizer="+optimizer, "zero.offload.parameters="+parameters)
	return [][]string{append(stay, at), elsewhere}
}

// familyFolders returns small models of each family in transformers.
func familyFolders(t *testing.T) (folders []string) {
	raw, err := os.ReadFile(hfFamilies)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]familyVariant
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		folder, _ := writeFamily(t, all[name].Config)
		folders = append(folders, folder)
	}
	return folders
}

func drawnConfig(t *testing.T, sets []string) *spec.Job {
	t.Helper()
	dir := t.TempDir()
	var ids []byte
	for i := range 30_000 {
		ids = binary.LittleEndian.AppendUint16(ids, uint16(scramble("tokens", i)%familyVocab))
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens.bin"), ids, 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "job.yaml")
	yaml := fmt.Sprintf("data: {tokens: [%q], tokenizer: none, validation: 0.1}\n", filepath.Join(dir, "tokens.bin"))
	if err := os.WriteFile(file, []byte(yaml), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := spec.Load(file, append([]string{"device=cpu", "train.steps=3", "train.eval_every=2", "train.eval_batches=1", "schedule.warmup=1", "sample.tokens=0"}, sets...))
	if err != nil {
		t.Fatalf("%v: %v", sets, err)
	}
	return c
}

// leaving collects what a run produces: metrics of steps and evaluations, and files.
type leaving struct {
	metrics []string
	files   map[string]string
	sum     report.Summary
}

func (l *leaving) Step(s report.Step) {
	l.metrics = append(l.metrics, fmt.Sprint(s.Step, s.Loss, s.LR, s.GradNorm, s.Tokens, s.Skipped))
}

func (l *leaving) Event(e report.Event) {
	switch e := e.(type) {
	case report.Eval:
		l.metrics = append(l.metrics, fmt.Sprint("evaluated ", e))
	case report.Summary:
		l.sum = e
	}
}

// asPlanned runs a job and compares its memory with the plan.
func asPlanned(t *testing.T, c *spec.Job) *leaving {
	t.Helper()
	out, l, o := filepath.Join(t.TempDir(), "run"), &leaving{files: map[string]string{}}, &job.Observation{}
	if err := job.Run(t.Context(), c, job.Options{Out: out, Observer: l, Timeline: o}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{state.ModelDir, state.AdapterDir} {
		raw, err := filepath.Glob(filepath.Join(out, dir, "*.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range raw {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			l.files[filepath.Base(file)] = string(text)
		}
	}
	a := l.sum.Memory
	for _, h := range a.Ranks {
		name := fmt.Sprintf("rank %d of %s", h.Rank, c.YAML())
		sameBytes(t, name, h.Device.Live, h.Planned.Device)
		sameBytes(t, "peak of "+name, h.Device.Peak, h.Planned.Device)
		sameBytes(t, "host memory of "+name, h.Host.Live, h.Planned.Host)
		if h.Disk != h.Planned.Disk {
			t.Errorf("%s: %d bytes on disk, planned were %d", name, h.Disk, h.Planned.Disk)
		}
	}
	if len(a.Ranks) != c.Parallel.Ranks || len(l.metrics) != 5 || len(l.files) == 0 {
		t.Fatalf("%d ranks, %q, %d files", len(a.Ranks), l.metrics, len(l.files))
	}
	for i, m := range o.Plan.Measured.Timeline {
		if p := o.Plan.Timeline[i]; m.InUse != p.InUse {
			t.Errorf("%s: %v in use, planned are %v\n%s", p.Name, m.InUse, p.InUse, c.YAML())
		}
	}
	return l
}

// same fails unless both runs have the same results.
func (l *leaving) same(t *testing.T, what string, want *leaving) {
	t.Helper()
	if !slices.Equal(l.metrics, want.metrics) {
		t.Errorf("%s:\n%q, want\n%q", what, l.metrics, want.metrics)
	}
	for name, text := range want.files {
		if l.files[name] != text {
			t.Errorf("%s: %s is another one", what, name)
		}
	}
}
