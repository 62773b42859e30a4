package state

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// FuzzState checks that an accepted state has numbers from which a run can continue, and is
// accepted again after it is written.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"step": 7, "updates": 6, "skipped": 1, "samples": 28, "tokens": 224, "early_stop": {"best": 2.5, "step": 4, "stale": 1}, "loss_scale": {"Dynamic": true, "Scale": 65536, "Min": 1, "Window": 1000, "Hysteresis": 2, "Left": 2, "Clean": 5},
		"seed": 1, "data": "0a", "context": 8, "config": "train: {steps: 9, batch: 4}\n", "model": {"model_type": "gpt2"}, "version": "zeroth"}`))
	f.Add(hf.MustJSON(Progress{Model: json.RawMessage("{}"), Version: "zeroth"}))
	f.Add([]byte("null"))
	text := f.TempDir() + "/a.txt"
	if err := os.WriteFile(text, bytes.Repeat([]byte("to be, or not to be; "), 50), 0o644); err != nil {
		f.Fatal(err)
	}
	set, err := data.Open(f.Context(), data.Source{Text: []string{text}, Tokenizer: "bytes", Context: 8})
	if err != nil {
		f.Fatal(err)
	}
	defer set.Close()
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parseProgress(raw)
		if err != nil || p.Check() != nil {
			return
		}
		again, err := parseProgress(hf.MustJSON(p))
		if err != nil || again.Check() != nil || !bytes.Equal(hf.MustJSON(again), hf.MustJSON(p)) {
			t.Fatalf("%s\nbecame %s (%v)", hf.MustJSON(p), hf.MustJSON(again), err)
		}
		var input, target [8]int32
		for _, at := range []int64{p.Samples, p.Samples + 1<<40} {
			set.Train.Batch([]data.Values{{I32: input[:]}, {I32: target[:]}}, at)
		}
		if p.Trained() {
			for range 3 {
				_ = p.Scale.Update(false)
				_ = p.Scale.Update(true) // an overflow at the least scale is an error
			}
			if s := p.Scale.Scale; !(s > 0) || p.Scale.Dynamic && s < p.Scale.Min {
				t.Fatalf("a loss scale of %+v", p.Scale)
			}
		}
		if was := spec.SettingsOf(p.Config); was != nil {
			if lr := setup.Schedule(was).At(p.Updates); math.IsNaN(lr) {
				t.Fatalf("the learning rate of update %d is %v", p.Updates, lr)
			}
			for _, key := range config.Lasting() {
				was.Text(key)
			}
		}
	})
}

// TestFormats checks that files without a format number mean what the versions that wrote them
// meant, and that newer formats are refused.
func TestFormats(t *testing.T) {
	const job = `"samples": 8, "data": "0a", "config": "model:\n  family: gpt2\n`
	for raw, dropout := range map[string]float64{
		`{"model": {"model_type": "gpt2"}, ` + job + `"}`:                                        0, // e68e9ed
		`{"model": {"model_type": "gpt2"}, ` + job + `  attention_dropout: 0\n"}`:                0.1,
		`{"model": {"model_type": "gpt2", "resid_pdrop": 0.3, "embd_pdrop": 0.3}, ` + job + `"}`: 0.3,
		`{"model": {"model_type": "gpt2"}}`:                                                      0, // imported by e68e9ed
		`{"model": {"model_type": "gpt2"}, "base": "0b"}`:                                        0.1,
		`{"format": 1, "model": {"model_type": "gpt2"}}`:                                         0.1,
	} {
		p, err := parseProgress([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		m, _, err := hf.ReadModel(p.Model)
		if err != nil || m.Dropout.Residual != dropout || m.Dropout.Embed != dropout {
			t.Errorf("%s has dropout %v (%v), want %v", raw, m.Dropout, err, dropout)
		}
		again, err := parseProgress(p.JSON())
		if err != nil || again.Format != Format || !bytes.Equal(again.Model, p.Model) && !bytes.Equal(hf.MustJSON(again.Model), hf.MustJSON(p.Model)) {
			t.Errorf("%s, written again: %s (%v)", raw, p.JSON(), err)
		}
	}
	for _, raw := range []string{`{"format": 2, "step": "eight", "version": "zeroth 0.9"}`, `{"version": "zeroth 0.9", "format": 1000000}`} {
		if _, err := parseProgress([]byte(raw)); !input.IsInput(err) || !strings.Contains(err.Error(), "zeroth 0.9") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{`{"format": -1}`, `{"format": "1"}`, `{"format": 1.5}`} {
		if _, err := parseProgress([]byte(raw)); err == nil {
			t.Errorf("%s is read", raw)
		}
	}
}
