//go:build unix

package main

import (
	"strings"
	"testing"
)

// TestMistakes checks that what people mistype, or know from other programs, is answered with what to type.
func TestMistakes(t *testing.T) {
	inFolder(t)
	write(t, "base/config.json", `{"model_type": "llama", "hidden_size": 64}`)
	write(t, "x.csv", "a,b\n1,2\n")
	write(t, "star.yaml", "data: {text: *.txt}\n")
	for args, want := range map[string]string{
		"generate|--run|x":                                            "unknown command \"generate\" for \"zeroth\"\n\nDid you mean this?\n\tsample",
		"trian|tiny.yaml|--out|x":                                     "Did you mean this?\n\ttrain",
		"train|tiny.yaml|--lr|1":                                      "--lr; write --set optimizer.lr=VALUE",
		"train|--learning-rate|1":                                     "write --set optimizer.lr=VALUE",
		"train|--num_gpus|1":                                          "write --set parallel.ranks=VALUE",
		"train|--output_dir|x":                                        "'zeroth train --out FOLDER' names the run folder",
		"train|--config|tiny.yaml":                                    "write the job file without a flag: zeroth train JOB.yaml",
		"train|tiny.yaml|train.steps=4":                               "write --set train.steps=4",
		"train|tiny.yaml|--resume|--out|o":                            "--resume got --out as its value; write it as --resume VALUE",
		"sample|--run|r|--chat|What is it?":                           "write the text as --prompt 'What is it?'",
		"train|base/config.json":                                      "config.json of a model, not a job file; a model is planned with 'zeroth plan --model base'",
		"plan|Llama-3-8B|--gpus|8":                                    "'zeroth plan --model hf://meta-llama/Meta-Llama-3-8B'",
		"plan|hf://org/name":                                          "'zeroth init finetune --model hf://org/name'",
		"plan|--model|Llama-70B":                                      "published models Llama-3-70B, Llama-3.1-70B",
		"train|tiny.yml":                                              "did you mean tiny.yaml?",
		"train|star.yaml":                                             "star.yaml:1:14: data.text: *.txt is a pattern without quotes; write \"*.txt\"",
		"train|x.csv":                                                 "a table of comma-separated values, not a job file",
		"train|tiny.yaml|--set|data={documents: [x.csv]}":             "csv.DictReader",
		"train|tiny.yaml|--set|data.tokenizer=base":                   "base is a folder: name it with data.vocab",
		"train|tiny.yaml|--set|train.lora={rank: 2, targets: q_proj}": "write [q_proj]",
		"train|tiny.yaml|--set|train.lora={rank: 2, lora_alpha: 4}":   "write train: {lora: {alpha: ...}}",
		"train|tiny.yaml|--set|model.num_hidden_layers=2":             "num_hidden_layers of config.json is model.layers here",
		"train|tiny.yaml|--set|schedule.warmup_ratio=0.1":             "write schedule: {warmup: ...}",
		"train|tiny.yaml|--set|train.steps=1e3":                       "write 1000",
		"train|tiny.yaml|--set|data.validation=10%":                   "write 0.1",
		"train|tiny.yaml|--set|device=gpu:0":                          "did you mean cuda?",
		"train|tiny.yaml|--set|wandb.project=x":                       "report.tensorboard and report.mlflow",
		"sample|--temp|0":                                             "did you mean --temperature or --template-arg?",
		"train|tiny.yaml|-n|2":                                        "'zeroth launch -n 2 -- train JOB.yaml' starts processes",
		"train|tiny.yaml|--dry-run":                                   "'zeroth plan JOB.yaml' shows what a job needs",
		"launch|--nproc-per-node|2":                                   "did you mean --processes?",
		"launch|--restarts|--|train|tiny.yaml":                        "want a whole number",
		"ckpt|merge|r|--to|x":                                         "unknown command \"merge\" for \"zeroth ckpt\"\n\nDid you mean this?\n\texport",
		"verify|r":                                                    "Did you mean this?\n\tckpt verify",
		"fit|--model|Llama-3-8B|--gpus|8x8":                           "want a whole number, or auto",
		"fit|--model|Llama-3-8B|--longest|--largest|model":            "want one of them",
		"fit|--model|Llama-3-8B|--longest|--seq|8":                    "drop --longest to plan with that value, or the other to search",
		"eval|tiny.yaml|--data|x.txt":                                 "--set 'data={text: [FILE]}'",
		"report|r|--out|x":                                            "standard output: zeroth report runs/a >a.html",
		"ckpt|export|r|--out|x":                                       "did you mean --to?",
		"tokenize|a.txt":                                              "'zeroth tokenize' needs --out FILE and --tokenizer NAME, such as: zeroth tokenize --tokenizer gpt2",
		"fit|--model|llama3":                                          "published models Llama-3-8B, Llama-3-70B, Llama-3.1-8B",
		"plan|--model|Llama-3-8B|--machine|dgx-h100":                  "did you mean h100?",
		"train|tiny.yaml|--set|train.clip=2e-1%":                      "write 0.002",
		"train|tiny.yaml|--set|model.experts={count: 8}":              "or use it with model.family llama",
		"train|tiny.yaml|--set|model.experts={top_k: 2}":              "write model: {experts: {per_token: ...}}",
		"train|tiny.yaml|--set|faults.min_replicas=2":                 "or use it with faults.survive",
		"train|tiny.yaml|--set|model.weights=4bit":                    "did you mean nf4?",
		"train|tiny.yaml|--set|parallel.expert_parallel=2":            "write parallel: {expert: ...}",
		"train|tiny.yaml|--set|train.tensor-model-parallel-size=2":    "write parallel: {tensor: ...}",
		"train|tiny.yaml|--resume|base":                               "start from it with model.from",
		"help|optimizer.learning_rate":                                "learning_rate of TrainingArguments is optimizer.lr here",
		"help|lora":                                                   "did you mean 'zeroth help train.lora'?",
	} {
		if _, errs := zeroth(t, 2, strings.Split(args, "|")...); !strings.Contains(errs, want) {
			t.Errorf("%s:\n%s\nwant %s", args, errs, want)
		}
	}
	if _, errs := zeroth(t, 2, "train", "star.yaml"); strings.Contains(errs, "nothing to train on") {
		t.Error(errs)
	}
}

// TestQuestions checks what runs that may not be meant say: one task of several under Slurm, and adapters on random
// parameters.
func TestQuestions(t *testing.T) {
	inFolder(t)
	t.Setenv("SLURM_NTASKS", "4")
	out, errs := zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--set", "train.lora={rank: 2}")
	contains(t, out+errs, "start it with srun zeroth train", "adapters are trained on a model of random parameters")
	t.Setenv("SLURM_STEP_ID", "0")
	if out, errs := zeroth(t, 0, "train", "tiny.yaml", "--out", "s"); strings.Contains(out+errs, "srun") {
		t.Error(out, errs)
	}
}
