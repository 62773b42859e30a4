package job

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"zeroth/checkpoint/safetensors"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// modelFolder is where in a run folder the final parameters are, in Hugging
// Face's files.
const modelFolder = "model"

// weights is where a job's initial parameters come from: a folder of
// safetensors, or, with none, their initial distributions.
type weights struct {
	seed uint64
	from *modelTensors
}

func (w *weights) close() {
	if w.from != nil {
		_ = w.from.Close() // only read from
	}
}

// fill is a source of initial master parameters for zero.Trainer.Fill.
func (w *weights) fill(p zero.Part, dst []float32) error {
	if w.from == nil {
		nn.Fill(w.seed, p.Param, p.At, dst)
		return nil
	}
	return w.from.ReadF32(w.from.names[p.Param.Name], p.At.Lo, p.At.Hi, dst)
}

// check reads the values of a folder's parameters before anything is begun with
// them.
func (w *weights) check(ctx context.Context, m Model) error {
	if w.from == nil {
		return nil
	}
	return w.from.check(ctx, m)
}

// stored is a parameter's name in a file: folders of a model without its head,
// as Hugging Face's own of GPT-2, leave out the leading "transformer." or "model.".
func stored(r *safetensors.Reader, name string) string {
	if _, ok := r.Tensor(name); !ok {
		return strings.TrimPrefix(strings.TrimPrefix(name, "transformer."), "model.")
	}
	return name
}

// parameters are all parameters of a model, each once.
func parameters(m *nn.Model) (params []shard.Param) {
	for _, u := range m.Units() {
		params = append(params, u.Params...)
	}
	return params
}

// export writes the parameters as a Hugging Face folder, every rank its share.
// After an error there is no model in it, or the one of before.
func (c *Config) export(ranks []*Rank, folder string) (err error) {
	var specs []safetensors.Spec
	for _, p := range parameters(c.Model.network()) {
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
		if !exists(filepath.Join(folder, "model.safetensors")) { // a folder with half a model would say more than it holds
			c.carried.remove(folder)
			for _, folder := range made {
				_ = os.Remove(folder) // fails if it is not empty
			}
		}
	}()
	if err := c.carried.write(folder, c.modelJSON()); err != nil {
		return err
	}
	w, err := safetensors.Create(filepath.Join(folder, "model.safetensors"), specs, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	err = Together(ranks, func(r *Rank) error {
		return r.Trainer.Each(zero.Master, zero.Room(), func(p zero.Part, src []float32) error {
			return w.WriteF32(p.Param.Name, p.At.Lo, src)
		})
	})
	if err != nil {
		_ = w.Abort() // err is the one to report
		return err
	}
	return w.Close()
}
