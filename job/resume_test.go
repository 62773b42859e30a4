package job

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/checkpointtest"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/tests/nightly"
)

// trainedRun trains the tiny job into run, with a checkpoint at its end.
func trainedRun(t *testing.T, sets ...string) {
	t.Helper()
	if err := Run(t.Context(), spectest.MustLoad(t, append([]string{"checkpoint.every=100", "checkpoint.save_on_exit=true"}, sets...)...), Options{Out: "run", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
}

// listing is every file below a folder, with its size, time and content.
func listing(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		all[name] = fmt.Sprint(info.ModTime(), info.Size())
		if err == nil && !d.IsDir() {
			raw, _ := os.ReadFile(name)
			all[name] += string(raw)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestResumeOfAFinishedRun checks that a finished run, also one that went further than now asked,
// is reported as done and not changed.
func TestResumeOfAFinishedRun(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t)
	before := listing(t, "run")
	for _, steps := range []string{"7", "5"} {
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=100", "train.steps="+steps), Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("nothing to do: step 7 of %s is done and saved to run/ckpt/step-00000007; a larger train.steps would continue from it", steps)}
		if !slices.Equal(h.notes, want) || len(h.sums)+len(h.steps) > 0 {
			t.Errorf("%s steps: notes %q, %d steps, sums %v", steps, h.notes, len(h.steps), h.sums)
		}
		if after := listing(t, "run"); !reflect.DeepEqual(after, before) {
			t.Errorf("%s steps: the run folder has changed", steps)
		}
	}
	h := &heard{}
	if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=100", "train.steps=9"), Options{Out: "run", Resume: "latest", Observer: h}); err != nil || len(h.steps) != 2 {
		t.Errorf("a larger train.steps: %v, %d steps", err, len(h.steps))
	}
}

// TestResumeOfDamagedData checks that damage found only when parameters are read, since COMMIT and
// manifest are intact, is refused like all damage, naming the newest intact checkpoint.
func TestResumeOfDamagedData(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=3", "checkpoint.save_on_exit=false"), Options{Out: "run", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"run/ckpt/step-00000006", "the newest intact one is run/ckpt/step-00000003 (have 3)"}, {"run/ckpt/step-00000003", "there is no intact one"}} {
		path := c[0] + "/data-00001-000.safetensors"
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-1] ^= 1 // of what rank 1 reads alone
		jobtest.Write(t, path, string(raw))
		before := listing(t, "run")
		err = Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=3", "train.steps=9"), Options{Out: "run", Resume: c[0], Observer: &heard{}})
		if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), path[len(c[0])+1:]+": offset ") || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%v, want %s", err, c[1])
		}
		after := listing(t, "run")
		for name := range before {
			if info, err := os.Stat(name); name != "run/ckpt/.lock" && !(err == nil && info.IsDir()) && after[name] != before[name] {
				t.Errorf("%s has changed: %.100q, was %.100q", name, after[name], before[name])
			}
		}
		if err := os.RemoveAll("run/ckpt/step-00000006"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResumeOfARunWithoutItsParameters checks that resuming a run killed between its last
// checkpoint and its parameters writes them, without reporting a loss or counting a step again.
func TestResumeOfARunWithoutItsParameters(t *testing.T) {
	jobtest.InTinyFolder(t)
	trainedRun(t)
	raw, err := os.ReadFile("run/model/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll("run/model"); err != nil {
		t.Fatal(err)
	}
	h := &heard{}
	if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=100"), Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile("run/model/model.safetensors"); err != nil || string(again) != string(raw) {
		t.Errorf("the parameters are not as they were: %v", err)
	}
	metrics, _ := os.ReadFile("run/metrics.jsonl")
	if strings.Contains(string(metrics), `"step":0,"loss"`) || strings.Count(string(metrics), `"loss"`) != 7 {
		t.Errorf("metrics:\n%s", metrics)
	}
	if len(h.sums) != 1 || h.sums[0].Steps != 7 || h.sums[0].Tokens != 7*4*8 {
		t.Fatalf("sums %+v", h.sums)
	}
	told := strings.Join(h.sums[0].Lines(), "\n")
	if strings.Contains(told, "NaN") || strings.Contains(told, "loss") || strings.Contains(told, "-") {
		t.Errorf("told %s", told)
	}
	before := listing(t, "run")
	if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=100"), Options{Out: "run", Resume: "latest", Observer: h}); err != nil || !reflect.DeepEqual(listing(t, "run"), before) {
		t.Errorf("now it is finished: %v", err)
	}
}

