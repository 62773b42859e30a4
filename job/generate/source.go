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

// source is where a model comes from: a Hugging Face folder, or a checkpoint.
type source struct {
	model    hf.Model
	folder   string                 // with config.json and the tokenizer; of a checkpoint, made for this
	from     *checkpoint.Checkpoint // nil: the parameters are in the folder
	adapters *hf.Adapters           // of from
}

// openSource finds the model that a path means: that of a checkpoint, of a Hugging
// Face folder, or of a run: what it wrote at its end, or while there is no such
// thing, or a newer one, its newest checkpoint.
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

// newer says whether a checkpoint came after the parameters in a folder, if it has
// any.
func newer(e checkpoint.Entry, folder string) bool {
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return e.Created.After(info.ModTime())
		}
	}
	return !input.Exists(filepath.Join(folder, "config.json"))
}

// openCheckpoint opens the newest checkpoint that a path means, and says which it
// is. A run that trains may delete it meanwhile, when there is a newer one.
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

// unpack makes a folder of what a checkpoint has beside parameters.
func (s *source) unpack(p state.Progress) error {
	m, err := state.ModelOf(s.from, p)
	if err != nil {
		return err
	}
	if m == nil {
		return input.BadInput(fmt.Errorf("%s does not say which model it is of", s.from.Path))
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

// parameters give fill, which puts a model's parameters where they are wanted, and
// must be closed.
func (s *source) parameters(m hf.Model) (fill func(zero.Part, []float32) error, end func() error, err error) {
	if s.from != nil {
		return func(p zero.Part, into []float32) error {
			err := s.from.ReadF32(p.Param.Name, zero.Master, shard.Range{Lo: p.At.Lo, Hi: p.At.Hi}, into, 0)
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

// close gives back what was opened and made.
func (s *source) close() {
	if s.from != nil {
		_ = s.from.Close() // only read from
		if s.folder != "" {
			_ = input.RemoveTemp(s.folder)
		}
	}
}
