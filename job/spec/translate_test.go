package spec

import (
	"strings"
	"testing"
	"zeroth/config"
	"zeroth/config/dialect"
	"zeroth/config/words"

	"zeroth/job/jobtest"
	"zeroth/tests/nightly"
)

// TestTranslated checks that configurations of other programs become the jobs that their
// documentation describes, in the forms of transformers, Axolotl, LLaMA-Factory, ms-swift and
// Accelerate.
func TestTranslated(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	for name, test := range map[string]struct{ theirs, ours string }{
		"transformers, ZeRO-2": {`{
  // comments are read, too
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false, /* and these */
}`, "precision: bf16\noptimizer: {type: adamw, lr: 5e-5, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0}\nschedule: {type: linear, warmup: 0, lag: 1, min_lr: 0}\nzero: {stage: 2}\ntrain: {accumulate: 1, clip: 1, micro_batch: 8}"},
		"Axolotl, ZeRO-3 with offload": {`{"zero_force_ds_cpu_optimizer": false, "zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
  "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 0, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
  "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "gather_16bit_weights_on_model_save": true},
  "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}`,
			"zero: {stage: 3, offload: {optimizer: host, parameters: host}}\nprecision: bf16\ntrain: {micro_batch: 2, accumulate: 3}\noptimizer: {type: adamw, lr: 5e-5, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: linear, warmup: 0, lag: 1, min_lr: 0}"},
		"stage 0 in float32": {`{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": false}, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 1e-4, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: constant, warmup: 0}"},
		"Adam with L2": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "adam_w_mode": false}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adam, lr: 1e-4, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: constant, warmup: 0}"},
		"Muon": {`{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, "optimizer": {"type": "Muon", "params": {"lr": 2e-3, "momentum": 0.9}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 1}\noptimizer: {type: muon, lr: 2e-3, momentum: 0.9, weight_decay: 0, adamw: {lr: 2e-3, eps: 1e-10}}\nschedule: {type: constant, warmup: 0}"},
		"Muon's parts": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Muon", "params": {"muon_lr": 2e-3, "lr": 1e-4, "betas": [0.8, 0.9], "eps": 1e-9}}, "zero_optimization": {"stage": 1}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 1}\noptimizer: {type: muon, lr: 2e-3, weight_decay: 0, adamw: {lr: 1e-4, betas: [0.8, 0.9], eps: 1e-9}}\nschedule: {type: constant, warmup: 0}"},
		"a schedule of Muon": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Muon", "params": {}}, "zero_optimization": {"stage": 1}, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_max_lr": 2e-3, "warmup_num_steps": 5}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 1}\noptimizer: {type: muon, lr: 2e-3, weight_decay: 0, adamw: {lr: 2e-3, eps: 1e-10}}\nschedule: {type: constant, warmup: 5, lag: 2}"},
		"AdamW by default": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"}, "elasticity": {"enabled": false, "max_train_batch_size": 2000}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: constant, warmup: 0}"},
		"SGD by default": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: sgd, lr: 1e-3, momentum: 0, weight_decay: 0}\nschedule: {type: constant, warmup: 0}"},
		"Lion by default": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}`,
			"train: {micro_batch: 2}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: lion, lr: 1e-4, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: constant, warmup: 0}"},
		"a linear schedule": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 10, "warmup_min_lr": 0, "warmup_max_lr": 1e-3, "total_num_steps": 50}}}`,
			"train: {micro_batch: 2, steps: 50}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: linear, warmup: 10, min_lr: 0, lag: 2}"},
		"a schedule before the optimizer": {`{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_max_lr": 2e-3}}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}}`,
			"train: {micro_batch: 2, clip: 0.5}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 2e-3, betas: [0.9, 0.999], weight_decay: 0.1, groups: [{match: \"*\", weight_decay: 0.1}]}\nschedule: {type: constant, warmup: 1000, lag: 2}"},
		"a schedule's own rate": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 5, "total_num_steps": 50}}}`,
			"train: {micro_batch: 2, steps: 50}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: linear, warmup: 5, min_lr: 0, lag: 2}"},
		"a cosine": {`{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear", "warmup_num_steps": 10, "cos_min_ratio": 0.1, "total_num_steps": 50}}}`,
			"train: {micro_batch: 2, steps: 50}\nprecision: fp32\nzero: {stage: 0}\noptimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.999], weight_decay: 0}\nschedule: {type: cosine, warmup: 10, min_lr: 1e-4, lag: 1}"},
		"Accelerate with DeepSpeed": {"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: none\n  offload_param_device: none\n  zero3_init_flag: false\n  gradient_accumulation_steps: 2\nuse_cpu: false\n",
			"precision: bf16\nparallel: {ranks: 2}\nzero: {stage: 2}\ntrain: {accumulate: 2}"},
		"Accelerate with FSDP": {"distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 2\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_offload_params: true\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n  fsdp_activation_checkpointing: true\n",
			"precision: fp32\nparallel: {ranks: 2}\nzero: {stage: 3, recompute: block, offload: {parameters: host, optimizer: host}}"},
		"Accelerate without a precision": {"distributed_type: MULTI_CPU\nnum_processes: 2\n", "precision: fp32\nparallel: {ranks: 2}\nzero: {stage: 0}"},
		"TrainingArguments with FSDP": {`{"output_dir": "out", "max_steps": 30, "save_strategy": "no", "save_steps": 500, "lr_scheduler_kwargs": {}, "fsdp": "full_shard auto_wrap", "fsdp_config": {"activation_checkpointing": true, "min_num_params": 0, "xla": false, "transformer_layer_cls_to_wrap": ["A"]}}`,
			"data: {validation: 0}\ntrain: {micro_batch: 8, steps: 30, accumulate: 1, seed: 42, eval_every: 0}\ncheckpoint: {every: 0, keep: {every_steps: 1}}\noptimizer: {lr: 5e-5, weight_decay: 0, betas: [0.9, 0.999]}\nschedule: {type: linear, warmup: 0, lag: 1, min_lr: 0}\nprecision: fp32\nzero: {stage: 3, recompute: block}"},
		"TrainingArguments": {`{"output_dir": "out", "per_device_train_batch_size": 2, "learning_rate": 2e-5, "max_steps": 30, "lr_scheduler_type": "cosine", "warmup_steps": 3, "bf16": true, "gradient_checkpointing": true, "save_steps": 10, "save_total_limit": 2, "adam_beta2": 0.95, "optim": "adamw_torch_fused", "logging_steps": 1, "seed": 42}`,
			"data: {validation: 0}\ntrain: {micro_batch: 2, steps: 30, accumulate: 1, seed: 42, eval_every: 0}\noptimizer: {type: adamw, lr: 2e-5, weight_decay: 0, betas: [0.9, 0.95]}\nschedule: {type: cosine, warmup: 3, min_lr: 0, lag: 1}\nprecision: bf16\nzero: {stage: 0, recompute: block}\ncheckpoint: {every: 10, keep: 2}"},
	} {
		jobtest.Write(t, "theirs.json", test.theirs)
		jobtest.Write(t, "ours.yaml", test.ours)
		sets := []string{"data.text=[job.yaml]", "model={from: null, family: gpt2}"}
		got, err := Load("theirs.json", sets)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := Load("ours.yaml", sets)
		if err != nil {
			t.Fatalf("%s: our own: %v", name, err)
		}
		if a, b := string(got.YAML()), string(want.YAML()); a != b {
			t.Errorf("%s: it is\n%s\nwant\n%s", name, a, b)
		}
		text, ok, err := dialect.Translate("theirs.json")
		if err != nil || !ok {
			t.Errorf("%s: %v", name, err)
			continue
		}
		jobtest.Write(t, "written.yaml", text)
		again, err := Load("written.yaml", append(sets, "data.documents=[]"))
		if err != nil {
			t.Errorf("%s: the file that is written: %v\n%s", name, err, text)
		} else if a, b := string(again.YAML()), string(want.YAML()); a != b {
			t.Errorf("%s: written, it is\n%s\nwant\n%s", name, a, b)
		}
	}
}