// TestResumeComparesTheModel checks that the job's model keys must equal the checkpoint's, key by
// key, and that omitted keys, and settings without a key, come from the checkpoint.
func TestResumeComparesTheModel(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	llama := []string{"model.family=llama", "model.kv_heads=1", "model.ffn=24", "model.rope_theta=5000", "model.tied=true", "model.width=16", "model.heads=4"}
	jobtest.Write(t, "job.yaml", "data: {text: [a.txt], validation: 0.1}\nmodel: {context: 8}\ntrain: {steps: 3, micro_batch: 2}\nparallel: {ranks: 2}\n")
	trainedRun(t, append(llama, "model.layers=1")...)
	ck, p := opened(t, "run/ckpt/step-00000003")
	var cfg map[string]any
	if err := json.Unmarshal(p.Model, &cfg); err != nil {
		t.Fatal(err)
	}
	_ = ck.Close()

	c := spectest.MustLoad(t, "model.layers=1", "train.steps=4", "checkpoint.every=100") // what it does not say has other defaults
	h := &heard{}
	if err := Run(t.Context(), c, Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(h.header.Model, "Llama ") {
		t.Errorf("model %s", h.header.Model)
	}
	var now map[string]any
	raw, err := os.ReadFile("run/model/config.json")
	if err == nil {
		err = json.Unmarshal(raw, &now)
	}
	if err != nil || !reflect.DeepEqual(now, cfg) {
		t.Errorf("config.json is %v (%v)\nwas %v", now, err, cfg)
	}
	again, err := spec.Load("run/job.yaml", nil)
	if err != nil || again.Model.KV != 1 || again.Model.Theta != 5000 || !again.Model.Tied || again.Model.FFN != 24 {
		t.Errorf("job.yaml: %v %+v", err, again)
	}

	before := listing(t, "run")
	err = Run(t.Context(), spectest.MustLoad(t, append(llama, "model.layers=1", "model.heads=2", "model.kv_heads=2", "model.rope_theta=6000", "model.tied=false", "model.context=4", "model.vocab=300")...), Options{Out: "run", Resume: "latest", Observer: h})
	for _, want := range []string{"--resume latest: run/ckpt/step-00000004 does not fit the job:\n", "\n  model.heads is 4 in it, 2 in the job (--set model.heads=2)", "\n  model.kv_heads is 1 in it, 2 in the job", "\n  model.rope_theta is 5000 in it, 6000 in the job",
		"\n  model.tied is true in it, false in the job", "\n  model.context is 8 in it, 4 in the job", "\n  model.vocab is 256 in it, 300 in the job"} {
		if !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if !reflect.DeepEqual(listing(t, "run"), before) {
		t.Error("a refused resume has changed the run folder")
	}

	// What no key says comes with a folder.
	if err := os.CopyFS("folder", os.DirFS("run/model")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"rms_norm_eps": [^,]*`, `"rms_norm_eps": 0.001`, "the epsilon of norms is 1e-05 in it, 0.001 in the job (--set model.from=folder)"},
		{`"rope_scaling": null`, `"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}`, "the scaling of rotary positions is none in it, llama3 by 8 from 8192 positions, frequencies 1 to 4 in the job"},
	} {
		jobtest.Write(t, "folder/config.json", regexp.MustCompile(c.old).ReplaceAllString(string(raw), c.new))
		err := Run(t.Context(), spectest.MustLoad(t, "model=null", "model.from=folder"), Options{Out: "run", Resume: "latest", Observer: h})
		if !input.IsInput(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
	jobtest.Write(t, "folder/config.json", string(raw))
	if err := Run(t.Context(), spectest.MustLoad(t, "model=null", "model.from=folder", "train.steps=5", "checkpoint.every=100"), Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
		t.Errorf("the same model from a folder: %v", err)
	}
	if err := os.RemoveAll("folder"); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=6", "checkpoint.every=100"), Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
		t.Errorf("the folder it came from is gone: %v", err)
	}
	if text, err := os.ReadFile("run/job.yaml"); err != nil || !strings.Contains(string(text), "from: \"folder\"") {
		t.Errorf("job.yaml: %v\n%s", err, text)
	}
}

// TestResumeComparesTheTraining checks that omitted training keys come from the checkpoint, that
// changed ones are reported, with the learning rate before and after, and that a change to the
// order of the data is refused.
func TestResumeComparesTheTraining(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t, "optimizer={lr: 1e-3, betas: [0.8, 0.9], weight_decay: 0.02}", "schedule={type: linear, min_lr: 2e-4, warmup: 2}", "train.clip=0.5", "precision=fp32", "train.batch=8", "train.micro_batch=null", "train.seed=9", "data.validation=0.2")
	goOn := func(sets ...string) (*spec.Job, []string, error) {
		c := spectest.MustLoad(t, append(sets, "checkpoint.dir=run/ckpt")...)
		next, b, err := startOf(c, "latest")
		if err != nil {
			return nil, nil, err
		}
		defer b.close()
		return next, b.news, nil
	}
	next, news, err := goOn("data.validation=null", "schedule=null", "train.steps=null")
	if err != nil {
		t.Fatal(err)
	}
	o, s := next.Optimizer, next.Schedule
	if o.LR != 1e-3 || o.Betas != [2]float64{0.8, 0.9} || o.WeightDecay != 0.02 || s.Type != "linear" || s.MinLR != 2e-4 || s.Warmup != 2 || next.Train.Clip != 0.5 ||
		next.Train.Batch != 8 || next.Train.Accumulate != 2 || next.Train.Seed != 9 || next.Train.Steps != 7 || next.Data.Validation != 0.2 || next.Precision.String() != "fp32" {
		t.Errorf("goes on as %s", next.YAML())
	}
	want := []string{"taken from the checkpoint, because the job omits them: data.validation 0.2, train.steps 7, train.batch 8, train.clip 0.5, train.seed 9, precision fp32, optimizer.lr 1e-3, optimizer.betas [0.8, 0.9], optimizer.weight_decay 0.02, schedule.type linear, schedule.warmup 2, schedule.min_lr 2e-4, checkpoint.every 100, checkpoint.save_on_exit true"}
	if !slices.Equal(news, want) {
		t.Errorf("news %q\nwant %q", news, want)
	}

	next, news, err = goOn("data.validation=null", "schedule=null", "train.steps=100", "optimizer.lr=5e-4", "parallel.ranks=4")
	if err != nil {
		t.Fatal(err)
	}
	if next.Schedule.MinLR != 5e-5 || next.Train.Batch != 8 || next.Train.Accumulate != 1 || next.Optimizer.Betas != [2]float64{0.8, 0.9} {
		t.Errorf("goes on as %s", next.YAML())
	}
	told := strings.Join(news, "\n")
	was := linear(1e-3, 2e-4, 2, 7, 7)
	now := linear(5e-4, 5e-5, 2, 100, 7)
	for _, want := range []string{"changed since the checkpoint: train.steps 7 → 100, optimizer.lr 1e-3 → 5e-4, schedule.min_lr 2e-4 → 5e-5", fmt.Sprintf("learning rate of step 8: %.3g → %.3g", was, now)} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in\n%s", want, told)
		}
	}

	for _, c := range []struct{ sets, want string }{
		{"data.validation=0.1 train.seed=3", "it was trained with train.seed 9, but the job has 3; "},
		{"data.validation=0.1", "it was trained with data.validation 0.2, but the job has 0.1; "},
		{"data.validation=0.2 parallel.ranks=3", "state.json: train.batch: batch 8 = micro_batch 2 × accumulate ? × ranks 3 has no whole solution"},
	} {
		if _, _, err := goOn(strings.Fields(c.sets)...); !input.IsInput(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.sets, err, c.want)
		}
	}
}

