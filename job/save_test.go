package job

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/shard"
)

// TestRetentionThatFails checks that checkpoints that cannot be deleted end the run or, if the job
// asks for it, are reported at the next save or at the end.
func TestRetentionThatFails(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, onError := range []string{"stop", "continue"} {
		c := spectest.MustLoad(t, "checkpoint.dir=ckpt", "checkpoint.on_error="+onError)
		other, err := checkpoint.Begin("ckpt", 1, checkpoint.Options{}) // holds the lock
		if err != nil {
			t.Fatal(err)
		}
		s := &state.Saver{J: &setup.Job{Job: c}, Rank: &setup.Rank{}, Kept: make(chan error, 1)}
		s.Kept <- s.Retain(nil, nil)
		var out bytes.Buffer
		l := &loop{c: c, rank: &setup.Rank{}, saves: saves{saver: s}, rec: &recorder{Observers: report.Observers{report.NewProgress(&out)}}}
		err = l.settled()
		if stop := onError == "stop"; errors.Is(err, vfs.ErrLocked) != stop || strings.Contains(out.String(), "old checkpoints were not deleted: prune ckpt: ") == stop {
			t.Errorf("on_error %s: %v\n%s", onError, err, &out)
		}
		if err := l.settled(); err != nil {
			t.Errorf("told twice: %v", err)
		}
		if s.Retain(errors.New("no save"), nil) != nil {
			t.Error("retention after a save that failed")
		}
		other.Abort()
	}
}

// TestOneRankFailsBeforeASave checks that a rank that fails by itself, because old checkpoints
// cannot be deleted, ends the run: the others, which begin the next save, are informed and wait for
// nobody.
func TestOneRankFailsBeforeASave(t *testing.T) {
	for _, async := range []string{"true", "false"} {
		t.Run("async "+async, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			jobtest.InFolder(t, jobtest.Least)
			c := spectest.MustLoad(t, "model={layers: 1, heads: 1, width: 8, context: 4}", "data.validation=0", "train.steps=3", "train.micro_batch=1", "parallel.ranks=3", "parallel.timeout=5s", "checkpoint.every=1", "checkpoint.keep=1", "checkpoint.async="+async)
			broken, o := errors.New("a broken disk"), Options{Out: "run"}
			o.Hooks.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(op vfstest.Op) error {
				if op.Do == "rename" && strings.Contains(op.Name, "/step-") {
					return broken
				}
				return nil
			}}
			if err := Run(t.Context(), c, o); !errors.Is(err, broken) || strings.Contains(err.Error(), "rank") {
				t.Error(err)
			}
		})
	}
}

// TestRetentionKeepsForeignFiles checks that an old checkpoint that contains a foreign file stays,
// which the run reports once before it continues.
func TestRetentionKeepsForeignFiles(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	c := spectest.MustLoad(t, "checkpoint.dir=ckpt", "checkpoint.keep=1", "checkpoint.on_error=stop")
	save := func(step int64) {
		s, err := checkpoint.Begin("ckpt", step, checkpoint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w := s.Writer(0)
		if err := w.Put(checkpoint.Tensor{Name: "w", Kind: "master", DType: checkpoint.F32, Shape: []int{1}}, shard.Range{Hi: 1}, make([]byte, 4), nil); err != nil {
			t.Fatal(err)
		}
		p, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(checkpoint.Commit{Parts: []checkpoint.PartFile{p}}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	s := &state.Saver{J: &setup.Job{Job: c}, Rank: &setup.Rank{}, Reported: map[string]bool{}}
	l := &loop{c: c, rank: &setup.Rank{}, saves: saves{saver: s}, rec: &recorder{Observers: report.Observers{report.NewProgress(&out)}}}
	for step := range int64(4) {
		save(step + 1)
		if step == 0 {
			if err := os.WriteFile("ckpt/step-00000001/notes", nil, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		s.Kept = make(chan error, 1)
		s.Kept <- s.Retain(nil, nil)
		if err := l.settled(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := checkpoint.List("ckpt")
	if err != nil || len(list) != 2 || list[0].Step != 1 || list[1].Step != 4 {
		t.Errorf("%+v, %v", list, err)
	}
	if told := strings.Count(out.String(), `old checkpoint step-00000001 stays: it contains "notes"`); told != 1 {
		t.Errorf("told %d times\n%s", told, &out)
	}
}

// TestMissingPlotsAreDrawn checks that a run that could not draw its losses is not done: the same
// command draws them.
func TestMissingPlotsAreDrawn(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	c := spectest.MustLoad(t, "model={layers: 1, heads: 1, width: 8, context: 4}", "data.validation=0", "train.steps=2", "train.batch=2", "parallel.ranks=1", "train.micro_batch=1", "checkpoint.every=1")
	if err := os.MkdirAll("run/loss.svg/x", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), c, Options{Out: "run", Resume: "latest"}); err == nil {
		t.Fatal("drawn into a folder")
	}
	if err := os.RemoveAll("run/loss.svg"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Run(t.Context(), c, Options{Out: "run", Resume: "latest"}); err != nil || !input.Exists("run/loss.svg") {
			t.Error(err)
		}
	}
}