// TestTranslatedRefuses checks that keys with another meaning, or none, are refused with their
// position.
func TestTranslatedRefuses(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	for _, theirs := range []string{
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_quantized_weights": true}}`,
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}`,
		`{"train_batch_size": 8, "zero_optimization": {"stage": 3, "overlap_com": true}}`,
		`{"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}}`,
		`{"train_batch_size": 8, "bfp16": {"enabled": true}}`,
		`{"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}}`,
		`{"train_batch_size": 8, "scheduler": {"type": "OneCycle"}}`,
		`{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 128}}`,
		`{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}`,
		`{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}`,
		"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
		`{"train_batch_size": 8, "elasticity": {"enabled": true}}`,
		`{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear"}}}`,
		`{"output_dir": "x", "lr_scheduler_kwargs": {"num_cycles": 3}}`,
		`{"output_dir": "x", "eval_strategy": "epoch", "max_steps": 9}`,
		`{"output_dir": "x", "eval_strategy": "steps", "load_best_model_at_end": true, "metric_for_best_model": "f1"}`,
		`{"output_dir": "x", "deepspeed": "none.json"}`,
		`{"output_dir": "x", "fsdp": "full_shard", "fsdp_config": "fsdp.json"}`,
		`{"output_dir": "x", "bf16": true, "fp16": true}`,
		`{"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"adam_w_mode": false}}}`,
		`{"train_batch_size": 8, "optimizer": {"params": {"lr": 1}}}`,
		`{"train_batch_size": 8, "amp": {"enabled": true, "opt_level": "O1"}}`,
		`{"train_batch_size": 8, "data_efficiency": {"data_sampling": {"enabled": true}}}`,
		`{"train_batch_size": 8, "zero_optimization": {"stage": {"a": 1}}}`,
		`{"output_dir": "x", "lr_scheduler_type": "warmup_stable_decay"}`,
		"distributed_type: MULTI_GPU\ndeepspeed_config: {zero_stage: 3}\n",
		"data: {text: [job.yaml]}\ntrain_batch_size: 8\n",
		"data: {text: [job.yaml]}\noptimizer: {learning_rate: 1}\n",
		"data: {text: [job.yaml]}\ntrain: {per_device_train_batch_size: 1, num_train_epochs: 2}\n",
	} {
		jobtest.Write(t, "theirs.json", theirs)
		_, err := Load("theirs.json", []string{"data.text=[job.yaml]", "model.family=gpt2"})
		said.Same(t, theirs, err)
	}
}

