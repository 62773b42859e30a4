package job

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/job/watch"
	"zeroth/tests/nightly"
)

// TestFoldersLeaveNothing checks that folders that were created and stayed empty are removed, and
// others are not.
func TestFoldersLeaveNothing(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range [][]string{nil, {"checkpoint.every=1"}, {"checkpoint.every=1", "checkpoint.dir=x/y/new"}, {"checkpoint.every=1", "checkpoint.dir=other/folder"}} {
		c := spectest.MustLoad(t, sets...)
		if c.Checkpoint.Dir == "" {
			c.Checkpoint.Dir = "x/y/new/ckpt"
		}
		f, err := lockFolders(c, "x/y/new", true, vfs.OS{})
		if err != nil {
			t.Fatal(err)
		}
		f.release()
		for _, path := range []string{"x", "other"} {
			if input.Exists(path) {
				t.Errorf("%v: folders that were made and stayed empty are still there", sets)
			}
		}
	}
	c := spectest.MustLoad(t)
	if err := os.Mkdir("x", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"x", "x/y"} {
		f, err := lockFolders(c, path, true, vfs.OS{})
		if err != nil {
			t.Fatal(err)
		}
		f.release()
	}
	if files, err := os.ReadDir("x"); err != nil || len(files) > 0 {
		t.Errorf("a folder that was there before is gone, or is not as it was: %v %v", files, err)
	}
	f, err := lockFolders(c, "x/run", true, vfs.OS{})
	if err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "x/run/job.yaml", "")
	f.release()
	full := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "mkdir" {
			return syscall.ENOSPC
		}
		return nil
	}}
	for onError, ok := range map[string]bool{"stop": false, "continue": true} {
		c := spectest.MustLoad(t, "checkpoint.every=1", "checkpoint.dir=x", "checkpoint.on_error="+onError)
		f, err := lockFolders(c, "x/run", false, full)
		if (err == nil) != ok {
			t.Errorf("on a full disk with on_error %s: %v", onError, err)
		}
		if err == nil {
			f.release()
		}
	}
	if !input.Exists("x/run/job.yaml") || input.Exists("x/run/.lock") {
		t.Error("what a run has written is gone, or its lock is not")
	}
	if err := os.RemoveAll("x/run"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("x/ckpt/.zeroth-probe", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"x", "x/ckpt"} {
		jobtest.Write(t, dir+"/.lock", "pid 1 host gone\n")
		jobtest.Write(t, dir+"/.zeroth-tmp-"+rand.Text(), "half a job.yaml")
	}
	if f, err = lockFolders(c, "x", true, vfs.OS{}); err != nil {
		t.Errorf("what a run left that died at once is in the way: %v", err)
	} else {
		f.release()
	}
}

