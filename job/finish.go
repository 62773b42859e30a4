package job

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"zeroth/checkpoint/safetensors"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/generate"
	"zeroth/job/hf"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/zero"
)

// export writes the parameters as a Hugging Face folder, every rank its share.
// After an error there is no model in it, or the one of before. Adapters are merged,
// and by themselves in a folder beside it. What cannot be written is an error of
// process 0 alone: it still receives all shares, so that the others end as usual.
func export(j *setup.Job, ranks []*setup.Rank, folder string) (err error) {
	c := j.Config
	adapters := &hf.Adapters{LoRA: config.Adapters(c), Family: c.Model.Family}
	if ranks[0].Rank > 0 {
		return collectAll(c, ranks, adapters, nil)
	}
	made := Missing(folder)
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("final parameters: %w", err)
		if !input.Exists(filepath.Join(folder, "model.safetensors")) { // a folder with half a model would say more than it holds
			j.Carried.Remove(folder)
			for _, folder := range made {
				_ = os.Remove(folder) // fails if it is not empty
			}
		}
	}()
	w, wrong := createModel(j, folder)
	if err := collectAll(c, ranks, adapters, w); err != nil {
		if w != nil {
			_ = w.Abort() // err is the one to report
		}
		return cmp.Or(wrong, err)
	}
	if wrong != nil {
		return wrong
	}
	if err := w.Close(); err != nil || c.Train.LoRA.Rank == 0 {
		return err
	}
	adapter := filepath.Join(filepath.Dir(folder), state.AdapterDir)
	if err := input.Folder(adapter); err != nil {
		return err
	}
	return adapters.Write(adapter, c.Model.From)
}

// createModel begins the folder of the final parameters: all but these.
func createModel(j *setup.Job, folder string) (*safetensors.Writer, error) {
	var specs []safetensors.Spec
	for _, p := range config.Parameters(j.Config) {
		if nn.IsAdapter(p.Name) {
			continue
		}
		specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	if err := input.Folder(folder); err != nil {
		return nil, err
	}
	if err := j.Carried.Write(folder, j.ModelJSON()); err != nil {
		return nil, err
	}
	return safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, map[string]string{"format": "pt"})
}

// collectAll brings the adapters, if there are some, and then the model's parameters,
// merged, to the process of rank 0, which writes these to w, or nowhere if w is nil.
func collectAll(c *config.Config, ranks []*setup.Rank, adapters *hf.Adapters, w *safetensors.Writer) error {
	if adapters.LoRA.Rank > 0 {
		if err := collect(c, ranks, nn.IsAdapter, adapters.Put); err != nil {
			return err
		}
	}
	return collect(c, ranks, func(name string) bool { return !nn.IsAdapter(name) }, func(p zero.Part, src []float32) error {
		if w != nil {
			_ = w.WriteF32(p.Param.Name, p.At.Lo, adapters.Merge(p, src)) // Close reports it
		}
		return nil
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
