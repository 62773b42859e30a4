package launch

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"zeroth/internal/show"
)

// With faults.join, a process that was lost is started again, alone, while the others go on, and joins them
// (ZEROTH_JOIN). If it soon ends again, the next start waits longer, up to longestAgain. The first waits for the others,
// which may end for the same reason: after an error of its own for afterError.

const firstAgain, longestAgain, afterError = 100 * time.Millisecond, 30 * time.Second, time.Second

// lasting is the time after which a process that came back counts as joined.
const lasting = time.Minute

// revives starts the process of an ended child again, soon, if others still go on without it then, and nobody has asked the
// launch to stop. Otherwise that returns the child once more.
func (s *Supervisor) revives(c *child, running int, ends chan *child) bool {
	final := c.final || slices.Contains([]int{ExitInput, ExitDone, ExitLeft}, c.code) || c.code == ExitAlone && !s.mayTrain(c)
	if final || !s.survived || s.Joins == nil || running == 0 || s.done || s.askedToStop() || !s.Joins() {
		return false
	}
	rank := slices.Index(s.children, c)
	if time.Since(c.begun) > lasting {
		c.tries = 0
	}
	wait := min(firstAgain<<min(c.tries, 16), longestAgain)
	if !slices.Contains([]int{-1, ExitAgain, ExitAlone}, c.code) {
		wait = max(wait, afterError)
	}
	go func() {
		runtime.LockOSThread() // Linux ends the process when the thread that started it ends
		defer runtime.UnlockOSThread()
		for until := time.Now().Add(wait); time.Now().Before(until) && s.wants(c); {
			time.Sleep(firstAgain / 2)
		}
		if c.final = !s.wants(c); !c.final {
			s.say(rank, c)
			if next, err := s.again(rank, c); err == nil {
				s.run(next)
				c = next
			}
		}
		ends <- c
	}()
	return true
}

// wants reports whether a process that has ended is to be started again: others may go on, and nobody has asked to stop.
func (s *Supervisor) wants(c *child) bool { return !s.askedToStop() && s.mayTrain(c) }

// say prints why a process ended that is started again.
func (s *Supervisor) say(rank int, c *child) {
	if rank > 0 && c.code > 0 { // process 0 prints its errors itself
		for line := range bytes.Lines(c.errs.kept.Bytes()) {
			fmt.Fprintf(s.Errs, "[%s] %s\n", c.label(rank), show.Escape(string(bytes.TrimRight(line, "\r\n"))))
		}
	}
	fmt.Fprintf(s.Errs, "zeroth: process %s ended (%s): starting it again, to join the others\n", c.label(rank), c.how)
}

// mayTrain reports whether another process may be part of the run: one that runs and has not found itself alone.
func (s *Supervisor) mayTrain(but *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.children, func(c *child) bool { return c != but && !c.alone && !c.over && !c.isStopped() })
}

// isStopped reports whether a process is stopped by a signal.
func (c *child) isStopped() bool {
	state, _ := StateOf(c.cmd.Process.Pid)
	return state == 'T'
}

// StateOf returns the state of a process of this machine as Linux has it: T is stopped by a signal, Z and X have ended.
// It is 0 if there is none, which is fs.ErrNotExist, or on other systems.
func StateOf(pid int) (state byte, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, _ := strings.Cut(string(b), ") "); rest != "" {
		state = rest[0]
	}
	return state, err
}

// onlyStopped reports whether every process that has not ended is stopped by a signal.
func (s *Supervisor) onlyStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(s.children, func(c *child) bool { return !c.over && !c.isStopped() })
}

// again starts the process of a rank again.
func (s *Supervisor) again(rank int, was *child) (c *child, err error) {
	if s.hosts != nil {
		c, err = s.remoteChild(rank, s.start0, "ZEROTH_JOIN="+strings.Join(s.addresses(), ","))
	} else {
		host, _, _ := net.SplitHostPort(s.addr)
		c, err = s.child(rank, s.start0, nil, "ZEROTH_JOIN="+host)
	}
	if err != nil {
		return nil, err
	}
	c.tries, c.begun, c.before = was.tries+1, time.Now(), was.code
	if c.alone = was.code == ExitAlone; c.alone {
		c.before = was.before
	}
	c.cmd.Stdout, c.cmd.Stderr = &labelled{to: s.Out, label: c.label(rank)}, io.Writer(&c.errs)
	if rank == 0 {
		c.cmd.Stderr = io.MultiWriter(s.Errs, &c.errs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = c.cmd.Start(); err == nil {
		s.children[rank] = c
	}
	return c, err
}

// addresses returns where the hosts of the processes reach each other.
func (s *Supervisor) addresses() (all []string) {
	for _, slot := range s.slots {
		if at := s.Remote.rendezvous(slot); !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	return all
}

// endLate ends processes that have been started again: the job has come to its end.
func (s *Supervisor) endLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		if c.tries > 0 && c.ready {
			c.send(syscall.SIGTERM)
		}
	}
}
