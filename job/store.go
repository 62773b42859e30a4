package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"zeroth/config"

	"zeroth/checkpoint"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// useStore prepares checkpoints in object storage: the folder on disk, the lease, and, if the run has
// several processes, the files that their hosts have not uploaded yet. Processes with the same folder on disk are
// on one host, and the first to lock it uploads.
func (r *run) useStore(ctx context.Context) (err error) {
	k := r.given.Checkpoint
	if !s3.Is(k.Dir) || !setup.Saves(r.given) {
		return nil
	}
	o := store.Options{Local: onDisk(r.given, r.Out), Apart: !r.self.Alone(), Follow: r.self.Process > 0, Session: r.self.Session, Note: r.observers.Note}
	if r.store, err = store.Use(s3.Clean(k.Dir), o); err != nil {
		return badLocal(r.given, err)
	}
	r.spread = hostsOf(r.self) > 1
	return r.beginStore(ctx)
}

// hostsOf returns the number of hosts of a world.
func hostsOf(s setup.Self) int { return len(slices.Compact(slices.Sorted(slices.Values(s.Hosts)))) }

// beginStore begins uploads. A process that comes back leaves them to others until all begin anew.
func (r *run) beginStore(ctx context.Context) (err error) {
	k, o := r.given.Checkpoint, r.store.Options
	if o.Follow { // the leader locks its folder first
		if _, err := r.World.Share(ctx, ""); err != nil {
			return err
		}
	}
	if !r.late {
		err = r.store.Begin(ctx)
	}
	if held := (*vfs.Locked)(nil); errors.As(err, &held) {
		err = inUse{"checkpoint.dir " + k.Dir, held}
	}
	err = badLocal(r.given, err)
	if err == nil && !o.Follow {
		_, err = r.World.Share(ctx, "locked")
	}
	if err == nil && o.Apart {
		err = r.store.CatchUp(ctx, func() error { return r.agree(ctx, nil) })
	}
	if err == nil {
		r.store.Start()
	}
	return err
}

// storeGoesOn begins uploads anew after a loss or a join, unless all processes are on one host and the same one leads, which
// uploads for all. What a lost host had not uploaded is missing: checkpoints with it are removed. A leader on another host waits
// until the lease of the lost one has expired. pids are those of lost processes on this host, which may hold its lock; stop ends
// when this one is asked to stop.
func (r *run) storeGoesOn(ctx, stop context.Context, loops []*loop, pids []int) error {
	if r.store == nil {
		return nil
	}
	r.spread = r.spread || hostsOf(r.self) > 1
	anew, err := r.World.Share(ctx, strconv.FormatBool(r.store.Follow || r.spread))
	if err != nil || anew != "true" {
		return err
	}
	err = r.store.Again(r.self.Process > 0)
	if err == nil {
		err = r.agree(ctx, nil) // all have released their locks
	}
	if err == nil {
		err = withoutLost(pids, func() error { return r.heldBy(pids) })
	}
	if err == nil && !r.store.Follow {
		err = r.awaitStore(stop)
	}
	if err == nil {
		err = r.beginStore(ctx)
	}
	for _, l := range loops {
		l.kept = -1 // it may have been removed
	}
	return err
}

// longestOutage is how long a new leader waits for object storage. Where a host is lost, more may be.
const longestOutage = 10 * time.Minute

// awaitStore begins to lead uploads, unless the process is asked to stop while the server does not answer.
func (r *run) awaitStore(stop context.Context) error {
	for begin, noted := time.Now(), false; ; noted = true {
		err := r.store.Begin(context.WithoutCancel(stop))
		if err == nil || input.IsInput(err) || errors.Is(err, vfs.ErrLocked) || time.Since(begin) > longestOutage {
			return err
		}
		if !noted {
			r.observers.Warn(fmt.Sprintf("%v; training waits until it answers", err))
		}
		if input.Sleep(stop, time.Second) != nil {
			return err
		}
	}
}

// heldBy returns an error if one of some processes holds the lock of the folder on disk.
func (r *run) heldBy(pids []int) error {
	err := (vfs.OS{}).Look(filepath.Join(r.store.Local, lockFile))
	if held := (*vfs.Locked)(nil); errors.As(err, &held) && slices.Contains(pids, held.PID) {
		return inUse{r.store.Local, held}
	}
	return nil // Begin reports what else is wrong
}

// badLocal converts an error of the folder on disk to a problem of its key, and returns other
// errors unchanged.
func badLocal(c *spec.Job, err error) error {
	path := ""
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		path = e.Path
	} else if e := (*os.LinkError)(nil); errors.As(err, &e) {
		path = e.Old
	}
	if path == "" || s3.Is(path) || !s3.Is(c.Checkpoint.Dir) {
		return err
	}
	return config.Problems{spec.ProblemOf(c, "checkpoint.local", fmt.Sprintf("%s: checkpoints cannot be saved there: %v", path, input.Cause(err)), "want a folder that can be created and written to")}
}

// diskFull adds advice, the key for another folder, to the error of a save that failed on a full or
// read-only disk. It recognizes errors of other ranks by their text.
func diskFull(c *spec.Job, err error) error {
	causes := []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES}
	if err == nil || !slices.ContainsFunc(causes, func(cause error) bool { return strings.Contains(err.Error(), cause.Error()) }) {
		return err
	}
	key := "checkpoint.dir"
	if s3.Is(c.Checkpoint.Dir) {
		key = "checkpoint.local"
	}
	return fmt.Errorf("%w; make room, or name a folder on another disk with %s", err, key)
}

// flushStore waits until all checkpoints are uploaded, or another process of the run was lost: it may be
// the one that has to upload the rest.
func (r *run) flushStore(ctx context.Context) error {
	if r.store == nil {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-r.self.Ended:
			stop(collective.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err := r.store.Flush(ctx)
	r.gaveUp = err != nil && ctx.Err() == nil
	return err
}

// mostFlush is how long a run that was stopped, or failed, waits for uploads. Tests shorten it.
var mostFlush = 10 * time.Second

// closeStore ends the use of object storage. The run that continues uploads missing files.
func (r *run) closeStore(ended error) {
	if r.store == nil {
		return
	}
	r.newest = s3.Clean(r.given.Checkpoint.Dir) // without the server, the run that continues finds the checkpoint
	if r.store.Offline() {
		r.newest, _ = checkpoint.Resolve(r.given.Checkpoint.Dir, "latest") // empty if there is none
	}
	if (ended != nil || r.stopped) && !r.gaveUp {
		ctx, stop := context.WithTimeoutCause(context.Background(), mostFlush, fmt.Errorf("the uploads take longer than %v", mostFlush))
		defer stop()
		if err := r.store.Flush(ctx); err != nil {
			r.observers.Note(err.Error())
		}
	}
	if err := r.store.Close(); err != nil {
		r.observers.Note(err.Error())
	}
}

// latest returns the checkpoint that --resume latest continues from, "" if there is none. After
// closeStore it does not ask the server, whose failure may have ended the run.
func (r *run) latest() string {
	if r.store != nil {
		return r.newest
	}
	path, _ := checkpoint.Resolve(r.c.Checkpoint.Dir, "latest") // empty if there is none
	return path
}
