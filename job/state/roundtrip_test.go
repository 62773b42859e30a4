package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"zeroth/checkpoint"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/optim"
	"zeroth/shard"
	"zeroth/zero"
)

// saves opens the ranks of a job that saves checkpoints, with drawn parameters, and their savers.
func saves(t *testing.T, sets ...string) (*setup.Job, []*setup.Rank, []*Saver) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "job.yaml")
	text := fmt.Sprintf("data: {text: [%q], validation: 0}\nmodel: {layers: 2, heads: 2, width: 16, context: 16}\n"+
		"parallel: {ranks: 2}\ntrain: {micro_batch: 1}\ncheckpoint: {every: 1, dir: %q}\n", file, filepath.Join(dir, "ckpt"))
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := spec.Load(file, sets)
	if err != nil {
		t.Fatal(err)
	}
	j := setup.InWorld(c, setup.Alone{}, setup.Hooks{})
	ranks, err := setup.Open(j)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { setup.CloseAll(ranks) })
	w := &hf.Weights{Seed: 1}
	if err := setup.Together(ranks, func(r *setup.Rank) error { return r.Trainer.Fill(zero.Master, w.Fill) }); err != nil {
		t.Fatal(err)
	}
	savers, err := OpenSavers(j, ranks)
	if err != nil {
		t.Fatal(err)
	}
	return j, ranks, savers
}

// progress returns what a checkpoint of a job after some steps says.
func progress(j *setup.Job, steps int) Progress {
	return Progress{Step: steps, Updates: steps, Samples: int64(2 * steps), Tokens: int64(32 * steps), Context: j.Model.Context, Seed: j.Train.Seed, Data: "none", Scale: optim.LossScale{Scale: 1},
		Model: j.ModelJSON(), Config: string(j.YAML()), Version: Version()}
}

// save saves with all ranks and waits for the end.
func save(t *testing.T, ranks []*setup.Rank, savers []*Saver, p Progress) {
	t.Helper()
	err := setup.Together(ranks, func(r *setup.Rank) error {
		s := savers[slices.Index(ranks, r)]
		if err := s.Save(p, nil); err != nil {
			return err
		}
		return errors.Join(s.End(true).Err, s.Tidy())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// contents returns all elements of a checkpoint's tensors of floats, by name and kind.
func contents(t *testing.T, ck *checkpoint.Checkpoint) map[string][]float32 {
	t.Helper()
	all := map[string][]float32{}
	for _, x := range ck.Tensors {
		if !x.DType.Float() {
			continue
		}
		into := make([]float32, x.Numel())
		if err := ck.ReadF32(x.Name, x.Kind, shard.Range{Hi: len(into)}, into, 1); err != nil {
			t.Fatal(err)
		}
		all[x.Name+" "+x.Kind] = into
	}
	return all
}

// TestSavedIsTheState checks that checkpoints of ranks, saved while they wait and in the background, have
// exactly the tensors of the job with the elements that the ranks were given, and that their exported
// model, imported again, has the same parameters.
func TestSavedIsTheState(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.stage=0"}, {"zero.stage=3", "checkpoint.async=true"}, {"zero.stage=2", "checkpoint.async=true", "model.family=llama"},
		{"zero.stage=3", "checkpoint.compress=always", "optimizer.type=muon"},
	} {
		j, ranks, savers := saves(t, sets...)
		p := progress(j, 3)
		save(t, ranks, savers, p)
		ck, err := OpenCheckpoint(j.Checkpoint.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadProgress(ck); err != nil || got.GoesOnFrom(ck) != nil || got.Step != 3 || got.Samples != 6 {
			t.Errorf("%v: step %d, %d samples (%v, %v)", sets, got.Step, got.Samples, err, got.GoesOnFrom(ck))
		}
		if want := Tensors(j.Job); !sameTensors(ck.Tensors, want) {
			t.Errorf("%v: tensors %v, want %v", sets, ck.Tensors, want)
		}
		got, w := contents(t, ck), &hf.Weights{Seed: 1}
		for _, q := range spec.Parameters(j.Job) {
			want := make([]float32, q.Numel())
			if err := w.Fill(zero.Part{Param: q, Kind: zero.Master, At: shard.Range{Hi: len(want)}}, want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got[q.Name+" "+zero.Master], want) {
				t.Errorf("%v: %s differs", sets, q.Name)
			}
		}
		model, root := filepath.Join(t.TempDir(), "model"), t.TempDir()
		if _, err := ExportModel(context.Background(), ck, model, checkpoint.Export{}); err != nil {
			t.Fatal(err)
		}
		f, err := OpenModelFolder(model)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Import(context.Background(), root, checkpoint.Options{}, nil); err != nil {
			t.Fatal(err)
		}
		back, err := OpenCheckpoint(root)
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range contents(t, back) {
			if !slices.Equal(x, got[name]) {
				t.Errorf("%v: %s differs after export and import", sets, name)
			}
		}
		if err := errors.Join(f.Close(), ck.Close(), back.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestFrozenIsSavedOnce checks that the second checkpoint of a job with adapters names the base folder of
// the first, and that a saver that goes on from it writes no other.
func TestFrozenIsSavedOnce(t *testing.T) {
	j, ranks, savers := saves(t, "train.lora.rank=2", "model.family=llama", "zero.stage=1")
	p := progress(j, 1)
	for p.Step = 1; p.Step <= 2; p.Step++ {
		save(t, ranks, savers, p)
	}
	ck, err := OpenCheckpoint(j.Checkpoint.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	if ck.Base == nil || filepath.Base(ck.Base.Path) != savers[0].base {
		t.Fatalf("a checkpoint with the base %v, saved with %q", ck.Base, savers[0].base)
	}
	savers[0].base = ""
	if err := savers[0].GoesOnFrom(ck); err != nil || savers[0].base != filepath.Base(ck.Base.Path) {
		t.Errorf("goes on with the base folder %q (%v)", savers[0].base, err)
	}
	got, err := ReadProgress(ck)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ModelOf(ck, got)
	if err != nil {
		t.Fatal(err)
	}
	adapters, err := AdaptersOf(ck, got, *m)
	if err != nil || adapters == nil {
		t.Errorf("%v", err)
	}
}
