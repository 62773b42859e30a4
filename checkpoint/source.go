package checkpoint

import (
	"zeroth/checkpoint/safetensors"
	"zeroth/shard"
)

// Source provides named tensors: a checkpoint, a Hugging Face folder, or a checkpoint of another
// program.
type Source interface {
	// All returns all tensors.
	All() []Tensor
	// ReadF32 reads elements r of a flattened tensor, widened to float32, to into, which has their
	// length, with up to workers goroutines. It may be called from several goroutines.
	ReadF32(name, kind string, r shard.Range, into []float32, workers int) error
}

// All returns the checkpoint's tensors.
func (c *Checkpoint) All() []Tensor { return c.Tensors }

// Parameters returns a Source of parameters from safetensors.
func Parameters(r *safetensors.Reader) Source { return parameters{r} }

type parameters struct{ r *safetensors.Reader }

func (p parameters) All() []Tensor {
	var ts []Tensor
	for _, t := range p.r.Tensors() {
		ts = append(ts, Tensor{Name: t.Name, Kind: Master, DType: t.DType, Shape: t.Shape})
	}
	return ts
}

func (p parameters) ReadF32(name, _ string, r shard.Range, into []float32, _ int) error {
	return p.r.ReadF32(name, r.Lo, r.Hi, into)
}