// TestResumeComparesGroups checks that groups of parameters are inherited, and that changes are
// reported.
func TestResumeComparesGroups(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	const groups = `[{match: "*.bias", lr: 1e-4, weight_decay: 0}]`
	trainedRun(t, "optimizer.groups="+groups)
	for set, want := range map[string]string{
		"optimizer.lr=null":                              "omits them: optimizer.groups " + groups,
		"optimizer.groups=null":                          "omits them: optimizer.groups " + groups,
		`optimizer.groups=[{match: "*.bias", lr: 1e-4}]`: `changed since the checkpoint: optimizer.groups ` + groups + ` → [{match: "*.bias", lr: 1e-4}]`,
		"optimizer.groups=[]":                            "changed since the checkpoint: optimizer.groups " + groups + " → none",
	} {
		_, b, err := startOf(spectest.MustLoad(t, set, "checkpoint.dir=run/ckpt"), "latest")
		if err != nil {
			t.Fatal(err)
		}
		b.close()
		if told := strings.Join(b.news, "\n"); !strings.Contains(told, want) {
			t.Errorf("%s: no %q in\n%s", set, want, told)
		}
	}
}

// TestResumeKeepsTheDecay checks that the steps in which wsd falls are inherited like other keys of
// the schedule, unless the keys they follow from change.
func TestResumeKeepsTheDecay(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t, "schedule={type: wsd, decay: 3}")
	for set, want := range map[string]int{"train.seed=null": 3, "train.steps=100": 10, "schedule={type: wsd, decay: 5}": 5} {
		next, b, err := startOf(spectest.MustLoad(t, "schedule=null", "train.steps=null", "checkpoint.dir=run/ckpt", set), "latest")
		if err != nil {
			t.Fatal(err)
		}
		b.close()
		if next.Schedule.Type != "wsd" || next.Schedule.Decay != want {
			t.Errorf("%s: %+v, want a decay of %d steps", set, next.Schedule, want)
		}
	}
}

