package job

import (
	"os"
	"path/filepath"
	"testing"

	"zeroth/config/tree"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/nn"
)

// FuzzHardware checks that OpenHardware, for any bytes, returns an error or a machine on which a
// step can be simulated.
func FuzzHardware(f *testing.F) {
	path := filepath.Join(f.TempDir(), "machine.json")
	example, err := os.ReadFile("../examples/machine.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	for _, s := range []string{`{"flops": {"bf16": 1}, "memory": 1, "links": [{"ranks": 2, "bandwidth": 1, "latency": 0}, {"bandwidth": 1e24, "latency": 1000}]}`, "{}", "[[[", `{"name": "\u001b"}`, `{"memory": 1e999}`, `{"flops": {"bf16": 1, "bf16": 2}}`} {
		f.Add(s)
	}
	c, err := spec.Draft("", []string{"model={layers: 1, heads: 1, width: 8, context: 8}"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		jobtest.Write(t, path, s)
		h, err := forecast.OpenHardware(path)
		if err == nil {
			var x *forecast.Step
			if x, err = forecast.Simulate(setup.Planned(c), h); err == nil && !(x.Seconds > 0 && x.Seconds < 1e9 && x.Tokens > 0) {
				t.Errorf("%+v", x)
			}
		}
		if err != nil && (!input.IsInput(err) || len(err.Error()) > 100_000) {
			t.Fatalf("said: %q", err)
		}
	})
}

// FuzzPlanOfModel checks that a job with any config.json is refused or can be planned.
func FuzzPlanOfModel(f *testing.F) {
	path := filepath.Join(f.TempDir(), "config.json")
	for _, family := range []string{"gpt2", "llama"} {
		f.Add(string(hf.Model{Family: family, Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 16, Vocab: 300, Eps: 1e-5}, Llama: nn.Llama{KV: 1, FFN: 16, Theta: 1e4}}.ConfigJSON()))
	}
	for _, s := range []string{`{"model_type": "gpt2"}`, `{"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4}`, `{"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}`, "[[[", `{"model_type": "gpt2", "n_layer": 1e9}`, "null", `{"model_type": "gpt2", "n_layer": 1048576, "eos_token_id": [1, 2]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		jobtest.Write(t, path, s)
		c, err := spec.Draft("", []string{"model.from=" + tree.Quote(path)})
		if err != nil {
			if !input.IsInput(err) {
				t.Fatalf("said: %q", err)
			}
			return
		}
		if c.Model.Layers > 50 {
			return // it takes its time
		}
		if _, err := forecast.NewPlan(c, forecast.Machine{GPU: true}); err != nil {
			t.Fatal(err)
		}
	})
}
