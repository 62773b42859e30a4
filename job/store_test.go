package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint/store"
	"zeroth/collective"
	"zeroth/internal/input"
	"zeroth/internal/input/s3/s3test"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestStopWithoutServer checks that a run stopped while the server of its checkpoints refuses
// requests ends soon, and names the checkpoint to continue from and the folder with the files to
// upload, which the next run uploads.
func TestStopWithoutServer(t *testing.T) {
	nightly.Long(t)
	defer func(d time.Duration) { mostFlush = d }(mostFlush)
	mostFlush = 10 * time.Millisecond
	server := s3test.Serve(t)
	jobtest.InTinyFolder(t)
	sets := []string{"train.steps=1000", "checkpoint.every=2", "checkpoint.dir=s3://runs/a", "checkpoint.local=scratch"}
	reason := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	h := &heard{onStep: func(s report.Step) {
		switch s.Step {
		case 4:
			server.Fail(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
		case 7:
			stop(reason)
		}
	}}
	err := Run(ctx, spectest.MustLoad(t, sets...), Options{Out: "run", Observer: h})
	var s *Stopped
	if !errors.As(err, &s) || !strings.HasPrefix(s.Checkpoint, "s3://runs/a/step-") {
		t.Fatalf("%v", err)
	}
	if !slices.ContainsFunc(h.notes, func(s string) bool {
		return strings.Contains(s, "some files were not uploaded") && strings.Contains(s, "scratch")
	}) {
		t.Errorf("%q", h.notes)
	}
	server.Fail(nil)
	if err := Run(t.Context(), spectest.MustLoad(t, append(sets, "train.steps=9")...), Options{Out: "run", Resume: "latest"}); err != nil {
		t.Fatal(err)
	}
	if mark := strings.TrimPrefix(s.Checkpoint, "s3://runs/") + "/COMMIT"; !slices.Contains(server.Keys(t), mark) {
		t.Errorf("%s is not in %q", mark, server.Keys(t))
	}
}

// TestDamagedLocal checks that a run does not read a copy of a checkpoint that was damaged on its disk, but
// the checkpoint in the bucket.
func TestDamagedLocal(t *testing.T) {
	nightly.Long(t)
	s3test.Serve(t)
	jobtest.InTinyFolder(t)
	sets := []string{"checkpoint.every=2", "checkpoint.dir=s3://runs/a", "checkpoint.local=scratch"}
	if err := Run(t.Context(), spectest.MustLoad(t, append(sets, "train.steps=2")...), Options{Out: "run"}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("scratch/step-00000002/*")
	if err != nil || len(files) < 4 {
		t.Fatalf("%q, %v", files, err)
	}
	step := 2
	for _, name := range files {
		name = filepath.Join("scratch", fmt.Sprintf("step-%08d", step), filepath.Base(name))
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(name, b, 0o666); err != nil {
			t.Fatal(err)
		}
		step += 2
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, append(sets, fmt.Sprint("train.steps=", step))...), Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.ContainsFunc(h.notes, func(s string) bool { return strings.HasPrefix(s, "removing step-") }) {
			t.Errorf("%s: %q", name, h.notes)
		}
	}
}

// A folder on disk that cannot be written to is a problem of its key.
func TestLocalFolder(t *testing.T) {
	s3test.Serve(t)
	jobtest.InTinyFolder(t)
	jobtest.Write(t, "file", "")
	sets := []string{"train.steps=2", "checkpoint.every=2", "checkpoint.dir=s3://runs/a"}
	for local, want := range map[string]string{"file": "--set checkpoint.local=file: checkpoint.local: ", "file/deep": "file: checkpoints cannot be saved there: not a directory; want a folder"} {
		err := Run(t.Context(), spectest.MustLoad(t, append(sets, "checkpoint.local="+local)...), Options{Out: "run-" + local[:4]})
		if !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", local, err, want)
		}
	}
	for dir, want := range map[string]string{"s3://runs/a": "another disk with checkpoint.local", "ckpt": "another disk with checkpoint.dir"} {
		c := spectest.MustLoad(t, "checkpoint.every=2", "checkpoint.dir="+dir)
		full := fmt.Errorf("rank 1: write x: %v", syscall.ENOSPC)
		if err := diskFull(c, full); !errors.Is(err, full) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if err := diskFull(c, context.Canceled); err != context.Canceled {
			t.Error(err)
		}
	}
}

// TestFlushAlone checks that a process does not wait for uploads of another that is lost.
func TestFlushAlone(t *testing.T) {
	nightly.Long(t)
	server := s3test.Serve(t)
	m, err := store.Use("s3://runs/a", store.Options{Local: t.TempDir()})
	if err == nil {
		err = m.Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Start()
	defer m.Close()
	server.Fail(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	lost := make(chan struct{})
	close(lost)
	if err := os.MkdirAll(filepath.Join(store.Files{}.OnDisk("s3://runs/a"), "step-00000001"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"MANIFEST.json": "{}", "COMMIT": "zeroth-checkpoint 1 seq 1 step 1\n"} {
		if err := os.WriteFile(filepath.Join(store.Files{}.OnDisk("s3://runs/a"), "step-00000001", name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	r := &run{store: m, self: setup.Self{Ended: lost}}
	if err := r.flushStore(t.Context()); !errors.Is(err, collective.ErrClosed) {
		t.Error(err)
	}
}

// TestStopWhileDownloading checks that a run stopped while it downloads data, whose server is silent, ends as one that was stopped, not as one with a mistake in its job.
func TestStopWhileDownloading(t *testing.T) {
	for _, sets := range [][]string{{"data.text=[s3://runs/in/*.txt]"}, {"data={documents: [s3://runs/in/*.txt]}"}, {"data={documents: [s3://runs/in/*.txt], pack: false}", "model.context=null"}} {
		server := s3test.Serve(t)
		jobtest.InTinyFolder(t)
		server.Put(t, "in/a.txt", []byte(strings.Repeat("some words\n", 1000)))
		reason := errors.New("enough")
		ctx, stop := context.WithCancelCause(t.Context())
		server.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".txt") {
				stop(reason)
				<-r.Context().Done()
			}
			return false
		})
		err := Run(ctx, spectest.MustLoad(t, append(sets, "train.steps=2")...), Options{Out: "run"})
		if s := (*Stopped)(nil); !errors.As(err, &s) || !errors.Is(err, reason) || input.IsInput(err) {
			t.Errorf("%q: %v", sets, err)
		}
	}
}
