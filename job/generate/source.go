package generate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"zeroth/checkpoint"
	"zeroth/input"
	"zeroth/job/hf"
	"zeroth/job/state"
	"zeroth/shard"
	"zeroth/zero"
)

// source is the origin of a model: a Hugging Face folder or a checkpoint.
type source struct {
	model    hf.Model
	folder   string                 // with config.json and the tokenizer; a temporary folder for a checkpoint
	from     *checkpoint.Checkpoint // nil: the parameters are in folder
	adapters *hf.Adapters           // of from
}

// openSource opens the model at a path: a checkpoint, a Hugging Face folder or a run. For a run it
// opens the final model, or the newest checkpoint if that is newer or there is no model.
func openSource(o Options) (*source, error) {
	folder := o.Run
	if m := filepath.Join(folder, state.ModelDir); input.Exists(m) {
		folder = m
	}
	if e, err := state.FindCheckpoint(o.Run); err == nil && newer(e, folder) {
		return openCheckpoint(o)
	}
	m, err := hf.ReadModelConfig(folder)
	if info, wrong := os.Stat(o.Run); err != nil && wrong == nil && !info.IsDir() {
		return nil, input.BadInput(fmt.Errorf("--run %s is a file; did you mean --run %s?", o.Run, filepath.Dir(o.Run)))
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--run %s: %w; want the folder of a run that has a model or a checkpoint, a checkpoint, or a Hugging Face folder", o.Run, err))
	}
	return &source{model: m, folder: folder}, nil
}

// newer reports whether a checkpoint is newer than the parameters in a folder, or the folder has
// none.
func newer(e checkpoint.Entry, folder string) bool {
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return e.Created.After(info.ModTime())
		}
	}
	return !input.Exists(filepath.Join(folder, "config.json"))
}

// openCheckpoint opens the newest checkpoint at a path and notes which one it is. It retries if a
// training run deletes the checkpoint in favour of a newer one.
func openCheckpoint(o Options) (*source, error) {
	ck, err := state.OpenCheckpoint(o.Run)
	for tries := 0; errors.Is(err, checkpoint.ErrGone) && tries < 100; tries++ {
		ck, err = state.OpenCheckpoint(o.Run)
	}
	if err != nil {
		return nil, err
	}
	s := &source{from: ck}
	p, err := state.ReadProgress(ck)
	if err == nil {
		err = s.unpack(p)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	o.Note(fmt.Sprintf("from the checkpoint %s, step %d", ck.Path, ck.Step))
	return s, nil
}

// unpack writes everything but the checkpoint's parameters to a temporary folder.
func (s *source) unpack(p state.Progress) error {
	m, err := state.ModelOf(s.from, p)
	if err != nil {
		return err
	}
	if m == nil {
		return input.BadInput(fmt.Errorf("%s does not describe its model", s.from.Path))
	}
	s.model = *m
	if s.adapters, err = state.AdaptersOf(s.from, p, *m); err != nil {
		return err
	}
	kept, err := hf.CarriedBy(s.from, p.Model)
	if err != nil {
		return err
	}
	if s.folder, err = input.TempDir("zeroth-sample-"); err != nil {
		return err
	}
	return kept.Write(s.folder, hf.ExportedConfig(p.Model, checkpoint.F32))
}

// parameters returns a function that reads parts of the model's parameters, and a function to call
// at the end.
func (s *source) parameters(m hf.Model) (fill func(zero.Part, []float32) error, end func() error, err error) {
	if s.from != nil {
		decoded := hf.DecodedOf(s.from, m)
		return func(p zero.Part, into []float32) error {
			err := decoded.ReadF32(p.Param.Name, zero.Master, shard.Range{Lo: p.At.Lo, Hi: p.At.Hi}, into, 0)
			copy(into, s.adapters.Merge(p, into))
			return err
		}, func() error { return nil }, nil
	}
	r, err := hf.OpenModel(s.folder, m)
	if err != nil {
		return nil, nil, err
	}
	if err := r.SameHead(m); err != nil {
		return nil, nil, cmp.Or(err, r.Close())
	}
	return (&hf.Weights{From: r}).Fill, r.Close, nil
}

// close closes the checkpoint and removes the temporary folder.
func (s *source) close() {
	if s.from != nil {
		_ = s.from.Close() // only read from
		if s.folder != "" {
			_ = input.RemoveTemp(s.folder)
		}
	}
}
