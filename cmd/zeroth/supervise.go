package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// childFailed is the exit code of a launch whose processes have said what was
// wrong.
type childFailed int

func (e childFailed) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// supervisor starts the processes of a world and sees them end.
type supervisor struct {
	n, restarts int
	args        []string // of zeroth
	resumes     bool     // args say from where
	token       string
	out, errs   io.Writer

	mu       sync.Mutex
	children []*child
	asked    bool // to stop, by a signal
}

// child is a process.
type child struct {
	cmd  *exec.Cmd
	errs capped // what it complains about
	code int    // -1: ended by a signal
}

// run starts the world, and again while it may.
func (s *supervisor) run() error {
	if s.token = os.Getenv("ZEROTH_TOKEN"); s.token == "" {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		s.token = hex.EncodeToString(b[:])
	}
	signals, done := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(signals, append(slices.Clone(dumpSignals), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)...)
	defer signal.Stop(signals)
	defer close(done)
	go s.pass(signals, done)
	for start := 0; ; start++ {
		code, err := s.once(start)
		switch {
		case err != nil:
			return err
		case code == exitDone:
			return nil
		case s.toStop() || code == exitInput || start == s.restarts:
			return childFailed(code)
		}
		fmt.Fprintf(s.errs, "zeroth: starting again from the last checkpoint, %d of %d\n", start+1, s.restarts)
		if !s.resumes {
			s.args, s.resumes = append(s.args, "--resume", "latest"), true
		}
	}
}

func (s *supervisor) toStop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// pass passes signals on to the processes.
func (s *supervisor) pass(signals chan os.Signal, done chan struct{}) {
	for {
		select {
		case sig := <-signals:
			s.mu.Lock()
			s.asked = s.asked || !slices.Contains(dumpSignals, sig)
			s.mu.Unlock()
			s.signal(sig)
		case <-done:
			return
		}
	}
}

func (s *supervisor) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		_ = c.cmd.Process.Signal(sig) // who has ended needs none
	}
}

// How long processes have, after the first has failed, to end by themselves, which
// takes them parallel.dead_after where one is silent; and then from SIGTERM to
// SIGKILL.
const (
	toEnd  = time.Minute
	toTerm = 10 * time.Second
)

// once starts the processes, sees all of them end and returns the exit code.
func (s *supervisor) once(start int) (code int, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	ends := make(chan *child)
	err = s.start(ln.(*net.TCPListener), start, ends)
	_ = ln.Close() // process 0 has it
	if err != nil {
		s.signal(syscall.SIGKILL)
	}
	s.wait(ends)
	if err != nil {
		return 0, err
	}
	s.complain()
	return s.code(), nil
}

// start starts the processes, from a thread that lives as long as they do: the
// system ends them where it ends.
func (s *supervisor) start(ln *net.TCPListener, start int, ends chan *child) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := ln.File()
	if err != nil {
		return err
	}
	defer f.Close()
	var children []*child
	started, all := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for rank := range s.n {
			c := s.child(exe, rank, start, ln.Addr().String())
			if rank == 0 {
				c.cmd.ExtraFiles = []*os.File{f} // descriptor 3
			}
			if err := c.cmd.Start(); err != nil {
				started <- err
				break
			}
			children = append(children, c)
		}
		if len(children) == s.n {
			started <- nil
		}
		<-all
	}()
	err = <-started
	s.mu.Lock()
	s.children = children
	s.mu.Unlock()
	var running sync.WaitGroup
	for _, c := range children {
		running.Go(func() { c.wait(); ends <- c })
	}
	go func() { running.Wait(); close(all) }()
	return err
}

// child is a process that is not yet started.
func (s *supervisor) child(exe string, rank, start int, addr string) *child {
	c := &child{cmd: exec.Command(exe, s.args...)}
	c.cmd.Env = append(os.Environ(), "ZEROTH_TOKEN="+s.token, "ZEROTH_ADDR="+addr, "ZEROTH_RANK="+strconv.Itoa(rank), "ZEROTH_WORLD_SIZE="+strconv.Itoa(s.n),
		"ZEROTH_LOCAL_RANK="+strconv.Itoa(rank), "ZEROTH_LOCAL_WORLD_SIZE="+strconv.Itoa(s.n), "ZEROTH_RESTART_COUNT="+strconv.Itoa(start))
	c.cmd.Stdout, c.cmd.Stderr = s.out, &c.errs
	if rank == 0 {
		c.cmd.Env = append(c.cmd.Env, "ZEROTH_LISTEN_FD=3")
		c.cmd.Stderr = io.MultiWriter(s.errs, &c.errs)
	}
	c.cmd.SysProcAttr = ownGroup() // Ctrl-C reaches it from here alone
	return c
}

// capped keeps the first of what is written.
type capped struct{ kept bytes.Buffer }

// mostComplaints is the bytes that are kept.
const mostComplaints = 64 << 10

// Write implements io.Writer.
func (c *capped) Write(b []byte) (int, error) {
	c.kept.Write(b[:min(len(b), mostComplaints-c.kept.Len())])
	return len(b), nil
}

func (c *child) wait() {
	_ = c.cmd.Wait() // its state says how it ended
	c.code = c.cmd.ProcessState.ExitCode()
}

// wait sees all processes end. When one has failed the others have a while; where
// those that are left cannot end, because they are stopped, they are ended at once.
func (s *supervisor) wait(ends chan *child) {
	var limit <-chan time.Time
	next := syscall.SIGTERM
	for left := len(s.children); left > 0; {
		select {
		case c := <-ends:
			if left--; c.code == 0 {
				break
			}
			if limit == nil {
				limit = time.After(toEnd)
			}
			if left > 0 && s.onlyStopped() {
				s.signal(syscall.SIGKILL)
			}
		case <-limit:
			s.signal(next)
			next, limit = syscall.SIGKILL, time.After(toTerm)
		}
	}
}

// complain prints what processes had to say that process 0 has not said, each line
// once, with the processes that say it: "[1,3] zeroth: peer 2 lost".
func (s *supervisor) complain() {
	var lines []string
	by := map[string][]string{}
	for rank, c := range s.children {
		for line := range bytes.Lines(c.errs.kept.Bytes()) {
			text := string(bytes.TrimRight(line, "\n"))
			if by[text] == nil {
				lines = append(lines, text)
			}
			by[text] = append(by[text], strconv.Itoa(rank))
		}
	}
	for _, text := range lines {
		if by[text][0] != "0" {
			fmt.Fprintf(s.errs, "[%s] %s\n", strings.Join(by[text], ","), escaped(text))
		}
	}
}

// code is the exit code of all.
func (s *supervisor) code() int {
	code := exitDone
	for _, c := range s.children {
		switch {
		case code == exitInput || c.code == exitInput:
			code = exitInput
		case code == exitAgain || c.code == exitAgain:
			code = exitAgain
		case code == exitDone && c.code < 0:
			code = exitFailure
		case code == exitDone:
			code = c.code
		}
	}
	return code
}
