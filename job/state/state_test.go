package state

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"testing"

	"zeroth/data"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/hf"
)

// What is taken has numbers that a run can go on with, and is taken again when
// it is written.
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
			set.Train.Batch(input[:], target[:], nil, at)
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
		if was := config.SettingsOf(p.Config); was != nil {
			if lr := build.Schedule(was).At(p.Updates); math.IsNaN(lr) {
				t.Fatalf("the learning rate of update %d is %v", p.Updates, lr)
			}
			for _, key := range config.Lasting {
				was.Text(key)
			}
		}
	})
}
