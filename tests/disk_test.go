package tests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// stepObserver calls step after each step of a run, on rank 0, and receives its notices.
type stepObserver struct {
	step  func(int)
	notes []string
}

func (w *stepObserver) Step(s report.Step) { w.step(s.Step) }

func (w *stepObserver) Event(e report.Event) {
	switch line := e.(type) {
	case report.Note:
		w.notes = append(w.notes, string(line))
	case report.Warning:
		w.notes = append(w.notes, string(line))
	}
}

// intact verifies every byte of the newest checkpoint and checks that its state equals that of
// the same step in folder want.
func intact(t *testing.T, dir, want string) {
	t.Helper()
	list, err := checkpoint.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := checkpoint.Newest(list)
	if !ok {
		t.Fatalf("no checkpoint in %s", dir)
	}
	found, err := checkpoint.Verify(context.Background(), e.Path, checkpoint.Walk{})
	if err != nil || len(found) > 0 {
		t.Errorf("%s: %v %v", e.Path, found, err)
	}
	if step := fmt.Sprint(e.Step); digest(t, dir, step) != digest(t, want, step) {
		t.Errorf("%s has another state than the run without a failure", e.Path)
	}
}

// TestDiskFailsMidStep checks that a failure of the offload disk during a step ends the run with
// an error that names the file, the unit and the offset. The last checkpoint stays valid, no
// files remain on the disk, and resuming gives the bits of a run that never failed.
func TestDiskFailsMidStep(t *testing.T) {
	nightly.Parallel(t)
	whole := t.TempDir()
	job1 := func(dir, disk string) *spec.Job {
		return saving(t, dir, "parallel.ranks=3", "zero.stage=3", "train.batch=12", "checkpoint.every=2", "checkpoint.keep=5", "checkpoint.async=false",
			"zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path="+disk)
	}
	run(t, job1(whole, t.TempDir()), "")
	for _, c := range []struct {
		name, do string // operation that fails
		err      error
		nth      int64 // first transfer that fails, on rank 1 after step 4
		cause    string
	}{
		{"write error", "write", syscall.EIO, 5, "input/output error"},
		{"read error", "read", syscall.EIO, 3, "input/output error"},
		{"full", "write", syscall.ENOSPC, 2, "no space left on device"},
		{"vanished", "", fs.ErrNotExist, 1, "file does not exist"},
		{"unplugged", "", syscall.ENODEV, 4, "no such device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, disk, out := t.TempDir(), t.TempDir(), t.TempDir()
			var armed atomic.Bool
			var n atomic.Int64
			files := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
				transfer := o.Do == "read" || o.Do == "write"
				if transfer && armed.Load() && (c.do == "" || o.Do == c.do) && strings.HasSuffix(o.Name, "rank-1.offload") && n.Add(1) >= c.nth {
					return c.err
				}
				return nil
			}}
			w := &stepObserver{step: func(s int) { armed.Store(s >= 4) }}
			err := job.Run(context.Background(), job1(dir, disk), job.Options{Out: out, Observer: w, Hooks: setup.Hooks{Files: files, Tile: 200}})
			if err == nil || !errors.Is(err, c.err) {
				t.Fatalf("error %v", err)
			}
			place := regexp.MustCompile(`unit \S+: (optimizer state|parameters): ` + regexp.QuoteMeta(disk) + `/zeroth-[0-9a-f]{8}-rank-1\.offload: (read|write) \d+ bytes at offset \d+: ` + c.cause + `$`)
			if !place.MatchString(err.Error()) {
				t.Errorf("error %v", err)
			}
			if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
				t.Errorf("%v is left on the disk (%v)", left, err)
			}
			intact(t, dir, whole)
			if err := job.Run(context.Background(), job1(dir, disk), job.Options{Out: out, Resume: "latest"}); err != nil {
				t.Fatal(err)
			}
			if digest(t, dir, "6") != digest(t, whole, "6") {
				t.Error("the resumed run ends with another state")
			}
		})
	}
}

