package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Key is a key of the job file as people are told of it.
type Key struct {
	Name    string   // "zero.stage"
	Value   string   // what it takes: "a whole number from 0 to 10000"
	Choices []string // the words it takes; nil: not one of a few
	Default string   // a value, or how it follows from other keys
	Meaning string
	When    string // in which jobs it is used; empty: in all
	Example string // a value, in YAML
	Keys    []Key  // of each mapping, where the value is a list of them
}

// Explain is what there is to know of a key; false if there is none of the name.
func Explain(name string) (Key, bool) {
	for _, f := range new(Config).fields() {
		if f.key == name {
			return f.explain(), true
		}
	}
	return Key{}, false
}

// explain is the field in words.
func (f field) explain() Key {
	k := Key{Name: f.key, Value: f.value.want(), Choices: choices(f.value), Default: f.initial + f.rule, Meaning: f.doc,
		When: when[f.key], Example: f.sample()}
	if v, ok := f.value.(records); ok {
		k.Value = "a list of " + v.many
		for _, of := range v.table() {
			k.Keys = append(k.Keys, of.explain())
		}
	}
	return k
}

// when says in which jobs a key is used, of keys that not all jobs use: see idle,
// and resolve for what is refused. Llama's are known by hf.LlamaKeys.
var when = map[string]string{
	"model.from":                "instead of the other model keys but context",
	"model.family":              "without model.from",
	"model.layers":              "without model.from",
	"model.heads":               "without model.from",
	"model.width":               "without model.from",
	"model.vocab":               "without model.from",
	"model.kv_heads":            "with model.family llama, without model.from",
	"model.ffn":                 "with model.family llama, without model.from",
	"model.rope_theta":          "with model.family llama, without model.from",
	"model.tied":                "with model.family llama, without model.from",
	"data.text":                 "instead of data.tokens",
	"data.documents":            "instead of data.text",
	"data.format":               "with data.documents",
	"data.keys.text":            "with data.format text",
	"data.keys.prompt":          "with data.format prompt",
	"data.keys.completion":      "with data.format prompt",
	"data.keys.messages":        "with data.format chat",
	"data.validation_documents": "with data.documents",
	"data.pack":                 "with data.documents",
	"data.tokens":               "instead of data.text",
	"data.dtype":                "with data.tokens",
	"data.vocab":                "with data.tokenizer gpt2 and folder",
	"parallel.gpus":             "with device cuda, or auto where that comes to it",
	"train.steps":               "instead of train.epochs",
	"train.epochs":              "instead of train.steps",
	"train.early_stop.metric":   "with train.early_stop.patience",
	"train.lora.alpha":          "with train.lora.rank",
	"train.lora.targets":        "with train.lora.rank",
	"parallel.tls.cert":         "with parallel.tls.key and parallel.tls.ca",
	"parallel.tls.key":          "with parallel.tls.cert and parallel.tls.ca",
	"parallel.tls.ca":           "with parallel.tls.cert and parallel.tls.key",
	"parallel.replicate":        "at zero.stage 1, 2 and 3",
	"zero.offload.parameters":   "at zero.stage 3",
	"zero.offload.path":         "where something is offloaded to disk",
	"zero.offload.buffers":      "where something is offloaded",
	"zero.offload.ratio":        "where the optimizer is offloaded",
	"optimizer.betas":           "with optimizer.type adamw, adamw8bit, adam and lion",
	"optimizer.eps":             "with optimizer.type adamw, adamw8bit, adam and muon",
	"optimizer.momentum":        "with optimizer.type sgd and muon",
	"optimizer.nesterov":        "with optimizer.type muon",
	"optimizer.ns_steps":        "with optimizer.type muon",
	"optimizer.adjust_lr_fn":    "with optimizer.type muon",

	"optimizer.adamw.lr":           "with optimizer.type muon",
	"optimizer.adamw.betas":        "with optimizer.type muon",
	"optimizer.adamw.eps":          "with optimizer.type muon",
	"optimizer.adamw.weight_decay": "with optimizer.type muon",

	"schedule.min_lr": "with schedule.type linear, cosine and wsd",
	"schedule.decay":  "with schedule.type wsd",
}

