package dialect

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/config/words"

	"zeroth/job/jobtest"
	"zeroth/tests/nightly"
)

// Loaded is what the tests need of a job.
type Loaded struct {
	Notes []string
	YAML  string
	Text  func(key string) string
}

// LoadJob loads a job, by a package that imports this one.
var LoadJob func(file string, sets []string) (Loaded, error)

// minimal are files of the three programs that leave out all they can.
var minimal = map[string]string{
	"DeepSpeed":         `{"train_micro_batch_size_per_gpu": 2}`,
	"Accelerate":        `{"distributed_type": "MULTI_CPU"}`,
	"TrainingArguments": `{"output_dir": "x"}`,
}

// TestPresetsAreComplete checks that the presets of each program name every key of a job, except those
// that no other program has.
func TestPresetsAreComplete(t *testing.T) {
	apart := []string{"model.", "data.", "report.", "sample.", "pipeline.", "parallel.", "train.lora.", "train.early_stop.", "train.final_model", "zero.prefetch", "zero.offload.", "device",
		"train.batch", "train.micro_batch", "train.delayed_update", "train.loss_chunk", "train.mlp_chunk", "train.router_aux", "train.sums", "faults.", "train.freeze", "train.eval_batches", "train.epochs",
		"checkpoint.dir", "checkpoint.local", "checkpoint.keep", "checkpoint.async", "checkpoint.compress", "checkpoint.save_on_exit", "checkpoint.on_error",
		"optimizer.nesterov", "optimizer.ns_steps", "optimizer.adjust_lr_fn", "optimizer.adamw.", "optimizer.momentum", "optimizer.groups", "schedule.decay"}
	for _, d := range Dialects() {
		for _, key := range config.Keys() {
			named := slices.ContainsFunc(slices.Concat(d.presets, ofTrainer), func(p preset) bool { return p.key == key })
			if other := slices.ContainsFunc(apart, func(s string) bool { return strings.HasPrefix(key, s) }); !named && !other && !(d.reads && key == "train.steps") && !(d.Name == "Accelerate" && key == "schedule.lag") {
				t.Errorf("%s has no preset of %s", d.Name, key)
			}
		}
		for _, p := range d.presets {
			for key := range strings.FieldsSeq(p.theirs) {
				if !slices.ContainsFunc(words.All(), func(w words.Word) bool { return w.Key == key || strings.HasPrefix(w.Key, key+".") }) {
					t.Errorf("%s has no key %s, which determines %s", d.Name, key, p.key)
				}
			}
			if p.value == "" && p.note == "" {
				t.Errorf("the preset of %s says nothing", p.key)
			}
		}
	}
}

// canonical returns a default as a job would write it.
func canonical(key, value string) string {
	c := new(config.Config)
	root := &tree.Node{Kind: tree.Mapping}
	n, _ := tree.Parse([]byte(value), tree.Position{})
	tree.Put(root, key, n)
	config.NewReader(c, "", root).Read()
	return c.Text(key)
}

// differences compares a loaded job with the presets that apply to the file, and returns the silent
// differences.
func differences(c Loaded, tr *Translation) (wrong []string) {
	done := map[string]bool{}
	for _, p := range tr.from.presets {
		given := slices.ContainsFunc(strings.Fields(p.theirs), func(key string) bool {
			n := tr.root.Lookup(key)
			return n != nil && (n.Kind != tree.Nothing || key == "max_grad_norm") // None means off there, not the default
		})
		if done[p.key] || p.when != nil && !p.when(tr) {
			continue
		}
		done[p.key] = true
		said := strings.Contains(strings.Join(c.Notes, "\n"), p.key)
		if got := c.Text(p.key); !given && p.value != "" && got != canonical(p.key, p.value) && !said || !given && p.note != "" && !said {
			wrong = append(wrong, fmt.Sprintf("%s is %s, want %s (%s)", p.key, got, p.value, p.note))
		}
	}
	return wrong
}

// compare loads a file of another program and compares it with the presets and with what Translate makes
// of it. Of a file that is refused, it only needs to return.
func compare(t testing.TB, text string) (loaded bool) {
	jobtest.Write(t, "theirs.json", text)
	sets := []string{"data.text=[job.yaml]", "model={from: null, family: gpt2}"}
	c, err := LoadJob("theirs.json", sets)
	job, ok, wrong := Translate("theirs.json")
	if err != nil || !ok || wrong != nil {
		return false
	}
	top, _ := tree.Parse(tree.WithoutComments([]byte(text)), tree.Position{})
	for _, d := range differences(c, Translated(top)) {
		t.Errorf("%s\n%s", text, d)
	}
	jobtest.Write(t, "written.yaml", job)
	again, err := LoadJob("written.yaml", append(sets, "data.documents=[]"))
	if err != nil || again.YAML != c.YAML {
		t.Errorf("%s\nwritten, it is another job (%v):\n%s", text, err, job)
	}
	return true
}

