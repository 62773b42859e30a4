package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"zeroth/input"
)

// Locked is the error of a lock that another holder has. It is ErrLocked.
type Locked struct {
	Name string
	PID  int    // of the holder; 0: it does not say
	Host string // that it runs on
}

func (l *Locked) Error() string {
	if l.PID == 0 {
		return fmt.Sprintf("%s: %v", l.Name, ErrLocked)
	}
	return fmt.Sprintf("%s: %v, %s", l.Name, ErrLocked, l.Holder())
}

// Is makes it ErrLocked.
func (l *Locked) Is(target error) bool { return target == ErrLocked }

// Holder is the process that has the lock, in words.
func (l *Locked) Holder() string {
	if l.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d on host %q", l.PID, l.Host)
}

// lockForm is what a lock file has: who locked it last.
const lockForm = "pid %d host %s\n"

// maxLock is the most bytes a lock file has. A longer file is no lock of ours,
// and is not written to.
const maxLock = 512

// Lock implements FS. The file stays when the lock ends; whoever has the lock
// may remove it, which one who opened it before then notices.
func (OS) Lock(name string) (io.Closer, error) {
	for {
		f, err := openLock(name)
		if err != nil {
			return nil, err
		}
		ours := false
		if err = input.Lock(f); err == nil {
			ours, err = input.Still(f, name)
		} else if !errors.Is(err, ErrLocked) {
			err = fmt.Errorf("lock %s: %w", name, err)
		}
		if ours {
			sign(f)
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

// openLock opens a lock file, made if need be, and nothing else that has its
// name: it will be written to.
func openLock(name string) (*os.File, error) {
	f, err := input.OpenOwn(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > maxLock {
		err = fmt.Errorf("%s: is no lock file of ours: move it away", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sign writes down who has the lock. On a full disk nothing is written, and the
// lock is as good.
func sign(f *os.File) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprintf(io.NewOffsetWriter(f, 0), lockForm, os.Getpid(), host)
}

// holder is the error that names who has a lock.
func holder(f *os.File, name string) error {
	l, b := &Locked{Name: name}, make([]byte, maxLock)
	n, _ := f.ReadAt(b, 0) // io.EOF, as a rule
	if _, err := fmt.Sscanf(string(b[:n]), lockForm, &l.PID, &l.Host); err != nil {
		return &Locked{Name: name} // it is about to write
	}
	return l
}
