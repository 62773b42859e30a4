package input

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Transient is an error that may not come again.
type Transient struct {
	error
	After time.Duration // that the server asks for; 0 if it does not
}

// Again returns err as one that may not come again.
func Again(err error) Transient { return Transient{error: err} }

func (t Transient) Unwrap() error { return t.error }

// Tries is how often Retry calls a function that makes no progress.
const Tries = 6

// Pauses are the times between tries: First, which doubles with every further one up to Longest. Note
// receives the error and the pause.
type Pauses struct {
	First, Longest time.Duration
	Note           func(err error, wait time.Duration)
}

// Retry calls f until it succeeds, fails for good, or fails Tries times without progress with errors
// that are Transient.
func (p Pauses) Retry(ctx context.Context, f func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := f()
		var t Transient
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.As(err, &t) {
			return err
		}
		if progress {
			failed = 0
		}
		if failed++; failed == Tries {
			return fmt.Errorf("%w (tried %d times)", err, Tries)
		}
		wait := min(p.Longest, max(p.First<<(failed-1), t.After))
		p.Note(t.error, wait)
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// Sleep waits, or returns the cause of the end of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// LockFile opens a file, which it creates with its folder if needed, and waits until no other process
// has locked it. It calls waits if another process has. Closing the file releases the lock.
func LockFile(ctx context.Context, path string, waits func()) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	for {
		f, err := OpenOwn(path, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, err
		}
		if err = Lock(f); err == nil {
			if still, err := Still(f, path); err == nil && still {
				return f, nil
			}
		}
		_ = f.Close() // nothing was written
		if err != nil && !errors.Is(err, ErrLocked) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		waits()
		waits = func() {}
		if err := Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
