//go:build unix

package main

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"zeroth/internal/machine"
	"zeroth/tests/nightly"
)

// TestEval checks that the model of a run is evaluated on the job's data, as text and as JSON.
func TestEval(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "run")
	out, _ := zeroth(t, 0, "eval", "tiny.yaml", "--run", "run", "--all")
	contains(t, out, "loss        ", "perplexity  ", " tokens/s\n")
	out, _ = zeroth(t, 0, "eval", "tiny.yaml", "--run", "run/model", "--all", "--json", "--set", "train.micro_batch=1")
	var e map[string]float64
	if err := json.Unmarshal([]byte(out), &e); err != nil || !(e["loss"] > 0) || math.Abs(math.Exp(e["loss"])-e["perplexity"]) > 1e-9*e["perplexity"] || e["tokens"] == 0 {
		t.Errorf("%s: %v", out, err)
	}
	// Keys that only matter in training are ignored; the context and the device matter.
	of := []string{"eval", "tiny.yaml", "--run", "run", "--all", "--json", "--set"}
	zeroth(t, 0, append(of, `optimizer.groups=[{match: "*.lora_B.*", lr: 1}]`, "--set", "train.lora.rank=2", "--set", "checkpoint.every=2")...)
	out, _ = zeroth(t, 0, append(of, "model.context=4")...)
	var short map[string]float64
	if err := json.Unmarshal([]byte(out), &short); err != nil || short["loss"] == e["loss"] {
		t.Errorf("with half the context %s: %v", out, err)
	}
	if _, err := machine.UsableGPUs(); err != nil {
		_, errs := zeroth(t, 2, append(of, "device=cuda")...)
		contains(t, errs, "device: cuda: ")
	}
	out, _ = zeroth(t, 0, "eval", "tiny.yaml", "--run", "run", "--json", "--set", "data.validation=0", "--set", "train.eval_every=0")
	var all map[string]float64
	if err := json.Unmarshal([]byte(out), &all); err != nil || all["tokens"] < e["tokens"] {
		t.Errorf("without validation data %s: %v", out, err)
	}
	// If the validation share is shorter than a window, all data is used, whatever train.eval_every
	// says.
	out, errs := zeroth(t, 0, "eval", "tiny.yaml", "--run", "run", "--json", "--set", "data.validation=1e-4", "--set", "train.eval_every=5")
	contains(t, errs, "there is no validation data: evaluating on all of the data\n")
	var some map[string]float64
	if err := json.Unmarshal([]byte(out), &some); err != nil || some["loss"] != all["loss"] || some["tokens"] != all["tokens"] {
		t.Errorf("with little validation data %s: %v", out, err)
	}
	out, _ = zeroth(t, 0, "eval", "tiny.yaml", "--run", "run", "--json", "--all", "--stride", "3")
	var sliding map[string]float64
	if err := json.Unmarshal([]byte(out), &sliding); err != nil || sliding["loss"] == all["loss"] || sliding["tokens"] != 10_500-1 {
		t.Errorf("with a stride %s: %v", out, err)
	}
	_, errs = zeroth(t, 2, "eval", "tiny.yaml", "--run", "run", "--stride", "9")
	contains(t, errs, "--stride 9; want at most model.context, 8\n")
	zeroth(t, 2, "eval", "tiny.yaml")
	zeroth(t, 2, "eval", "--run", "run")
}

// TestEvalBlamesRun checks that errors about the model name --run, not model.from, which was not
// given.
func TestEvalBlamesRun(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "run")
	for _, c := range []struct {
		spoil func() error
		says  string
	}{
		{func() error { return os.WriteFile("run/model/config.json", []byte("{"), 0o644) }, "--run run: "},
		{func() error { return os.Remove("run/model/config.json") }, "--run run: run/model has parameters, but no config.json"},
		{func() error { return os.RemoveAll("run/model") }, "--run run: run/config.json cannot be read"},
		{func() error { return os.RemoveAll("run") }, "--run run: run/config.json cannot be read"},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		_, errs := zeroth(t, 2, "eval", "tiny.yaml", "--run", "run")
		if contains(t, errs, c.says); strings.Contains(errs, "model.from") {
			t.Errorf("it blames a key that was not given: %s", errs)
		}
	}
}
