package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Limits in bytes for the output kept of one program and for all output in log.txt.
const (
	mostOutput = 1 << 20
	mostLog    = 12 << 20
)

// output collects a program's output and writes it to the log at once, so that the log shows what
// a hanging program printed.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	log  *os.File
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := mostOutput - o.text.Len()
	o.text.Write(p[:min(len(p), left)])
	if info, err := o.log.Stat(); left > 0 && err == nil && info.Size() < mostLog {
		_, _ = o.log.Write(p[:min(len(p), left)])
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// output runs a program of the folder or of the machine and returns its standard output and
// error. When ctx ends, the program and all its child processes are ended.
func (s *session) output(ctx context.Context, name string, args ...string) (string, error) {
	if path := filepath.Join(s.dir, name); isFile(path) {
		name = path
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	o := &output{log: s.log}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = o, o, s.patience
	together(cmd)
	fmt.Fprintf(s.log, "$ %s %s\n", name, strings.Join(args, " "))
	if err := cmd.Start(); err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	err := s.ended(ctx, cmd, o, done)
	end(cmd, killed) // remaining child processes
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return o.String(), err
}

// ended waits for a program. When ctx ends, it interrupts the program, then kills it, then
// abandons it.
func (s *session) ended(ctx context.Context, cmd *exec.Cmd, o *output, done chan error) error {
	select {
	case err := <-done:
		if err != nil {
			err = fmt.Errorf("%w: %s", err, lastLine(o.String()))
		}
		return err
	case <-ctx.Done():
	}
	why := context.Cause(ctx)
	if ctx.Err() == context.DeadlineExceeded {
		why = fmt.Errorf("not done within its time limit; it said last: %s", lastLine(o.String()))
	}
	how := interrupted
	if strings.HasSuffix(cmd.Path, ".test") {
		how = traced
	}
	for _, how := range []ending{how, killed} {
		end(cmd, how)
		select {
		case <-done:
			return why
		case <-time.After(s.patience):
		}
	}
	return fmt.Errorf("%w; and it cannot be killed", why)
}

// ending is a way to end a program.
type ending int

const (
	interrupted ending = iota // zeroth reports its measurements so far
	traced                    // Go's tests print the stacks of all goroutines
	killed
)
