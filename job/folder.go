package job

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"zeroth/checkpoint"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/collective/flight"
	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/job/watch"
)

// lockFile exists in every folder that a run writes to; see vfs.OS.Lock.
const lockFile = ".lock"

// probeName names the file that tests whether a folder is writable; processes other than 0
// append their number.
const probeName = ".zeroth-probe"

// folders contains the locked folders of a run. While the run lives, no other run, save or
// prune uses them.
type folders struct {
	out  string
	lock io.Closer        // of out; nil where that is also the folder of checkpoints
	hold *checkpoint.Hold // of the folder of checkpoints; nil for a job that saves nothing
	made []string         // that were not there, the deepest first
}

// inUse is the error for a folder that another process has locked.
type inUse struct {
	folder string
	*vfs.Locked
}

func (e inUse) Error() string {
	return fmt.Sprintf("%s is in use by %s: wait until that ends, or name another folder", e.folder, e.Holder())
}

func (e inUse) Unwrap() error { return e.Locked }

// lockFolders creates and locks the folders of a run, so that a folder that cannot be written
// to is an error before any work. A fresh run needs an empty run folder and a folder without
// checkpoints; it never overwrites another run.
func lockFolders(c *spec.Job, out string, fresh bool, saves vfs.FS) (*folders, error) {
	f := &folders{out: out, made: Missing(out)}
	err := cmp.Or(namesFit(c, out), probeOffload(c))
	if err == nil {
		err = f.takeOut(fresh, onDisk(c, out))
	}
	if err == nil && setup.Saves(c) {
		err = takeCheckpoints(c, f, fresh, saves)
	}
	if err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// namesFit returns an error if the paths of files in a folder would be longer than the system
// allows. The last of them are written after all steps.
func namesFit(c *spec.Job, out string) error {
	if tooLong(out) {
		return input.BadInput(fmt.Errorf("--out has %d bytes, so the names of files in it would exceed the system's limit; name a folder with a shorter path", len(out)))
	}
	if dir := c.Checkpoint.Dir; setup.Saves(c) && !s3.Is(dir) && tooLong(dir) {
		return badFolder(c, fmt.Sprintf("it has %d bytes, so the names of files in it would exceed the system's limit", len(dir)), "want a folder with a shorter path")
	}
	return nil
}

// tooLong reports whether the longest path that a run may write in a folder, of a file carried
// with a model, exceeds the system's limit.
func tooLong(folder string) bool {
	name := strings.Repeat("x", 250)
	_, err := os.Lstat(filepath.Join(folder, name, name))
	return errors.Is(err, syscall.ENAMETOOLONG)
}

func (f *folders) takeOut(fresh bool, checkpoints string) (err error) {
	if err := os.MkdirAll(f.out, 0o777); err != nil {
		return input.BadInput(fmt.Errorf("--out: %w; name a folder that can be created", err))
	}
	if err := ownOutputs(f.out); err != nil {
		return input.BadInput(fmt.Errorf("--out %s: a run writes only to files and folders of its own, and follows no links: %w; move it away, or name another folder", f.out, err))
	}
	f.lock, err = vfs.OS{}.Lock(filepath.Join(f.out, lockFile))
	if held := (*vfs.Locked)(nil); errors.As(err, &held) {
		return inUse{"--out " + f.out, held}
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("--out %s: nothing can be written there: %w", f.out, input.Cause(err)))
	}
	input.Sweep(f.out)
	if !fresh {
		return nil
	}
	files, err := os.ReadDir(f.out)
	if err != nil {
		return input.BadInput(fmt.Errorf("--out: %w", err))
	}
	files = slices.DeleteFunc(files, func(e os.DirEntry) bool {
		return e.Name() == lockFile || e.Name() == watch.TokenFile || vacant(filepath.Join(f.out, e.Name()), checkpoints)
	})
	if len(files) > 0 {
		return input.BadInput(fmt.Errorf("--out %s: the folder is not empty (%s), and runs are never overwritten; name a new folder, remove this one, or continue from its checkpoints with --resume latest",
			f.out, Some(files, 3)))
	}
	return nil
}

