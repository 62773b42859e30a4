package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"zeroth/checkpoint"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// ExportModel writes the parameters of a checkpoint as a Hugging Face folder:
// safetensors and config.json. After an error, ctx's too, it has neither.
func ExportModel(ctx context.Context, ck *checkpoint.Checkpoint, folder string, e checkpoint.Export) error {
	p, err := ReadProgress(ck)
	if err != nil {
		return err
	}
	if len(p.Model) == 0 {
		return input.BadInput(fmt.Errorf("%s does not say which model it is of: state.json has no model, from which to write config.json", ck.Path))
	}
	if _, err := hf.Describes(p.Model, ck); err != nil {
		return input.BadInput(fmt.Errorf("%s: state.json's model is not that of its parameters: %w", ck.Path, err))
	}
	if err := unadapted(ck); err != nil {
		return err
	}
	kept, err := hf.CarriedBy(ck, p.Model)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	err = kept.Write(folder, hf.ExportedConfig(p.Model, e.DType))
	if err == nil {
		err = ck.Export(ctx, folder, e)
	}
	if err != nil {
		kept.Remove(folder)
	}
	return err
}

// unadapted refuses a checkpoint whose model is not its parameters alone.
func unadapted(ck *checkpoint.Checkpoint) error {
	if !hf.Adapted(ck) {
		return nil
	}
	return input.BadInput(fmt.Errorf("%s has adapters (train.lora) beside its model: what they make of it a run writes at its end, to model, merged, and to adapter; train --resume goes on to there", ck.Path))
}

// ModelFolder is a Hugging Face folder, open to be imported.
type ModelFolder struct {
	Bytes int64    // of the parameters as float32
	Unfit []string // tensors that are no parameters of the model, such as the output layer if it is the embedding
	Notes []string // what to know about its config.json

	model   hf.Model
	Carried hf.Carried
	src     *hf.ModelTensors
}

// OpenModelFolder opens a folder and checks that it has the whole model that
// its config.json describes.
func OpenModelFolder(folder string) (*ModelFolder, error) {
	m, kept, err := hf.ReadConfig(folder)
	if err != nil {
		return nil, err
	}
	src, err := hf.OpenModel(folder, m)
	if err != nil {
		return nil, err
	}
	if err := kept.ReadFiles(folder); err != nil {
		return nil, errors.Join(input.BadInput(err), src.Close())
	}
	f := &ModelFolder{Unfit: src.Spare, Notes: kept.Notes, model: m, Carried: kept, src: src}
	for _, p := range hf.Parameters(m.Network()) {
		f.Bytes += 4 * int64(p.Numel())
	}
	return f, nil
}

// Close closes the files.
func (f *ModelFolder) Close() error { return f.src.Close() }

// Import makes a checkpoint of step 0 in a folder of checkpoints, without
// optimizer state, and returns its folder. A job of that model which resumes
// from it begins its training there. After an error there is no checkpoint.
func (f *ModelFolder) Import(ctx context.Context, root string, progressed func(add int64)) (string, error) {
	if err := f.src.Check(ctx, f.model); err != nil {
		return "", err
	}
	names := map[string]string{} // of parameters, by their names in the folder
	for to, from := range f.src.Names {
		names[from] = to
	}
	im := checkpoint.Import{
		State:    hf.MustJSON(Progress{Model: f.Carried.Config, Version: Version()}),
		Files:    f.Carried.Files,
		Name:     func(name string) (string, bool) { to, ok := names[name]; return to, ok },
		Progress: progressed,
	}
	return im.Import(ctx, f.src.Reader, root)
}

// ModelOf is the model that a checkpoint says it is of, which its tensors are;
// nil if it does not say.
func ModelOf(ck *checkpoint.Checkpoint, p Progress) (*hf.Model, error) {
	if len(p.Model) == 0 {
		return nil, nil
	}
	m, err := hf.Describes(p.Model, ck)
	if err != nil {
		return nil, fmt.Errorf("%s: state.json's model is not that of its parameters: %w", ck.Path, err)
	}
	return &m, nil
}

// AdaptersOf are the adapters of a checkpoint of a model of the family, which may have
// none.
func AdaptersOf(ck *checkpoint.Checkpoint, p Progress, family string) (*hf.Adapters, error) {
	a := &hf.Adapters{Family: family}
	if !hf.Adapted(ck) {
		return a, nil
	}
	if c := config.SettingsOf(p.Config); c != nil {
		a.LoRA.Rank, a.LoRA.Alpha = c.Train.LoRA.Rank, c.Train.LoRA.Alpha
	}
	for _, t := range ck.Tensors {
		if t.Kind != checkpoint.Master || !nn.IsAdapter(t.Name) {
			continue
		}
		part := zero.Part{Param: shard.Param{Name: t.Name, Shape: t.Shape}, Kind: zero.Master}
		part.At.Hi = part.Param.Numel()
		at := 0 // of the rank in the shape
		if strings.HasSuffix(t.Name, ".lora_B.weight") {
			at = 1
		}
		if len(t.Shape) != 2 || a.LoRA.Rank < 1 || a.LoRA.Alpha <= 0 || t.Shape[at] != a.LoRA.Rank {
			return nil, input.BadInput(fmt.Errorf("%s: %s has shape %v, its job says train.lora of rank %d and alpha %v", ck.Path, show.Printable(t.Name), t.Shape, a.LoRA.Rank, a.LoRA.Alpha))
		}
		values := make([]float32, part.At.Hi)
		if err := ck.ReadF32(t.Name, zero.Master, part.At, values, 0); err != nil {
			return nil, err
		}
		a.Put(part, values)
	}
	return a, nil
}

// ModelDir is where in a run folder the final parameters are, in Hugging
// Face's files.
const ModelDir = "model"

// AdapterDir is where in a run folder the final adapters are, in PEFT's files.
const AdapterDir = "adapter"
