package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// ExportModel writes the parameters of a checkpoint as a Hugging Face folder: safetensors and
// config.json. Adapters are merged. After an error, including ctx's, it contains neither. note is that
// of hf.Carried.Aligned.
func ExportModel(ctx context.Context, ck *checkpoint.Checkpoint, folder string, e checkpoint.Export) (note string, err error) {
	p, m, adapters, err := described(ck)
	if err != nil {
		return "", err
	}
	e.Name = func(name string) (string, bool) { return name, !nn.IsAdapter(name) }
	e.Change = func(t checkpoint.Tensor, r shard.Range, x []float32) []float32 {
		return adapters.Merge(zero.Part{Param: shard.Param{Name: t.Name, Shape: t.Shape}, Kind: zero.Master, At: r}, x)
	}
	kept, note, err := carriedBy(ck, p, e.DType)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return "", err
	}
	err = kept.Write(folder, kept.Config)
	if err == nil {
		err = e.Write(ctx, hf.DecodedOf(ck, m), ck.Path, folder)
	}
	if err != nil {
		kept.Remove(folder)
	}
	return note, err
}

// carriedBy returns the files that a checkpoint carries for an exported model.
func carriedBy(ck *checkpoint.Checkpoint, p Progress, t checkpoint.DType) (kept hf.Carried, note string, err error) {
	config := hf.ExportedConfig(p.Model, t)
	if kept, err = hf.CarriedBy(ck, config); err != nil || !p.Trained() {
		return kept, "", err
	}
	return kept.Aligned(config, -1)
}

// ExportAdapter writes only the adapters of a checkpoint, in PEFT's format.
func ExportAdapter(ck *checkpoint.Checkpoint, folder string) error {
	p, _, adapters, err := described(ck)
	if err != nil {
		return err
	}
	if adapters.LoRA.Rank == 0 {
		return input.BadInput(fmt.Errorf("%s has no adapters: its job has no train.lora; omit --adapter to write the model", ck.Path))
	}
	return adapters.Write(folder, spec.SettingsOf(p.Config).Model.From)
}

// Adapts returns a function that reports whether a parameter is saved with a checkpoint's adapters.
func Adapts(ck *checkpoint.Checkpoint) (func(name string) bool, error) {
	p, err := ReadProgress(ck)
	if err != nil {
		return nil, err
	}
	if c := spec.SettingsOf(p.Config); c != nil {
		return c.Train.LoRA.Trains, nil
	}
	return nn.IsAdapter, nil
}

// described returns the progress and the model of a checkpoint, checked against its tensors, and
// its adapters.
func described(ck *checkpoint.Checkpoint) (p Progress, model hf.Model, a *hf.Adapters, err error) {
	if p, err = ReadProgress(ck); err != nil {
		return p, model, nil, err
	}
	m, err := ModelOf(ck, p)
	if err == nil && m == nil {
		err = fmt.Errorf("%s does not describe its model: state.json has no model, from which to write config.json", ck.Path)
	}
	if err != nil {
		return p, model, nil, input.BadInput(err)
	}
	a, err = AdaptersOf(ck, p, *m)
	return p, *m, a, err
}

// ModelFolder is a Hugging Face folder that is open to be imported.
type ModelFolder struct {
	Bytes int64    // of the parameters as float32
	Unfit []string // tensors that are no parameters of the model, such as the output layer if it is the embedding
	Notes []string // what to know about its config.json

	model   hf.Model
	Carried hf.Carried
	src     *hf.ModelTensors
}

// OpenModelFolder opens a folder and checks that it contains the whole model that its
// config.json describes.
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
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		f.Bytes += 4 * int64(p.Numel())
	}
	return f, nil
}

// Close closes the files.
func (f *ModelFolder) Close() error { return f.src.Close() }

// Import writes a checkpoint of step 0 without optimizer state to a folder of checkpoints and
// returns its path. A job of that model that resumes from it starts training there. After an
// error there is no checkpoint.
func (f *ModelFolder) Import(ctx context.Context, root string, o checkpoint.Options, progressed func(add int64)) (string, error) {
	base, err := f.src.Check(ctx, f.model)
	if err != nil {
		return "", err
	}
	names := map[string]string{} // of parameters, by their names in the folder
	for to, from := range f.src.Names {
		names[from] = to
	}
	im := checkpoint.Import{
		State:    Progress{Model: f.Carried.Config, Base: base, Version: Version()}.JSON(),
		Files:    f.Carried.Files,
		Name:     func(name string) (string, bool) { to, ok := names[name]; return to, ok },
		Options:  o,
		Progress: progressed,
	}
	return im.Import(ctx, checkpoint.Parameters(f.src.Reader), root)
}

// ModelOf returns the model that a checkpoint's state describes, checked against its tensors,
// or nil if it describes none.
func ModelOf(ck *checkpoint.Checkpoint, p Progress) (*hf.Model, error) {
	if len(p.Model) == 0 {
		return nil, nil
	}
	m, err := hf.Describes(p.Model, ck)
	if err != nil {
		return nil, fmt.Errorf("%s: the model in state.json does not match the parameters: %w", ck.Path, err)
	}
	return &m, nil
}

// AdaptersOf returns the adapters of a checkpoint of a model: exactly those that its job asks
// for, in their shapes. It may have none.
func AdaptersOf(ck *checkpoint.Checkpoint, p Progress, m hf.Model) (*hf.Adapters, error) {
	a := hf.NewAdapters(nn.LoRA{}, m)
	if !hf.Adapted(ck) {
		return a, nil
	}
	if c := spec.SettingsOf(p.Config); c != nil {
		a.LoRA = c.Train.LoRA.LoRA
	}
	want, err := adaptersOf(ck, m, a.LoRA)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: its adapters do not match its job, with train.lora.rank %d on %s: %w", ck.Path, a.LoRA.Rank, show.Printable(strings.Join(a.LoRA.Targets, ", ")), err))
	}
	for _, p := range want {
		part := zero.Part{Param: p, Kind: zero.Master, At: shard.Range{Hi: p.Numel()}}
		values := make([]float32, part.At.Hi)
		if err := ck.ReadF32(p.Name, zero.Master, part.At, values, 0); err != nil {
			return nil, err
		}
		if err := a.Put(part, values); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// adaptersOf returns the parameters of adapters that a checkpoint has in addition to a model.
func adaptersOf(ck *checkpoint.Checkpoint, m hf.Model, l nn.LoRA) (want []shard.Param, err error) {
	if l.Rank < 1 || !hf.Positive(l.Alpha) {
		return nil, fmt.Errorf("alpha is %v", l.Alpha)
	}
	for _, p := range hf.Parameters(m.Network(l)) {
		if l.Trains(p.Name) {
			want = append(want, p)
		}
	}
	for _, p := range want {
		t, ok := ck.Tensor(p.Name, checkpoint.Master)
		if !ok || !slices.Equal(t.Shape, p.Shape) || !t.DType.Float() {
			return nil, fmt.Errorf("%s has shape %v and type %s, not %v", p.Name, t.Shape, t.DType, p.Shape)
		}
	}
	matrices := 0
	for _, p := range want {
		if nn.IsAdapter(p.Name) {
			matrices++
		}
	}
	if n := hf.AdapterTensors(ck); n != matrices {
		return nil, fmt.Errorf("there are %d adapter tensors, not %d", n, matrices)
	}
	return want, nil
}

// ModelDir is the folder of the final parameters in a run folder, in Hugging Face format.
const ModelDir = "model"

// AdapterDir is the folder of the final adapters in a run folder, in PEFT's format.
const AdapterDir = "adapter"
