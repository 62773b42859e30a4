package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
)

// ExportModel writes the parameters of a checkpoint as a Hugging Face folder:
// safetensors and config.json. After an error, ctx's too, it has neither.
func ExportModel(ctx context.Context, ck *checkpoint.Checkpoint, folder string, e checkpoint.Export) error {
	p, err := readProgress(ck)
	if err != nil {
		return err
	}
	if len(p.Model) == 0 {
		return BadInput(fmt.Errorf("%s does not say which model it is of: state.json has no model, from which to write config.json", ck.Path))
	}
	if _, err := describes(p.Model, ck); err != nil {
		return BadInput(fmt.Errorf("%s: state.json's model is not that of its parameters: %w", ck.Path, err))
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	config := filepath.Join(folder, "config.json")
	if err := vfs.WriteFile(vfs.OS{}, config, withDType(p.Model, e.DType)); err != nil {
		return err
	}
	if err := ck.Export(ctx, folder, e); err != nil {
		return errors.Join(err, os.Remove(config))
	}
	return nil
}

// torchNames are PyTorch's names of element types.
var torchNames = map[checkpoint.DType]string{checkpoint.F32: "float32", checkpoint.BF16: "bfloat16", checkpoint.F16: "float16"}

// withDType is a config.json of parameters in another element type, which it
// calls torch_dtype or, newer, dtype. Without a need nothing is changed; with
// one, keys are sorted as transformers sorts them.
func withDType(config []byte, t checkpoint.DType) []byte {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		panic(fmt.Sprintf("job: config.json: %v", err)) // it is part of a JSON file that was read
	}
	key, name := "torch_dtype", `"`+torchNames[t]+`"`
	if _, ok := all["dtype"]; ok {
		key = "dtype"
	}
	if string(all[key]) != name {
		all[key] = json.RawMessage(name)
		config = mustJSON(all)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(config), "", "  "); err != nil {
		panic(fmt.Sprintf("job: config.json: %v", err))
	}
	return append(out.Bytes(), '\n')
}

func mustJSON(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("job: JSON of %T: %v", v, err)) // ours always encode
	}
	return b
}

// ModelFolder is a Hugging Face folder, open to be imported.
type ModelFolder struct {
	Bytes int64    // of the parameters as float32
	Unfit []string // tensors that are no parameters of the model, such as the output layer if it is the embedding

	config []byte // config.json
	src    *safetensors.Reader
	names  map[string]string // of parameters, by their names in the folder
}

// OpenModelFolder opens a folder and checks that it has the whole model that
// its config.json describes.
func OpenModelFolder(folder string) (*ModelFolder, error) {
	m, err := ReadModelConfig(folder)
	if err != nil {
		return nil, err
	}
	f := &ModelFolder{names: map[string]string{}}
	if f.config, err = os.ReadFile(filepath.Join(folder, "config.json")); err != nil {
		return nil, err
	}
	if f.src, err = openModel(folder, m.network()); err != nil {
		return nil, err
	}
	for _, p := range parameters(m.network()) {
		f.names[stored(f.src, p.Name)] = p.Name
		f.Bytes += 4 * int64(p.Numel())
	}
	for _, t := range f.src.Tensors() {
		switch {
		case f.names[t.Name] == "":
			f.Unfit = append(f.Unfit, t.Name)
		case !t.DType.Float():
			err := fmt.Errorf("%s: %s is %s; want F32, BF16 or F16, as a model has before it is quantised", t.File, t.Name, t.DType)
			return nil, errors.Join(BadInput(err), f.Close())
		}
	}
	return f, nil
}

// Close closes the files.
func (f *ModelFolder) Close() error { return f.src.Close() }

// Import makes a checkpoint of step 0 in a folder of checkpoints, without
// optimizer state, and returns its folder. A job of that model which resumes
// from it begins its training there. After an error there is no checkpoint.
func (f *ModelFolder) Import(ctx context.Context, root string, progressed func(add int64)) (string, error) {
	im := checkpoint.Import{
		State:    mustJSON(progress{Model: f.config, Version: Version()}),
		Name:     func(name string) (string, bool) { to, ok := f.names[name]; return to, ok },
		Progress: progressed,
	}
	return im.Import(ctx, f.src, root)
}