// TestPresetsOfMinimalFiles checks that the presets apply to files that leave out all they can.
func TestPresetsOfMinimalFiles(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for name, text := range minimal {
		if !compare(t, text) {
			_, err := LoadJob("theirs.json", []string{"data.text=[job.yaml]", "model.family=gpt2"})
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPresets checks what a job reads like where programs differ.
func TestPresets(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	for _, test := range []struct{ theirs, set, key, want, note string }{
		{`{"train_batch_size": 8}`, "", "train.clip", "1", "train.clip 1.0 (0 before DeepSpeed 0.19.3)"},
		{`{"train_batch_size": 8}`, "", "optimizer.lr", "5e-5", "optimizer.lr 5e-5"},
		{`{"train_batch_size": 8}`, "", "schedule.type", "linear", "parallel.ranks"},
		{`{"train_batch_size": 8, "gradient_clipping": -1}`, "", "train.clip", "0", ""},
		{`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}}`, "", "optimizer.type", "adamw", "the Trainer adds its linear schedule"},
		{`{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}}`, "", "optimizer.type", "adam", ""},
		{`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"torch_adam": true}}}`, "", "optimizer.groups", `[{match: "*", weight_decay: 0.01}]`, ""},
		{`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}`, "optimizer.weight_decay=0.2", "optimizer.groups", `[{match: "*", weight_decay: 0.2}]`, ""},
		{`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}`, `optimizer.groups=[{match: "*.bias", lr: 1e-3}]`, "optimizer.groups", `[{match: "*.bias", lr: 1e-3}, {match: "*", weight_decay: 0.1}]`, ""},
		{`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_type": "linear", "warmup_num_steps": 9}}}`, "", "optimizer.lr", "3e-4", "schedule.lag 2 (before DeepSpeed 0.15"},
		{`{"train_batch_size": 8, "checkpoint": {"tag_validation": "Warn", "load_universal": true}, "amp": {"enabled": false, "opt_level": "O1"}, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}}}`, "", "train.batch", "8", ""},
		{`{"output_dir": "x", "optim": "sgd"}`, "", "optimizer.momentum", "0", ""},
		{`{"output_dir": "x", "optim": "lion_32bit"}`, "", "optimizer.betas", "[0.9, 0.999]", ""},
		{`{"output_dir": "x", "lr_scheduler_type": "constant", "warmup_steps": 9}`, "", "schedule.warmup", "0", "schedule.warmup 0 (lr_scheduler_type constant ignores warmup_steps)"},
		{`{"output_dir": "x", "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 9}`, "", "schedule.warmup", "9", ""},
		{`{"output_dir": "x", "max_grad_norm": null}`, "", "train.clip", "0", ""},
		{`{"output_dir": "x", "eval_strategy": "steps"}`, "", "train.eval_every", "500", "train.eval_batches"},
		{`{"output_dir": "x", "eval_strategy": "steps", "logging_steps": 7}`, "", "train.eval_every", "7", ""},
		{`{"output_dir": "x", "eval_steps": 7}`, "", "train.eval_every", "0", ""},
		{`{"output_dir": "x"}`, "data.validation=0.2", "train.eval_every", "50", ""},
		{`{"output_dir": "x", "use_cpu": true}`, "", "device", "cpu", "train.epochs 3 (the last step is filled up"},
		{`{"output_dir": "x", "save_strategy": "no"}`, "", "checkpoint.every", "0", ""},
		{`{"distributed_type": "DEEPSPEED"}`, "", "zero.stage", "2", "optimizer.lr"},
	} {
		jobtest.Write(t, "theirs.json", test.theirs)
		sets := []string{"data.text=[job.yaml]", "model={from: null, family: gpt2}"}
		if test.set != "" {
			sets = append(sets, test.set)
		}
		c, err := LoadJob("theirs.json", sets)
		if err != nil {
			t.Errorf("%s: %v", test.theirs, err)
			continue
		}
		if got := c.Text(test.key); got != test.want || !strings.Contains(strings.Join(c.Notes, ""), test.note) {
			t.Errorf("%s %s: %s is %s, want %s; notes %q, want %s", test.theirs, test.set, test.key, got, test.want, c.Notes, test.note)
		}
	}
}

// hostile are values that YAML reads as something else than text.
var hostile = []any{`\`, `/nvme\`, `a\tb`, `"`, `*a`, `&a`, `[`, `{`, `]`, `- `, `: `, `#`, `%`, `!x`, `|`, "", " ", "a: b", "~", "null", "nan", "1e999", "0x10", "-", "é\n", map[string]any{"a": 1}, []any{1, "*"}, nil, true, -1, 0, 1e30}

// TestTranslatedText checks that text of a file is a value, never YAML.
func TestTranslatedText(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	for i, value := range hostile {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for j, form := range []string{
			`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": X, "ratio": X}, "offload_param": {"device": "nvme", "nvme_path": X}}}`,
			`{"train_batch_size": 8, "gradient_clipping": X, "optimizer": {"type": "Muon", "params": {"lr": X, "muon_lr": X, "betas": X, "adam_w_mode": X}}}`,
			`{"train_batch_size": 8, "optimizer": {"type": X}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_max_lr": X, "warmup_num_steps": X, "total_num_steps": X}}}`,
			`{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": X}}, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": X, "cos_min_ratio": X}}}`,
			`{"distributed_type": "DEEPSPEED", "deepspeed_config": {"offload_param_device": "nvme", "offload_param_nvme_path": X, "zero_stage": 3}}`,
			`{"output_dir": "x", "model_name_or_path": X, "adam_beta1": X, "adam_beta2": X, "max_steps": X, "warmup_steps": X, "logging_steps": X, "eval_strategy": "steps", "fsdp_config": X}`,
		} {
			if nightly.Every(2, i+j) {
				compare(t, strings.ReplaceAll(form, "X", string(text)))
			}
		}
	}
	jobtest.Write(t, "theirs.json", `{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "C:\\new\\"}}}`)
	if text, _, err := Translate("theirs.json"); err != nil || !strings.Contains(text, `path: "C:\\new\\"`) {
		t.Errorf("%v\n%s", err, text)
	}
}

// inUse are configurations in use, to be mutated.
var inUse = []string{
	`{"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 10, "total_num_steps": 50}}, "zero_optimization": {"stage": 2, "overlap_comm": true}, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}`,
	`{"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 2, "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5}}`,
	`{"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_offload_params": true}}`,
	`{"output_dir": "x", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-4, "weight_decay": 0.1, "adam_beta2": 0.95, "max_grad_norm": 1.0, "max_steps": 20, "lr_scheduler_type": "cosine", "warmup_steps": 5, "bf16": true, "optim": "adamw_torch", "eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "save_total_limit": 2}`,
}

// mutate changes, adds or removes a key of a configuration.
func mutate(r *rand.Rand, d dialect, root map[string]any) {
	key := slices.Sorted(maps.Keys(words.Of(d.Name)))[r.IntN(len(words.Of(d.Name)))]
	e, in := words.Of(d.Name)[key], root
	parts := strings.Split(key, ".")
	for _, name := range parts[:len(parts)-1] {
		deeper, ok := in[name].(map[string]any)
		if !ok {
			deeper = map[string]any{}
			in[name] = deeper
		}
		in = deeper
	}
	name := parts[len(parts)-1]
	values := []any{"auto", nil, 1, 2, 0.5, true, false, "linear", map[string]any{"enabled": false}}
	for _, word := range slices.Concat(slices.Sorted(maps.Keys(e.Values)), e.Only) {
		values = append(values, word, word)
	}
	switch r.IntN(4) {
	case 0:
		delete(in, name)
	case 1:
		in[name] = hostile[r.IntN(len(hostile))]
	default:
		in[name] = values[r.IntN(len(values))]
	}
}

// mutation returns a mutated configuration as text.
func mutation(r *rand.Rand) string {
	var root map[string]any
	text := []byte(inUse[r.IntN(len(inUse))])
	if err := json.Unmarshal(text, &root); err != nil {
		panic(err)
	}
	top, _ := tree.Parse(text, tree.Position{})
	for range 1 + r.IntN(4) {
		if r.IntN(2) == 0 { // remove what is there
			keys := slices.Sorted(maps.Keys(root))
			delete(root, keys[r.IntN(len(keys))])
		}
		mutate(r, Translated(top).from, root)
	}
	out, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// TestMutatedConfigurations checks that mutated configurations of the three programs neither panic nor
// differ silently from the presets.
func TestMutatedConfigurations(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	all, loaded := nightly.Of(60, 2000), 0
	for i := range all {
		if compare(t, mutation(rand.New(rand.NewPCG(uint64(i), 42)))) {
			loaded++
		}
	}
	if t.Logf("%d of %d are jobs", loaded, all); loaded < all/10 {
		t.Error("too few")
	}
}

// FuzzTranslated checks that no text makes a translation panic, and that what Translate writes is the job
// that is loaded.
func FuzzTranslated(f *testing.F) {
	nightly.Long(f)
	jobtest.InFolder(f, jobtest.Least)
	for i := range 10 {
		f.Add(mutation(rand.New(rand.NewPCG(uint64(i), 7))))
	}
	f.Add(`{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "a\\"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		top, problems := tree.Parse(tree.WithoutComments([]byte(text)), tree.Position{})
		if len(text) < 1<<12 && !problems.Fatal() && top != nil && top.Kind == tree.Mapping && Translated(top) != nil {
			compare(t, text)
		}
	})
}