// TestFolderOfCheckpointsIsEmpty checks that a folder of checkpoints whose run died between
// creating and locking it does not block a new run, but that other empty folders do.
func TestFolderOfCheckpointsIsEmpty(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	c := spectest.MustLoad(t, "checkpoint.every=1")
	c.Checkpoint.Dir = "x/ckpt"
	for _, folder := range []string{"ckpt", "other"} {
		if err := os.MkdirAll("x/"+folder, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := lockFolders(c, "x", true, vfs.OS{})
		if (err == nil) != (folder == "ckpt") {
			t.Errorf("with %s: %v", folder, err)
		}
		if err == nil {
			f.release()
		}
	}
}

// TestFolderOfAKilledRun checks that the token and the lock of a run that was killed before its
// first step do not make the folder unusable.
func TestFolderOfAKilledRun(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	if err := os.MkdirAll("x/ckpt", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{lockFile, watch.TokenFile, "ckpt/" + lockFile} {
		if err := os.WriteFile("x/"+name, []byte("t"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := spectest.MustLoad(t, "checkpoint.every=1")
	c.Checkpoint.Dir = "x/ckpt"
	f, err := lockFolders(c, "x", true, vfs.OS{})
	if err != nil {
		t.Fatal(err)
	}
	f.release()
}

// TestLinkForARunFolderStays checks that a dangling link in place of a run folder is refused and
// stays.
func TestLinkForARunFolderStays(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	if err := os.Symlink("nowhere", "link"); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{"link", "link/run"} {
		if f, err := lockFolders(spectest.MustLoad(t), out, true, vfs.OS{}); err == nil {
			f.release()
			t.Errorf("--out %s is accepted", out)
		}
		if to, err := os.Readlink("link"); to != "nowhere" {
			t.Fatalf("--out %s: the link leads to %q: %v", out, to, err)
		}
	}
}

// TestFoldersAreOneRuns checks that if two runs would write to the same folder, of whatever kind,
// the second is refused and names the process that uses it.
func TestFoldersAreOneRuns(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	on := func(out, dir string) (*folders, error) {
		c := spectest.MustLoad(t, "checkpoint.every=1", "checkpoint.dir="+dir)
		return lockFolders(c, out, false, vfs.OS{})
	}
	for _, first := range [][2]string{{"a", "a/ckpt"}, {"a", "a"}, {"a", "c"}} {
		f, err := on(first[0], first[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, second := range [][2]string{{"a", "a/ckpt"}, {"a", "b"}, {"a", "a"}, {"b", first[1]}, {"b", "./" + first[1] + "/../" + filepath.Base(first[1])}} {
			_, err := on(second[0], second[1])
			var held *vfs.Locked
			if !errors.As(err, &held) || !errors.Is(err, vfs.ErrLocked) || held.PID != os.Getpid() || !strings.Contains(err.Error(), "is in use by process ") {
				t.Errorf("%v beside %v: %v", second, first, err)
			}
		}
		g, err := on("b", "d")
		if err != nil {
			t.Errorf("another run beside %v: %v", first, err)
		} else {
			g.release()
		}
		f.release()
	}
}

// TestFolderOfCheckpoints checks that an unusable folder of checkpoints is reported as a mistake in
// the job before training, whatever checkpoint.on_error is; so is a folder with checkpoints of
// another run, which retention would delete.
func TestFolderOfCheckpoints(t *testing.T) {
	jobtest.InTinyFolder(t)
	if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=7"), Options{Out: "old", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{
		{"a.txt", "--set checkpoint.dir=a.txt: checkpoint.dir: a.txt: checkpoints cannot be written there: is a file, not a folder; want a folder that can be created and written to"},
		{"a.txt/x", "checkpoints cannot be written there: "},
		{"/proc/self/task/x", "checkpoints cannot be written there: "},
		{"old/ckpt", "checkpoint.dir: old/ckpt has checkpoints of another run, up to step 7; want a new folder, or --resume to continue from one of them"},
	} {
		h := &heard{}
		err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=1", "checkpoint.on_error=continue", "checkpoint.dir="+c.dir), Options{Out: "run", Observer: h})
		if !input.IsInput(err) || !strings.Contains(err.Error(), c.want) || len(h.steps) > 0 || input.Exists("run") {
			t.Errorf("%s: %v\nwant %s", c.dir, err, c.want)
		}
	}
	list, err := checkpoint.List("old/ckpt")
	if err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
}

// TestLongFolders checks that a path too long for the names of a run's last files is refused before
// training, and that the longest possible path is written to completely.
func TestLongFolders(t *testing.T) {
	jobtest.InTinyFolder(t)
	deep := func(bytes int) string {
		path := strings.Repeat(strings.Repeat("d", 99)+"/", bytes/100)
		return filepath.Clean(path + strings.Repeat("e", bytes-len(path)))
	}
	for bytes, want := range map[int]string{3550: "", 3650: "--out has 3650 bytes", 3990: "--out has 3990 bytes", 4250: "--out has 4250 bytes"} {
		h := &heard{}
		err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=7"), Options{Out: deep(bytes), Observer: h})
		if want == "" && err == nil && input.Exists(filepath.Join(deep(bytes), "model", "model.safetensors")) {
			continue
		}
		if want == "" || err == nil || !input.IsInput(err) || !strings.HasPrefix(err.Error(), want) || len(h.steps) > 0 {
			t.Errorf("%d bytes: %d steps, %v", bytes, len(h.steps), err)
		}
		if bytes > 3600 && input.Exists(deep(bytes)) {
			t.Errorf("%d bytes: the folder is left", bytes)
		}
	}
	err := Run(t.Context(), spectest.MustLoad(t, "checkpoint={every: 7, dir: "+deep(3990)+"}"), Options{Out: "run", Observer: &heard{}})
	if !input.IsInput(err) || !strings.Contains(err.Error(), "checkpoint.dir: it has 3990 bytes") || input.Exists("run") {
		t.Errorf("checkpoint.dir: %v", err)
	}
}

// TestNothingToResume checks that a run without checkpoints is not started again over its
// parameters.
func TestNothingToResume(t *testing.T) {
	jobtest.InTinyFolder(t)
	if err := Run(t.Context(), spectest.MustLoad(t), Options{Out: "run", Observer: &heard{}}); err != nil {
		t.Fatal(err)
	}
	want := "--resume latest: there is no checkpoint to continue from, and step 0 would overwrite the parameters in run/model; "
	if err := Run(t.Context(), spectest.MustLoad(t), Options{Out: "run", Resume: "latest", Observer: &heard{}}); !input.IsInput(err) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

// TestCheckpointsThatChangeMeanwhile checks that a run fails if checkpoints change between its look
// at the folders and its lock on them.
func TestCheckpointsThatChangeMeanwhile(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	trainedRun(t)
	for _, which := range []string{"latest", "7", "run/ckpt/step-00000007"} {
		c := spectest.MustLoad(t, "checkpoint.dir=run/ckpt", "train.steps=8", "checkpoint.every=100")
		r := newRun(c, Options{Out: "run", Resume: which, Observer: &heard{}})
		if err := r.findStart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.checkUnchanged(t.Context()); err != nil {
			t.Errorf("%s: nothing has changed: %v", which, err)
		}
		if err := os.CopyFS("run/ckpt/step-00000007.1", os.DirFS("run/ckpt/step-00000007")); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll("run/ckpt/step-00000007"); err != nil {
			t.Fatal(err)
		}
		if err := r.checkUnchanged(t.Context()); err == nil || !strings.Contains(err.Error(), "run/ckpt changed") {
			t.Errorf("%s: its checkpoint has another name: %v", which, err)
		}
		if err := os.Rename("run/ckpt/step-00000007.1", "run/ckpt/step-00000007"); err != nil {
			t.Fatal(err)
		}
		r.start.close()
	}
	none := spectest.MustLoad(t, "train.steps=8", "checkpoint.every=100", "checkpoint.dir=run/none")
	r := newRun(none, Options{Out: "new", Resume: "latest", Observer: &heard{}})
	if err := r.findStart(t.Context()); err != nil || r.checkUnchanged(t.Context()) != nil {
		t.Errorf("none yet: %v, %v", err, r.checkUnchanged(t.Context()))
	}
	r.c.Checkpoint.Dir = "run/ckpt"
	if err := r.checkUnchanged(t.Context()); err == nil {
		t.Error("one has come to be, and is not noticed")
	}
}

// TestFolderToOffloadTo checks the same for a folder to offload to.
func TestFolderToOffloadTo(t *testing.T) {
	jobtest.InTinyFolder(t)
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("no folder here is closed to root")
	}
	err := Run(t.Context(), spectest.MustLoad(t, "zero.offload={optimizer: disk, path: /proc}"), Options{Out: "run", Observer: &heard{}})
	if want := "zero.offload.path: /proc: nothing can be written there: "; !input.IsInput(err) || !strings.Contains(err.Error(), want) || input.Exists("run") {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// TestTwoRunsOffloadToOneFolder checks that two concurrent runs can offload to one folder, each to
// its own files.
func TestTwoRunsOffloadToOneFolder(t *testing.T) {
	jobtest.InTinyFolder(t)
	if err := os.Mkdir("disk", 0o755); err != nil {
		t.Fatal(err)
	}
	sets := []string{"zero.offload={optimizer: disk, parameters: disk, path: disk}", "train.steps=5"}
	outer := &heard{onStep: func(s report.Step) {
		if s.Step == 3 {
			if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: "inner", Observer: &heard{}}); err != nil {
				t.Error(err)
			}
		}
	}}
	if err := Run(t.Context(), spectest.MustLoad(t, sets...), Options{Out: "outer", Observer: outer}); err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile("inner/model/model.safetensors")
	b, err2 := os.ReadFile("outer/model/model.safetensors")
	if err != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("they end differently (%v, %v)", err, err2)
	}
	if left, err := os.ReadDir("disk"); err != nil || len(left) > 0 {
		t.Errorf("left %v %v", left, err)
	}
}
