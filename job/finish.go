package job

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"zeroth/checkpoint/safetensors"
	"zeroth/input"
	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/job/generate"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/zero"
)

// export writes the parameters as a Hugging Face folder, every rank its share.
// After an error there is no model in it, or the one of before. Adapters are merged,
// and by themselves in a folder beside it.
func export(c *config.Config, ranks []*build.Rank, folder string) (err error) {
	adapters := &hf.Adapters{LoRA: config.Adapters(c), Family: c.Model.Family}
	if ranks[0].Rank > 0 {
		return collectAll(c, ranks, adapters, nil)
	}
	var specs []safetensors.Spec
	for _, p := range config.Parameters(c) {
		if nn.IsAdapter(p.Name) {
			continue
		}
		specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	made := Missing(folder)
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("final parameters: %w", err)
	}
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("final parameters: %w", err)
		if !input.Exists(filepath.Join(folder, "model.safetensors")) { // a folder with half a model would say more than it holds
			c.Carried.Remove(folder)
			for _, folder := range made {
				_ = os.Remove(folder) // fails if it is not empty
			}
		}
	}()
	if err := c.Carried.Write(folder, c.ModelJSON()); err != nil {
		return err
	}
	w, err := safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	if err := collectAll(c, ranks, adapters, w); err != nil {
		_ = w.Abort() // err is the one to report
		return err
	}
	if err := w.Close(); err != nil || c.Train.LoRA.Rank == 0 {
		return err
	}
	return adapters.Write(filepath.Join(filepath.Dir(folder), state.AdapterDir), c.Model.From)
}

// collectAll brings the adapters, if there are some, and then the model's parameters,
// merged, to the process of rank 0, which writes these to w.
func collectAll(c *config.Config, ranks []*build.Rank, adapters *hf.Adapters, w *safetensors.Writer) error {
	if adapters.LoRA.Rank > 0 {
		if err := collect(c, ranks, nn.IsAdapter, adapters.Put); err != nil {
			return err
		}
	}
	return collect(c, ranks, func(name string) bool { return !nn.IsAdapter(name) }, func(p zero.Part, src []float32) error {
		return w.WriteF32(p.Param.Name, p.At.Lo, adapters.Merge(p, src))
	})
}

// sampleAtEnd is the text the job asks for at its end, from what it has written.
func sampleAtEnd(c *config.Config, ctx context.Context, out string, note func(string)) (string, error) {
	if c.Sample.Tokens == 0 {
		return "", nil
	}
	var text bytes.Buffer
	s := c.Sample
	err := generate.Sample(ctx, generate.Options{
		Run: filepath.Join(out, state.ModelDir), Tokenizer: config.Tokenizer(c), Prompt: s.Prompt, Tokens: s.Tokens, Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, Stop: s.Stop, Seed: s.Seed, Device: c.Device, Note: note,
	}, &text)
	return show.OnScreen(text.Bytes()), err
}
