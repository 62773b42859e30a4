package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync/atomic"
	"testing"

	"zeroth/checkpoint"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// stopper calls stop at one of the events of a rank.
type stopper struct {
	at   int64
	seen atomic.Int64
	stop func(error)
}

func (s *stopper) Event(fsdp.Event) {
	if s.seen.Add(1) == s.at {
		s.stop(errEnough)
	}
}
func (*stopper) Arena(int, string, int) {}

var errEnough = errors.New("enough")

// TestStopAtAnyEvent stops runs at events of the last rank, within steps and evaluations, the last one
// included, and resumes them until they are done: steps, evaluations, the early stop and the model are those
// of a run that was not stopped, in the same run folder and, but for earlier lines, in a new one.
func TestStopAtAnyEvent(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	for _, mesh := range []string{"{ranks: 2}", "{ranks: 2, pipeline: 2}"} {
		sets := []string{"model.family=llama", "model.layers=2", "parallel=" + mesh, "train.steps=4", "train.accumulate=2", "train.eval_every=2", "train.eval_batches=6",
			"train.early_stop={metric: val_loss, patience: 9}", "checkpoint={every: 50, dir: ckpt, save_on_exit: true}"}
		run := func(out string, at int64) (s *stopper, h *heard, err error) {
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			s, h = &stopper{at: at, stop: stop}, &heard{}
			err = Run(ctx, spectest.MustLoad(t, sets...), Options{Out: out, Resume: "latest", Observer: h, Hooks: setup.Hooks{WrapTrainer: func(rank int, z *zero.Config) {
				if rank == 1 {
					z.Listener = s
				}
			}}})
			return s, h, err
		}
		clean(t)
		whole, want, err := run("whole", -1)
		if err != nil {
			t.Fatal(err)
		}
		wantModel, early := model(t, "whole"), progress(t).Early
		within := 0
		events := whole.seen.Load()
		for at := int64(1); at <= events; at += max(1, events/int64(nightly.Of(6, 400))) {
			clean(t)
			out := []string{"run", "elsewhere"}[at%2]
			_, first, err := run("run", at)
			if err == nil {
				continue // asked within the last step or batch
			}
			if !errors.Is(err, errEnough) {
				t.Fatal(err)
			}
			owed := progress(t).Owed
			if n := len(first.steps); owed && n%2 == 0 {
				within++
			}
			_, rest, err := run(out, -1)
			if err != nil {
				t.Fatal(err)
			}
			where := fmt.Sprintf("%s: stopped at event %d of %d after step %d (owed: %v), continued in %s", mesh, at, events, len(first.steps), owed, out)
			if evals := append(first.evals, rest.evals...); !reflect.DeepEqual(evals, want.evals) {
				t.Errorf("%s: evaluations %v, want %v", where, evals, want.evals)
			}
			if got := progress(t).Early; !reflect.DeepEqual(got, early) && len(rest.steps) > 0 {
				t.Errorf("%s: %+v, want %+v", where, got, early)
			}
			if model(t, out) != wantModel {
				t.Errorf("%s: another model", where)
			}
			if _, evals, err := report.ReadMetrics("run/metrics.jsonl"); out == "run" && (err != nil || !reflect.DeepEqual(evals, want.evals)) {
				t.Errorf("%s: evaluations in metrics.jsonl %v, want %v: %v", where, evals, want.evals, err)
			}
		}
		if within == 0 {
			t.Errorf("%s: no evaluation was interrupted", mesh)
		}
	}
}

// clean removes the folders of the runs before.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{"whole", "run", "elsewhere", "ckpt"} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
}

// model returns the parameters in a run folder.
func model(t *testing.T, out string) string {
	t.Helper()
	raw, err := os.ReadFile(out + "/model/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// progress returns the state of the newest checkpoint.
func progress(t *testing.T) state.Progress {
	t.Helper()
	path, err := checkpoint.Resolve("ckpt", "latest")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	p, err := state.ReadProgress(ck)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestStopWhileFilling checks that a run that is asked to stop before its ranks have their initial values or the
// state of a checkpoint does not take a step.
func TestStopWhileFilling(t *testing.T) {
	jobtest.InTinyFolder(t)
	sets := []string{"train.steps=4", "checkpoint={every: 2, dir: ckpt}"}
	for _, step := range []int{0, 2} {
		ctx, stop := context.WithCancelCause(t.Context())
		err := Run(ctx, spectest.MustLoad(t, sets...), Options{Out: "run", Resume: "latest", Observer: &heard{}, Hooks: setup.Hooks{WrapTrainer: func(int, *zero.Config) { stop(errEnough) }}})
		var s *Stopped
		if !errors.As(err, &s) || !errors.Is(err, errEnough) || s.Step != step {
			t.Errorf("%v, want %v after step %d", err, errEnough, step)
		}
		if step == 0 {
			if err := Run(t.Context(), spectest.MustLoad(t, append(sets, "train.steps=2")...), Options{Out: "run", Observer: &heard{}}); err != nil {
				t.Error(err)
			}
		}
	}
}
