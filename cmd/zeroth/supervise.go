package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
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

	"zeroth/job/show"
)

// childFailed is the exit code of a launch whose processes have said what was
// wrong.
type childFailed int

func (e childFailed) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// supervisor starts the processes of a world and sees them end.
type supervisor struct {
	command
	restarts  int
	least     int   // ranks to go on with; 0: all processes
	slots     []int // of processes that are started, from 0 to n - 1 at first; their local ranks
	n         int   // of slots at first
	token     string
	out, errs io.Writer

	mu       sync.Mutex
	children []*child // by rank; process r is of slot slots[r]
	asked    bool     // to stop, by a signal
	byHand   bool     // by Ctrl-C
}

// newSupervisor is for n processes.
func newSupervisor(n int, c command) *supervisor {
	s := &supervisor{command: c, n: n}
	for slot := range n {
		s.slots = append(s.slots, slot)
	}
	return s
}

// child is a process.
type child struct {
	cmd   *exec.Cmd
	errs  capped // what it complains about
	put   bool   // an end to, by the supervisor
	code  int    // -1: ended by a signal
	ended int    // after how many others
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
	failed := -1 // slot that ended the start before
	for start := 0; ; start++ {
		code, err := s.once(start)
		switch {
		case err != nil:
			return err
		case code == exitDone:
			return nil
		case s.interrupted():
			return errStopped // whatever its processes made of it, which hear of it one after the other
		case s.toStop() || code == exitInput && len(s.slots) == s.n || start == s.restarts:
			return childFailed(code)
		}
		slot := s.blamed()
		left := s.slots
		switch {
		case s.least > 0 && slot >= 0 && slot == failed:
			left = slices.DeleteFunc(slices.Clone(left), func(other int) bool { return other == slot })
		case code == exitInput: // the job cannot be run by so many, and they have said why
			left = left[:len(left)-1]
		}
		if s.slots, err = s.able(left); err != nil {
			fmt.Fprintf(s.errs, "zeroth: not starting again: %s\n", show.Escape(err.Error()))
			return childFailed(code)
		}
		if failed = slot; len(s.slots) < s.n {
			failed = -1
			fmt.Fprintf(s.errs, "zeroth: going on with %d of %d processes\n", len(s.slots), s.n)
		}
		fmt.Fprintf(s.errs, "zeroth: starting again from the last checkpoint, %d of %d\n", start+1, s.restarts)
		if !s.resumes {
			s.args, s.resumes = append(s.args, "--resume", "latest"), true
		}
	}
}

// blamed is the slot of the process that ended the world: the first that did so by
// itself, not because of others; -1 where there is none.
func (s *supervisor) blamed() int {
	slot, first := -1, len(s.children)
	for rank, c := range s.children {
		if c.code != exitDone && c.code != exitAgain && c.ended < first {
			slot, first = s.slots[rank], c.ended
		}
	}
	return slot
}

// able is as many of the slots that are left as the job can be run by, which is all
// of them where none has been left out.
func (s *supervisor) able(left []int) ([]int, error) {
	var wrong error
	for n := len(left); n > 0 && len(left) < s.n; n-- {
		ranks, err := s.ranks(n)
		if err == nil && ranks < s.least {
			return nil, errors.Join(fmt.Errorf("%d processes are left, which is %d ranks, and --min-ranks is %d", n, ranks, s.least), wrong)
		}
		if err == nil {
			return left[:n], nil
		}
		wrong = cmp.Or(wrong, err)
	}
	if len(left) == s.n {
		return left, nil
	}
	return nil, errors.Join(errors.New("the job cannot be run by fewer processes"), wrong)
}

// interrupted reports whether Ctrl-C asked the launch to stop.
func (s *supervisor) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byHand
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
			ask := !slices.Contains(dumpSignals, sig)
			s.mu.Lock()
			s.asked, s.byHand = s.asked || ask, s.byHand || sig == os.Interrupt
			s.mu.Unlock()
			s.signal(sig)
			if ask {
				s.signal(wake)
			}
		case <-done:
			return
		}
	}
}

func (s *supervisor) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		if err := c.cmd.Process.Signal(sig); err == nil && sig == syscall.SIGKILL { // who has ended needs none
			c.put = true
		}
	}
}

// How long processes have, after the first has failed, until SIGTERM, which ends those
// that still wait for all to come, and changes nothing for others; and from there to
// SIGKILL: where one is silent it takes them parallel.dead_after to end by themselves.
const (
	toTerm = 3 * time.Second
	toEnd  = time.Minute
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
		for rank := range s.slots {
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
		if len(children) == len(s.slots) {
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
	c.cmd.Env = append(os.Environ(), "ZEROTH_TOKEN="+s.token, "ZEROTH_ADDR="+addr, "ZEROTH_RANK="+strconv.Itoa(rank), "ZEROTH_WORLD_SIZE="+strconv.Itoa(len(s.slots)),
		"ZEROTH_LOCAL_RANK="+strconv.Itoa(s.slots[rank]), "ZEROTH_LOCAL_WORLD_SIZE="+strconv.Itoa(s.n), "ZEROTH_RESTART_COUNT="+strconv.Itoa(start))
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
			c.ended = len(s.children) - left
			if left--; c.code == 0 {
				break
			}
			if limit == nil {
				limit = time.After(toTerm)
			}
			if left > 0 && s.onlyStopped() {
				s.signal(syscall.SIGKILL)
			}
		case <-limit:
			s.signal(next)
			next, limit = syscall.SIGKILL, time.After(toEnd)
		}
	}
}

// complain prints what processes had to say that process 0 has not said, each line
// once, with the processes that say it: "[1,3] zeroth: peer 2 lost"; and which ones a
// signal of somebody else's has ended.
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
			fmt.Fprintf(s.errs, "[%s] %s\n", strings.Join(by[text], ","), show.Escape(text))
		}
	}
	for rank, c := range s.children {
		switch how := c.cmd.ProcessState.String(); {
		case c.code >= 0: // it said why itself
		case c.put:
			fmt.Fprintf(s.errs, "zeroth: process %d of %d did not end by itself and was killed\n", rank, len(s.children))
		case how == "signal: killed":
			fmt.Fprintf(s.errs, "zeroth: process %d of %d was ended by a %s, which the system also sends when memory runs out\n", rank, len(s.children), how)
		default:
			fmt.Fprintf(s.errs, "zeroth: process %d of %d was ended by a %s\n", rank, len(s.children), how)
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