// linear is the learning rate of the update after so many, of a linear schedule.
func linear(lr, least float64, warmup, steps, at int) float64 {
	if at >= steps-1 {
		return least
	}
	return lr + (least-lr)*float64(at-warmup+1)/float64(steps-warmup)
}

// TestResumeOfOlderCheckpoints checks that an old checkpoint that records neither its model nor its
// job is resumed if its tensors fit.
func TestResumeOfOlderCheckpoints(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t)
	for _, without := range [][]string{{"model"}, {"config"}, {"model", "config"}} {
		h := &heard{}
		rewriteState(t, "run/ckpt/step-00000007", "old", func(s map[string]any) {
			for _, key := range without {
				delete(s, key)
			}
		})
		if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=8"), Options{Out: t.TempDir(), Resume: "old/step-00000007", Observer: h}); err != nil || len(h.steps) != 1 {
			t.Errorf("without %v: %v, %d steps", without, err, len(h.steps))
		}
		if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=8", "model.width=16"), Options{Out: t.TempDir(), Resume: "old/step-00000007", Observer: h}); !input.IsInput(err) {
			t.Errorf("without %v: another model: %v", without, err)
		}
	}
}

// A checkpoint whose state.json has a newer format is refused, and nothing is written.
func TestResumeOfNewerCheckpoints(t *testing.T) {
	jobtest.InTinyFolder(t)
	trainedRun(t)
	rewriteState(t, "run/ckpt/step-00000007", "new", func(s map[string]any) {
		s["format"], s["loss_scale"], s["version"] = state.Format+1, "by layer", "zeroth 7.1.0"
	})
	err := Run(t.Context(), spectest.MustLoad(t, "train.steps=8"), Options{Out: "out", Resume: "new/step-00000007"})
	if !input.IsInput(err) || !strings.Contains(err.Error(), fmt.Sprintf("format %d", state.Format+1)) || !strings.Contains(err.Error(), "zeroth 7.1.0") {
		t.Error(err)
	}
	if input.Exists("out/ckpt") || input.Exists("out/metrics.jsonl") {
		t.Error("the run began")
	}
}