// ownOutputs returns an error if something in the run folder has the name of an output but is
// not a regular file or folder. A damaged metrics.jsonl is set aside unless it is a link.
func ownOutputs(out string) error {
	errs := []error{input.Replaceable(filepath.Join(out, "job.yaml")), input.Replaceable(filepath.Join(out, "loss.svg"))}
	inside, _ := os.ReadDir(out)
	for _, f := range inside {
		if report.IsEvents(f.Name()) {
			errs = append(errs, input.Replaceable(filepath.Join(out, f.Name())))
		}
	}
	metrics := filepath.Join(out, "metrics.jsonl")
	if _, err := os.Readlink(metrics); err == nil {
		errs = append(errs, input.Replaceable(metrics))
	}
	errs = append(errs, input.Replaceable(filepath.Join(out, watch.TokenFile)))
	for _, folder := range []string{state.ModelDir, state.AdapterDir, flight.Folder} {
		folder = filepath.Join(out, folder)
		if err := input.OwnFolder(folder); err != nil {
			errs = append(errs, err)
			continue
		}
		files, _ := os.ReadDir(folder) // usually the folder does not exist yet
		for _, f := range files {
			if !f.IsDir() || filepath.Ext(f.Name()) != "" { // folders are those of carried templates
				errs = append(errs, input.Replaceable(filepath.Join(folder, f.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// onDisk returns the folder of checkpoints, or that on disk for checkpoints in object storage.
func onDisk(c *spec.Job, out string) string {
	if s3.Is(c.Checkpoint.Dir) {
		return cmp.Or(c.Checkpoint.Local, filepath.Join(out, state.CheckpointFolder))
	}
	return c.Checkpoint.Dir
}

// vacant reports whether a folder of checkpoints is empty but for a lock, as a run leaves it
// that dies before its first save.
func vacant(folder, checkpoints string) bool {
	in, err := os.ReadDir(folder)
	return err == nil && (len(in) > 0 || same(folder, checkpoints)) && !slices.ContainsFunc(in, func(e os.DirEntry) bool {
		return e.Name() != lockFile && !store.Own(e.Name()) && !strings.HasPrefix(e.Name(), probeName) && !input.IsTemp(e.Name())
	})
}

// Held returns a *vfs.Locked that names the process that uses a run folder, nil if none does.
func Held(out string) error {
	return vfs.OS{}.Look(filepath.Join(out, lockFile))
}

// takeCheckpoints locks the folder of checkpoints.
func takeCheckpoints(c *spec.Job, f *folders, fresh bool, fsys vfs.FS) (err error) {
	dir := c.Checkpoint.Dir
	if !s3.Is(dir) {
		f.made = append(Missing(dir), f.made...)
	}
	if same(dir, f.out) {
		_ = f.lock.Close() // one lock for both
		f.lock = nil
	}
	f.hold, err = checkpoint.HoldFolder(fsys, dir)
	if held := (*vfs.Locked)(nil); errors.As(err, &held) {
		return inUse{"checkpoint.dir " + dir, held}
	}
	if err == nil {
		err = probe(fsys, vfs.Join(dir, probeName))
		if errors.Is(err, syscall.ENOSPC) && c.Checkpoint.OnError == "continue" {
			err = nil // saves report it while there is no space
		}
	}
	if local := badLocal(c, err); input.IsInput(local) {
		return local
	}
	if err != nil {
		return badFolder(c, fmt.Sprintf("%s: checkpoints cannot be written there: %v", dir, input.Cause(err)), "want a folder that can be created and written to")
	}
	if fresh {
		return without(c, dir, fsys)
	}
	return nil
}

// probe creates and removes a folder. Other processes may do so at the same time.
func probe(fsys vfs.FS, name string) error {
	if err := fsys.Mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := fsys.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// probeOffload returns an error if the folder to offload to is not writable.
func probeOffload(c *spec.Job) error {
	o := c.Zero.Offload
	if !o.Disk() {
		return nil
	}
	if err := probe(vfs.OS{}, filepath.Join(o.Path, probeName)); err != nil {
		return config.Problems{spec.ProblemOf(c, "zero.offload.path", fmt.Sprintf("%s: nothing can be written there: %v", o.Path, input.Cause(err)), config.OffloadPath)}
	}
	return nil
}

// without returns an error if a folder contains checkpoints of another run, which retention
// would delete.
func without(c *spec.Job, dir string, fsys vfs.FS) error {
	list, err := checkpoint.ListIn(fsys, dir)
	if err != nil {
		return err
	}
	if e, ok := checkpoint.Newest(list); ok {
		return badFolder(c, fmt.Sprintf("%s has checkpoints of another run, up to step %d", dir, e.Step), "want a new folder, or --resume to continue from one of them")
	}
	return nil
}

// badFolder returns a problem with the folder of checkpoints.
func badFolder(c *spec.Job, wrong, right string) error {
	return config.Problems{spec.ProblemOf(c, "checkpoint.dir", wrong, right)}
}

// release unlocks the folders, and removes those that this run created and that are still
// empty.
func (f *folders) release() {
	if f.hold != nil {
		_ = f.hold.Close() // what was saved is committed
	}
	if f.lock != nil {
		_ = os.Remove(filepath.Join(f.out, lockFile))
		_ = f.lock.Close()
	}
	for _, folder := range f.made {
		_ = os.Remove(folder) // fails if it is not empty
	}
}

// same reports whether two paths name the same folder.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Missing returns the folders of a path that do not exist, the deepest first. A dangling link
// counts as existing, because a run that created folders must not remove it.
func Missing(path string) (folders []string) {
	for {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return folders
		}
		folders = append(folders, path)
		path = filepath.Dir(path)
	}
}

// Some returns the first n names, safe to print on a terminal.
func Some(files []os.DirEntry, n int) string {
	var names []string
	for _, f := range files[:min(n, len(files))] {
		names = append(names, show.Printable(f.Name()))
	}
	if len(files) > n {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

// diskSpace compares the size of a checkpoint with the free space before training. Too little
// is an error, or a warning if the job continues without checkpoints.
func diskSpace(c *setup.Job, s *state.Saver, obs report.Observers) error {
	if s == nil {
		return nil
	}
	dir, need := c.Checkpoint.Dir, state.Expects(c)
	free, err := c.Files().Space(dir)
	if err != nil || free >= need {
		return nil // what is wrong with the folder the first save finds
	}
	wrong := fmt.Sprintf("a checkpoint needs %s, but %s has only %s free", show.ByteSize(need), dir, show.ByteSize(free))
	if c.Checkpoint.OnError != "stop" {
		obs.Warn(wrong + ": checkpoints are skipped until there is space")
		return nil
	}
	return fmt.Errorf("%s; free some space, set checkpoint.dir to another disk, or set checkpoint.on_error to continue", wrong)
}