// TestDiskVanishes checks that truncating the offload file during the run has the same effect,
// using real files.
func TestDiskVanishes(t *testing.T) {
	nightly.Parallel(t)
	whole, dir, disk, out := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	sets := func(dir, disk string) *spec.Job {
		return saving(t, dir, "parallel.ranks=2", "zero.stage=1", "checkpoint.every=2", "checkpoint.async=false", "zero.offload.optimizer=disk", "zero.offload.path="+disk)
	}
	run(t, sets(whole, t.TempDir()), "")
	w := &stepObserver{step: func(s int) {
		if s != 3 {
			return
		}
		files, err := filepath.Glob(disk + "/*rank-0.offload")
		if err != nil || len(files) != 1 {
			t.Errorf("%v %v", files, err)
			return
		}
		if err := os.Truncate(files[0], 4096); err != nil {
			t.Error(err)
		}
	}}
	err := job.Run(context.Background(), sets(dir, disk), job.Options{Out: out, Observer: w})
	if err == nil || !strings.Contains(err.Error(), disk+"/zeroth-") || !regexp.MustCompile(`unit \S+: optimizer state: \S+: (read \d+ bytes at offset \d+: the file ends|the \d+ bytes at offset \d+ have checksum)`).MatchString(err.Error()) {
		t.Errorf("error %v", err)
	}
	intact(t, dir, whole)
	if err := job.Run(context.Background(), sets(dir, disk), job.Options{Out: out, Resume: "latest"}); err != nil {
		t.Fatal(err)
	}
	if digest(t, dir, "6") != digest(t, whole, "6") {
		t.Error("the resumed run ends with another state")
	}
}

// cramped is a disk with a fixed number of free bytes.
type cramped struct {
	vfs.ScratchFS
	free func() int64
}

func (c cramped) Space(string) (int64, error) { return c.free(), nil }

// TestNoSpaceForCheckpoints checks that free space is verified before training and before each
// save. If it is too small, the run ends or, if the job allows it, reports it and continues;
// earlier checkpoints stay intact.
func TestNoSpaceForCheckpoints(t *testing.T) {
	nightly.Parallel(t)
	whole := t.TempDir()
	run(t, saving(t, whole, "parallel.ranks=2", "checkpoint.compress=never", "checkpoint.every=2"), "")
	for _, async := range []string{"true", "false"} {
		for _, policy := range []string{"stop", "continue"} {
			dir, free := t.TempDir(), int64(1<<30)
			var step atomic.Int64
			fsys := cramped{vfs.OS{}, func() int64 {
				if step.Load() >= 3 {
					return 1000
				}
				return free
			}}
			c := saving(t, dir, "parallel.ranks=2", "checkpoint.compress=never", "checkpoint.every=2", "checkpoint.async="+async, "checkpoint.on_error="+policy)
			w := &stepObserver{step: func(s int) {
				for s == 3 { // the disk is full once the first checkpoint is there
					if _, err := checkpoint.Resolve(dir, "2"); err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				step.Store(int64(s))
			}}
			err := job.Run(context.Background(), c, job.Options{Out: t.TempDir(), Observer: w, Hooks: setup.Hooks{Files: fsys}})
			want := regexp.MustCompile(`begin save of step \d in \S+: the disk has too little space: the save needs \d+ bytes, but only 1000 are free`)
			told := strings.Join(w.notes, "\n")
			if policy == "stop" && (err == nil || !want.MatchString(err.Error())) || policy == "continue" && (err != nil || !want.MatchString(told)) {
				t.Errorf("async %s, %s: %v\n%s", async, policy, err, told)
			}
			intact(t, dir, whole)
			if _, err := checkpoint.Resolve(dir, "4"); err == nil {
				t.Error("a checkpoint of step 4 is there")
			}

			free = 1000
			step.Store(0)
			w = &stepObserver{step: func(s int) { step.Store(int64(s)) }}
			err = job.Run(context.Background(), c, job.Options{Out: t.TempDir(), Resume: "latest", Observer: w, Hooks: setup.Hooks{Files: fsys}})
			want = regexp.MustCompile(`a checkpoint needs \S+ \S+, but ` + regexp.QuoteMeta(dir) + ` has only 1000 B free[;:] `)
			told = strings.Join(w.notes, "\n")
			if policy == "stop" && (err == nil || !want.MatchString(err.Error()) || step.Load() > 0) || policy == "continue" && (err != nil || !want.MatchString(told)) {
				t.Errorf("async %s, %s, at the start: %v after step %d\n%s", async, policy, err, step.Load(), told)
			}
		}
	}
}