// TestTranslatedJobsNameTheirModel checks that no job for a model that a script chooses trains another one.
func TestTranslatedJobsNameTheirModel(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "theirs.json", `{"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true}}`)
	if _, err := Load("theirs.json", []string{"data.text=[job.yaml]"}); err == nil || !strings.Contains(err.Error(), "names no model; write --set model.from=FOLDER") {
		t.Error(err)
	}
	text, ok, err := dialect.Translate("theirs.json")
	if err != nil || !ok || !strings.Contains(text, "from: YOUR-MODEL\n") || !strings.Contains(text, "recompute: block\n") {
		t.Errorf("%v\n%s", err, text)
	}
	jobtest.Write(t, "written.yaml", text)
	if _, err := Load("written.yaml", nil); err == nil || !strings.Contains(err.Error(), "YOUR-MODEL") {
		t.Error(err)
	}
	jobtest.Write(t, "other.json", `{"output_dir": "x"}`)
	if _, _, err := dialect.Translate("other.json", "other.json"); err == nil || !strings.Contains(err.Error(), "not read together") {
		t.Error(err)
	}
}

// TestWords checks that every word of another program names one of our keys, and every value one of its values.
func TestWords(t *testing.T) {
	nightly.Long(t)
	for _, w := range words.All() {
		f, ok := config.Explain(w.Ours)
		if w.Program != "words" && w.Ours != "" && !ok || w.Ours == "" && len(w.Values) > 0 {
			t.Errorf("%s of %s: there is no key %q", w.Key, w.Program, w.Ours)
		}
		for _, word := range w.Values {
			if len(word) > 1 && word[0] != '[' && !strings.Contains(f.Value, word) {
				t.Errorf("%s of %s: %s has no value %s", w.Key, w.Program, w.Ours, word)
			}
		}
	}
}

// TestAutoIsReported checks that a job names the values that stand for "auto", unless a set replaces them.
func TestAutoIsReported(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "theirs.json", `{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}`)
	c, err := Load("theirs.json", []string{"data.text=[job.yaml]", "model.family=gpt2", "train.clip=2"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "precision fp32, schedule.lag 1, schedule.min_lr 0, schedule.type linear, schedule.warmup 0, train.micro_batch 8; decided by a script"
	if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], want) || strings.Contains(c.Notes[0], "train.clip") {
		t.Errorf("notices %q, want %s", c.Notes, want)
	}
	if text, _, err := dialect.Translate("theirs.json"); err != nil || !strings.Contains(text, "train.clip 1.0, train.micro_batch 8;") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestSlashesInFlowStyle checks that a job in braces keeps addresses and paths with two slashes.
func TestSlashesInFlowStyle(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "flow.yaml", "// a comment\n{data: {text: [.//a.txt]}, /* another */ checkpoint: {dir: s3://runs/a}, // the last\n train: {steps: 3}}\n")
	c, err := Load("flow.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Checkpoint.Dir != "s3://runs/a" || c.Data.Text[0] != ".//a.txt" || c.Train.Steps != 3 {
		t.Errorf("%q, %q, %d steps", c.Checkpoint.Dir, c.Data.Text, c.Train.Steps)
	}
}
