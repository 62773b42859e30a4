package generate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/state"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Source is the origin of a model: a Hugging Face folder or a checkpoint.
type Source struct {
	Model    hf.Model
	Folder   string                 // with config.json and the tokenizer; a temporary folder for a checkpoint
	From     *checkpoint.Checkpoint // nil: the parameters are in Folder
	adapters *hf.Adapters           // of from
	own      *hf.Weights            // of a program's network, else nil
}

// Open opens the model at a path: a checkpoint, a Hugging Face folder or a run. For a run it opens the checkpoint
// of the step or, if that is empty, the final model, or the newest checkpoint if that is newer or there is no model.
// note receives which checkpoint it is.
func Open(run, step string, note func(string)) (*Source, error) {
	ck, folder, err := find(run, step)
	if err != nil {
		return nil, err
	}
	if ck != "" {
		return openCheckpoint(ck, note, (*Source).unpack)
	}
	m, err := hf.ReadModelConfig(folder)
	if info, wrong := os.Stat(run); err != nil && wrong == nil && !info.IsDir() {
		return nil, input.BadInput(fmt.Errorf("--run %s is a file; did you mean --run %s?", run, filepath.Dir(run)))
	}
	if err != nil && input.Exists(filepath.Join(folder, "config.json")) {
		return nil, input.BadInput(fmt.Errorf("--run %s: %w", run, err))
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--run %s: %w; want the folder of a run that has a model or a checkpoint, a checkpoint, or a Hugging Face folder", run, err))
	}
	return &Source{Model: m, Folder: folder}, nil
}

// OpenOwn is like Open for the network of a program, which no config.json describes.
func OpenOwn(run, step string, net *nn.Model, note func(string)) (*Source, error) {
	ck, folder, err := find(run, step)
	if err != nil {
		return nil, err
	}
	if ck != "" {
		return openCheckpoint(ck, note, func(s *Source, _ state.Progress) error {
			s.own = &hf.Weights{Read: func(p shard.Param, at shard.Range, into []float32) error {
				return s.From.ReadF32(p.Name, zero.Master, at, into, 0)
			}}
			return holds(ck, net, func(name string) ([]int, bool) {
				t, ok := s.From.Tensor(name, zero.Master)
				return t.Shape, ok
			})
		})
	}
	r, err := safetensors.Open(folder)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--run %s: %w; want the folder of a run that has a model or a checkpoint, or a checkpoint", run, err))
	}
	err = holds(folder, net, func(name string) ([]int, bool) {
		t, ok := r.Tensor(name)
		return t.Shape, ok
	})
	if err != nil {
		_ = r.Close() // only read
		return nil, err
	}
	names := map[string]string{}
	for _, p := range hf.Parameters(net) {
		names[p.Name] = p.Name
	}
	return &Source{Folder: folder, own: &hf.Weights{From: &hf.ModelTensors{Reader: r, Names: names}}}, nil
}

// holds returns an error unless a place has all parameters of a network.
func holds(where string, net *nn.Model, shape func(name string) ([]int, bool)) error {
	for _, p := range hf.Parameters(net) {
		if has, ok := shape(p.Name); !ok || !slices.Equal(has, p.Shape) {
			return input.BadInput(fmt.Errorf("%s: it has %s with the shape %v; want %v, as in the program's network", where, p.Name, has, p.Shape))
		}
	}
	return nil
}

// find returns where a model is: in a checkpoint, or in a folder with the final parameters.
func find(run, step string) (ck, folder string, err error) {
	if step != "" {
		ck, err = state.At(run, step)
		return ck, "", err
	}
	folder = run
	if m := filepath.Join(folder, state.ModelDir); input.Exists(m) {
		folder = m
	}
	if e, err := state.FindCheckpoint(run); err == nil && newer(e, folder) {
		return run, "", nil
	}
	return "", folder, nil
}

// newer reports whether a checkpoint is newer than the parameters in a folder, or the folder has
// none. The time of a file is some milliseconds behind on Linux, and in whole seconds on some disks.
func newer(e checkpoint.Entry, folder string) bool {
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err == nil {
			at, behind := info.ModTime(), 20*time.Millisecond
			if at.Nanosecond() == 0 {
				behind = 2 * time.Second
			}
			return e.Created.After(at.Add(behind))
		}
	}
	return !input.Exists(filepath.Join(folder, "config.json"))
}

// openCheckpoint opens the newest checkpoint at a path, prepares it and notes which one it is. It retries if a
// training run deletes the checkpoint in favour of a newer one.
func openCheckpoint(run string, note func(string), prepare func(*Source, state.Progress) error) (*Source, error) {
	ck, err := state.OpenCheckpoint(run)
	for tries := 0; errors.Is(err, checkpoint.ErrGone) && tries < 100; tries++ {
		ck, err = state.OpenCheckpoint(run)
	}
	if err != nil {
		return nil, err
	}
	s := &Source{From: ck}
	p, err := state.ReadProgress(ck)
	if err == nil {
		err = prepare(s, p)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	note(fmt.Sprintf("from the checkpoint %s, step %d", ck.Path, ck.Step))
	return s, nil
}

// unpack writes everything but the checkpoint's parameters to a temporary folder.
func (s *Source) unpack(p state.Progress) error {
	m, err := state.ModelOf(s.From, p)
	if err != nil {
		return err
	}
	if m == nil {
		return input.BadInput(fmt.Errorf("%s does not describe its model", s.From.Path))
	}
	s.Model = *m
	if s.adapters, err = state.AdaptersOf(s.From, p, *m); err != nil {
		return err
	}
	kept, err := hf.CarriedBy(s.From, p.Model)
	if err != nil {
		return err
	}
	if s.Folder, err = input.TempDir("zeroth-sample-"); err != nil {
		return err
	}
	return kept.Write(s.Folder, hf.ExportedConfig(p.Model, checkpoint.F32))
}

// Weights returns the model's parameters. The caller must close them.
func (s *Source) Weights(m hf.Model) (*hf.Weights, error) {
	if s.own != nil {
		return s.own, nil
	}
	if s.From != nil {
		decoded := hf.DecodedOf(s.From, m)
		return &hf.Weights{Read: func(p shard.Param, at shard.Range, into []float32) error {
			err := decoded.ReadF32(p.Name, zero.Master, at, into, 0)
			whole := shard.Param{Name: p.Name, Shape: p.Tensor()}
			copy(into, s.adapters.Merge(zero.Part{Param: whole, Kind: zero.Master, At: at}, into))
			return err
		}}, nil
	}
	r, err := hf.OpenModel(s.Folder, m)
	if err != nil {
		return nil, err
	}
	if err := r.SameHead(m); err != nil {
		return nil, cmp.Or(err, r.Close())
	}
	return &hf.Weights{From: r}, nil
}

// Apart reports whether the parameters are not those of a Hugging Face folder.
func (s *Source) Apart() bool { return s != nil && (s.From != nil || s.own != nil) }

// Close closes the checkpoint and removes the temporary folder.
func (s *Source) Close() {
	if s.From != nil {
		_ = s.From.Close() // only read from
		if s.Folder != "" {
			_ = input.RemoveTemp(s.Folder)
		}
	}
}