// samples are values of keys whose default is no value.
var samples = map[string]string{
	"model.from": "models/gpt2", "model.kv_heads": "2", "model.ffn": "1024", "model.vocab": "50257", "model.rope_theta": "500000", "model.tied": "true", "model.dropout": "0.1",
	"data.text": `["docs/**/*.md"]`, "data.tokens": `["train.bin"]`, "data.documents": `["chats-*.jsonl"]`, "data.validation_documents": `["dev.jsonl"]`, "data.dtype": "uint16", "data.tokenizer": "gpt2", "data.vocab": "models/gpt2",
	"train.epochs": "2", "train.batch": "32", "train.micro_batch": "4", "train.accumulate": "2", "train.eval_every": "100", "train.early_stop.patience": "3", "train.freeze": `["model.embed_tokens.*"]`, "train.lora.alpha": "32", "train.lora.targets": `["q_proj", "v_proj"]`, "parallel.ranks": "4", "parallel.gpus": "[0, 2]", "parallel.memory": "4GiB", "parallel.token_file": "/run/secrets/zeroth", "parallel.bind": "10.0.0.7", "parallel.tls.cert": "/run/tls/tls.crt", "parallel.tls.key": "/run/tls/tls.key", "parallel.tls.ca": "/run/tls/ca.crt",
	"zero.offload.path": "/mnt/nvme", "optimizer.betas": "[0.9, 0.95]", "optimizer.eps": "1e-8", "optimizer.momentum": "0.9", "optimizer.lr": "6e-4", "optimizer.nesterov": "false", "optimizer.ns_steps": "6", "optimizer.adjust_lr_fn": "match_rms_adamw",
	"optimizer.adamw.lr": "3e-4", "optimizer.adamw.betas": "[0.9, 0.95]", "optimizer.adamw.eps": "1e-8", "optimizer.adamw.weight_decay": "0", "optimizer.groups": `[{match: "*.bias", lr: 1e-4, weight_decay: 0}]`,
	"schedule.warmup": "100", "schedule.min_lr": "6e-5", "schedule.decay": "100", "checkpoint.every": "100", "checkpoint.dir": "/data/ckpt", "checkpoint.keep": "{last: 3, best: val_loss}",
	"checkpoint.save_on_exit": "true", "sample.prompt": `"Once upon a time"`, "sample.tokens": "200", "sample.stop": `["\n\n"]`, "sample.seed": "1",
}

// samplesOfItems are those of keys in lists.
var samplesOfItems = map[string]string{"match": `"*.bias"`, "lr": "1e-4", "weight_decay": "0"}

// sample is a value that would do.
func (f field) sample() string { return cmp.Or(samples[f.key], samplesOfItems[f.key], f.initial) }

// choices are the words a value is one of; nil if it is not one of a few.
func choices(v value) []string {
	switch v := v.(type) {
	case choice:
		return v.names
	case dtype:
		return v.names()
	case stage:
		return []string{"0", "1", "2", "3"}
	case flag:
		return []string{"true", "false"}
	}
	return nil
}

// Text is the key's page of the manual.
func (k Key) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", k.Name, k.Meaning)
	row := func(word, text string) { fmt.Fprintf(&b, "  %-8s %s\n", word, text) }
	row("value", k.Value)
	row("default", k.Default)
	if k.When != "" {
		row("used", k.When)
	}
	row("example", k.inline())
	row("", "--set "+k.flag())
	for i, of := range k.Keys {
		word := ""
		if i == 0 {
			word = "keys"
		}
		row(word, fmt.Sprintf("%-12s  %s: %s; default: %s", of.Name, of.Meaning, of.Value, of.Default))
	}
	return b.String()
}

// inline is the example in one line of a job file.
func (k Key) inline() string { return nestWith(k.Name, k.Example) }

// nestWith is how a key and its value are written in one line.
func nestWith(key, value string) string { return strings.Replace(nest(key), "...", value, 1) }

// flag is the example behind --set, as a shell wants it.
func (k Key) flag() string {
	set := k.Name + "=" + k.Example
	if strings.ContainsAny(set, `[]{}"* `) {
		return "'" + set + "'"
	}
	return set
}

// ReferenceOf is the table of the keys in a section, "zero" or "zero.offload"; false
// if there is none of the name.
func ReferenceOf(section string) (string, bool) {
	fields := slices.DeleteFunc(new(Config).fields(), func(f field) bool { return !strings.HasPrefix(f.key, section+".") })
	return reference(fields), len(fields) > 0
}

// Nearest is the name that word is most likely a misspelling of, or "".
func Nearest(word string, names []string) string { return nearest(word, names) }

// NearestKey is the key that name is most likely a misspelling of: of its last part
// too, where the section is wrong or left out. It is "" if none is like it.
func NearestKey(name string) string {
	keys := Keys()
	_, last := split(name)
	for _, k := range keys {
		if _, is := split(k); is == last {
			return k
		}
	}
	if near := nearest(name, keys); near != "" {
		return near
	}
	var lasts []string
	for _, k := range keys {
		_, is := split(k)
		lasts = append(lasts, is)
	}
	if near := nearest(last, lasts); near != "" {
		return keys[slices.Index(lasts, near)]
	}
	return ""
}
