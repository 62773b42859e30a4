package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"zeroth/internal/input"
)

// Locked reports that someone else holds a lock. errors.Is matches it to ErrLocked.
type Locked struct {
	Name string
	PID  int    // of the holder; 0 if unknown
	Host string // of the holder
}

func (l *Locked) Error() string {
	if l.PID == 0 {
		return fmt.Sprintf("%s: %v", l.Name, ErrLocked)
	}
	return fmt.Sprintf("%s: %v, %s", l.Name, ErrLocked, l.Holder())
}

// Is reports whether target is ErrLocked.
func (l *Locked) Is(target error) bool { return target == ErrLocked }

// Holder describes the process that holds the lock.
func (l *Locked) Holder() string {
	if l.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d on host %q", l.PID, l.Host)
}

// lockForm is the content of a lock file: its last holder.
const lockForm = "pid %d host %s\n"

// maxLock is the maximum size of a lock file in bytes. A longer file is not one of our lock
// files and is not written to.
const maxLock = 512

// Lock implements FS. The file stays when the lock is released. If the holder removes it, processes
// that opened it earlier notice.
func (OS) Lock(name string) (io.Closer, error) {
	for {
		f, err := openLock(name)
		if err != nil {
			return nil, err
		}
		acquired := false
		if err = lockPatiently(f); err == nil {
			acquired, err = input.Still(f, name)
		} else if !errors.Is(err, ErrLocked) {
			err = fmt.Errorf("lock %s: %w", name, err)
		}
		if acquired {
			writeHolder(f)
			return f, nil
		}
		if errors.Is(err, ErrLocked) {
			err = holder(f, name)
		}
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return nil, err
		}
	}
}

// patience is how long Lock waits for a Look to end, which takes microseconds.
const patience = 50 * time.Millisecond

// lockPatiently locks a file. It gives up if the file stays locked for longer than a Look takes.
func lockPatiently(f *os.File) error {
	for end := time.Now().Add(patience); ; time.Sleep(patience / 10) {
		if err := input.Lock(f); !errors.Is(err, ErrLocked) || time.Now().After(end) {
			return err
		}
	}
}

// Look returns a *Locked if someone holds a lock, otherwise nil. It writes nothing and makes no
// other process's Lock fail.
func (OS) Look(name string) error {
	f, err := input.OpenOwn(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err = input.Look(f); errors.Is(err, ErrLocked) {
		err = holder(f, name)
	}
	return err
}

// openLock opens a lock file, creating it if needed. It refuses anything else with that name,
// because the file will be written to.
func openLock(name string) (*os.File, error) {
	f, err := input.OpenOwn(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > maxLock {
		err = fmt.Errorf("%s: is not one of our lock files: move it away", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeHolder writes the holder to the lock file. If the disk is full nothing is written, but
// the lock is still valid.
func writeHolder(f *os.File) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprintf(io.NewOffsetWriter(f, 0), lockForm, os.Getpid(), host)
}

// holder returns an error naming the holder of a lock.
func holder(f *os.File, name string) error {
	l, b := &Locked{Name: name}, make([]byte, maxLock)
	n, _ := f.ReadAt(b, 0) // usually io.EOF
	if _, err := fmt.Sscanf(string(b[:n]), lockForm, &l.PID, &l.Host); err != nil {
		return &Locked{Name: name} // the holder has not written yet
	}
	return l
}
