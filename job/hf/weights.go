package hf

import (
	"context"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Weights is where a job's initial parameters come from: a folder of
// safetensors, or, with none, their initial distributions.
type Weights struct {
	Seed uint64        // of the initial distributions
	From *ModelTensors // nil: there is no folder
}

// Close closes the folder's files, if there is a folder.
func (w *Weights) Close() {
	if w.From != nil {
		_ = w.From.Close() // only read from
	}
}

// Fill is a source of initial master parameters for zero.Trainer.Fill.
func (w *Weights) Fill(p zero.Part, dst []float32) error {
	if w.From == nil || nn.IsAdapter(p.Param.Name) {
		nn.Fill(w.Seed, p.Param, p.At, dst)
		return nil
	}
	for tensor, own := range p.Param.Runs(p.At) {
		if err := w.From.ReadF32(w.From.Names[p.Param.Name], tensor.Lo, tensor.Hi, dst[own.Lo-p.At.Lo:own.Hi-p.At.Lo]); err != nil {
			return err
		}
	}
	return nil
}

// Check reads the values of a folder's parameters before anything is begun with
// them, and returns their digest; it is empty where there is no folder.
func (w *Weights) Check(ctx context.Context, m Model) (digest string, err error) {
	if w.From == nil {
		return "", nil
	}
	return w.From.Check(ctx, m)
}

// stored is a parameter's name in a file: folders of a model without its head,
// as Hugging Face's own of GPT-2, leave out the leading "transformer." or "model.".
func stored(r *safetensors.Reader, name string) string {
	if _, ok := r.Tensor(name); !ok {
		return strings.TrimPrefix(strings.TrimPrefix(name, "transformer."), "model.")
	}
	return name
}

// Parameters are all parameters of a model, each once.
func Parameters(m *nn.Model) (params []shard.Param) {
	for _, u := range m.Units() {
		params = append(params, u.Params...)
	}
	return params
}