// opened is a checkpoint and what its state.json says.
func opened(t *testing.T, path string) (*checkpoint.Checkpoint, state.Progress) {
	t.Helper()
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := state.ReadProgress(ck)
	if err != nil {
		t.Fatal(err)
	}
	return ck, p
}

// rewriteState makes a checkpoint with the tensors of another and a state.json
// that is changed.
func rewriteState(t *testing.T, path, root string, change func(map[string]any)) {
	t.Helper()
	ck, _ := opened(t, path)
	defer ck.Close()
	var s map[string]any
	if err := json.Unmarshal(ck.State, &s); err != nil {
		t.Fatal(err)
	}
	change(s)
	withState(t, ck, root, string(hf.MustJSON(s)))
}

// withState makes a checkpoint with the tensors of another and any state.json,
// in a new folder.
func withState(t *testing.T, ck *checkpoint.Checkpoint, root, state string) {
	t.Helper()
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	ck.State = []byte(state)
	checkpointtest.Copy(t, ck, root)
}

// TestObservedAfterAnEvaluation checks that a run that begins with the evaluation that the previous
// one had no time for is observed at the step after the next.
func TestObservedAfterAnEvaluation(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t, "train.steps=3", "model.layers=3")
	raw, err := os.ReadFile("run/metrics.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "run/metrics.jsonl", regexp.MustCompile(`\{"step":3,"val_loss".*\n`).ReplaceAllString(string(raw), ""))
	o, h := &Observation{}, &heard{}
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=5", "model.layers=3"), Options{Out: "run", Resume: "latest", Observer: h, Timeline: o}); err != nil {
		t.Fatal(err)
	}
	if len(h.evals) == 0 || h.evals[0].Step != 3 || o.Plan == nil || o.Plan.Measured.Step != 5 {
		t.Errorf("evaluations %v, observed %+v", h.evals, o.Plan)
	}
}

// TestUnknownRate checks that a run says which learning rate it uses if another program's checkpoint does not have one.
func TestUnknownRate(t *testing.T) {
	jobtest.InTinyFolder(t)
	theirs := state.Progress{Step: 3, Origin: "DeepSpeed 0.19.8"}
	own := theirs
	own.Data = "own"
	for _, x := range []struct {
		sets []string
		was  *spec.Job
		p    state.Progress
		says bool
	}{
		{nil, nil, theirs, true},
		{nil, spec.SettingsOf("optimizer:\n  eps: 1e-8\n"), theirs, true},
		{nil, spec.SettingsOf("optimizer:\n  lr: 0.001\n"), theirs, false},
		{[]string{"optimizer.lr=1e-4"}, nil, theirs, false},
		{nil, nil, own, false},
	} {
		c := spectest.MustLoad(t, x.sets...)
		lines := strings.Join(whatIsNew(c, c, x.was, x.p), "\n")
		if strings.Contains(lines, "goes on with the default, optimizer.lr 6e-4") != x.says {
			t.Errorf("%v, %+v: %s", x.sets, x.p, lines)
		}
	}
}
