package hf

import (
	"context"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/show"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Weights is the source of a job's initial parameters: a folder of safetensors, a checkpoint or, without
// either, their initial distributions.
type Weights struct {
	Seed uint64                                                   // of the initial distributions
	From *ModelTensors                                            // nil without a folder
	Read func(p shard.Param, at shard.Range, dst []float32) error // reads a range of the tensor that p is, or is a part of, from a checkpoint; nil without one

	Adapter *Adapter // with which adapters begin; nil: with their initial distributions

	coder coder
}

// Close closes the folder's files, if there are any.
func (w *Weights) Close() {
	if w.From != nil {
		_ = w.From.Close() // only read
	}
	if w.Adapter != nil {
		_ = w.Adapter.Close() // likewise
	}
}

// Fill returns initial master parameters for zero.Trainer.Fill.
func (w *Weights) Fill(p zero.Part, dst []float32) error {
	if of := p.Param.Codes; of != nil {
		words, err := w.coder.get(of, func(at shard.Range, x []float32) error {
			return w.Fill(zero.Part{Param: *of, Kind: zero.Master, At: at}, x)
		})
		if err == nil {
			copy(dst, words[p.At.Lo:p.At.Hi])
		}
		return err
	}
	if w.Adapter != nil && w.Adapter.LoRA.Trains(p.Param.Name) {
		return w.Adapter.Fill(p, dst)
	}
	read := w.Read
	if w.From != nil {
		read = w.From.read
	}
	if read == nil || nn.IsAdapter(p.Param.Name) {
		nn.Fill(w.Seed, p.Param, p.At, dst)
		return nil
	}
	for tensor, local := range p.Param.Runs(p.At) {
		if err := read(p.Param, tensor, dst[local.Lo-p.At.Lo:local.Hi-p.At.Lo]); err != nil {
			return err
		}
	}
	return nil
}

// Check checks the values of a folder's parameters before they are used and returns their
// digest, or "" without a folder.
func (w *Weights) Check(ctx context.Context, m Model) (digest string, err error) {
	if w.From == nil {
		return "", nil
	}
	return w.From.Check(ctx, m)
}

// stored returns a parameter's name in a file: folders of a model without its head, such as
// Hugging Face's GPT-2, omit the leading "transformer." or "model.", and wrappers add a prefix.
func stored(r *safetensors.Reader, name string) string {
	for _, name := range append([]string{name}, unwrapped(name)...) {
		if _, ok := r.Tensor(name); ok {
			return name
		}
	}
	return strings.TrimPrefix(strings.TrimPrefix(name, "transformer."), "model.")
}

// Title names a model by its family and its number of parameters, and by how many of them process a token
// if not all do: "Mixtral 46.7B (12.9B active)".
func Title(m *nn.Model) string {
	all, active := 0.0, 0.0
	for _, p := range Parameters(m) {
		n := float64(p.Numel())
		if all += n; p.Expert {
			n *= m.Active
		}
		active += n
	}
	title := m.Name + " " + show.Compact(all)
	if active < all {
		title += " (" + show.Compact(active) + " active)"
	}
	return title
}

// Parameters returns all parameters of a model, each once.
func Parameters(m *nn.Model) (params []shard.Param) {
	for _, u := range m.Units() {
		params = append(params, u.Params...)
	}
	return params
}
