package launch

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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"zeroth/internal/show"
)

// Exit codes of a process, from which a supervisor decides what follows.
const (
	ExitDone    = 0
	ExitFailure = 1
	ExitInput   = 2
	ExitAlone   = 68 // EX_NOHOST: a process that comes back finds nobody to join
	ExitLeft    = 69 // EX_UNAVAILABLE: the others go on without the process, which is slow
	ExitAgain   = 75 // EX_TEMPFAIL: a restart may help
)

// MaxProcesses bounds the processes of a supervisor.
const MaxProcesses = 4096

// ErrInterrupted reports that Ctrl-C ended the processes.
var ErrInterrupted = errors.New("stopped by Ctrl-C")

// Failed is the exit code of processes that have already printed their errors.
type Failed int

func (e Failed) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Supervisor starts the processes of a world, waits for them, and restarts them. Its exported fields
// must be set before Run.
type Supervisor struct {
	Args     []string                         // of zeroth, for every process
	Resumes  bool                             // Args contain --resume
	Ranks    func(processes int) (int, error) // of the job in a number of processes
	Survives func() bool                      // the job goes on without a process that was lost; nil: it does not
	Joins    func() bool                      // likewise, processes that were lost join the others again; nil: they do not
	Saved    func() bool                      // there is a checkpoint to continue from; nil: none is made
	Restarts int
	MinRanks int // fewest ranks to continue with; 0 needs all processes
	Out      io.Writer
	Errs     io.Writer

	Remote
	slots  []int    // local ranks of the processes to start: 0 to n - 1, without those left out
	n      int      // processes of the first start
	bad    []int    // slots left out because they failed twice
	silent []string // hosts left out because they did not answer
	token  string
	runID  string // of a start on other hosts
	addr   string // of process 0 of a start on this machine
	start0 int    // number of the start
	done   bool   // a process has come to the end of the job

	mu       sync.Mutex
	children []*child  // by rank; children[r] has slots[r]
	survived bool      // the job goes on without a process of this start that was lost
	asked    os.Signal // the signal that asked the launch to stop, or nil
	regained bool      // a host that was left out answers again
}

// New returns a supervisor of n processes: those of remote's hosts or, without hosts, of this machine.
func New(n int, r Remote) *Supervisor {
	s := &Supervisor{Remote: r, n: n}
	for slot := range n {
		s.slots = append(s.slots, slot)
	}
	return s
}

// child is a process of the world.
type child struct {
	cmd    *exec.Cmd
	host   string         // empty: this machine; otherwise cmd is ssh
	order  []byte         // first input of the host's agent
	orders io.WriteCloser // to the agent
	ready  bool           // it has its order and gets signals; guarded by the supervisor's mu
	errs   capped         // its standard error
	killed bool           // by the supervisor
	code   int            // exit code; -1 if a signal or a lost connection ended it
	how    string         // describes how it ended
	begun  time.Time
	tries  int  // how often the process has been started again
	before int  // exit code of the last start before those that found nobody to join
	alone  bool // the start before this one found nobody to join
	over   bool // wait knows that it has ended; guarded by the supervisor's mu
	final  bool // it is not started again
	ended  int  // how many children ended before it
}

// Run starts the world, and restarts it after failures. The error is Failed if processes failed.
func (s *Supervisor) Run() error {
	if s.token = os.Getenv("ZEROTH_TOKEN"); s.token == "" {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		s.token = hex.EncodeToString(b[:])
	}
	failed := -1 // slot that ended the previous start
	for start := 0; ; start++ {
		code, err := s.once(start)
		switch {
		case err != nil:
			return err
		case code == ExitDone:
			return nil
		case s.interrupted():
			return ErrInterrupted // whatever the exit codes: processes get the signal one after the other
		case s.askedToStop() || code == ExitInput && (len(s.slots) == s.n || s.hosts != nil) || start == s.Restarts && !s.hasRegained():
			return Failed(code)
		}
		if s.hasRegained() {
			s.Restarts++ // this restart does not count
			s.mu.Lock()
			s.regained = false
			s.mu.Unlock()
		}
		slot := s.culprit()
		slots := s.slots
		switch {
		case s.MinRanks > 0 && slot >= 0 && slot == failed:
			slots = slices.DeleteFunc(slices.Clone(slots), func(other int) bool { return other == slot })
			s.bad = append(s.bad, slot)
		case code == ExitInput: // the job cannot use this many processes, as they have reported
			slots = slots[:len(slots)-1]
		}
		if s.hosts != nil {
			slots, err = s.reachable()
		}
		if err == nil {
			s.slots, err = s.usable(slots)
		}
		if s.askedToStop() {
			return Failed(code)
		}
		if err != nil {
			fmt.Fprintf(s.Errs, "zeroth: not restarting: %s\n", show.Escape(err.Error()))
			return Failed(code)
		}
		if failed = slot; len(s.slots) < s.n {
			failed = -1
			fmt.Fprintf(s.Errs, "zeroth: continuing with %d of %d processes\n", len(s.slots), s.n)
		}
		fmt.Fprintf(s.Errs, "zeroth: restarting from the last checkpoint, restart %d of %d\n", start+1, s.Restarts)
		if !s.Resumes {
			s.Args, s.Resumes = append(s.Args, "--resume", "latest"), true
		}
	}
}

// reachable returns the slots of the hosts that answer, without those that failed twice, and
// remembers the other hosts. If all processes are needed, it waits for hosts that do not answer.
func (s *Supervisor) reachable() ([]int, error) {
	slots, silent, why := s.answering()
	said := ""
	for until := time.Now().Add(s.patience); silent != nil && s.MinRanks == 0; slots, silent, why = s.answering() {
		names := strings.Join(silent, ", ")
		if s.askedToStop() || time.Now().After(until) {
			return nil, fmt.Errorf("hosts that do not answer: %s; --min-ranks continues without them\n%w", names, why)
		}
		if said != names {
			fmt.Fprintln(s.Errs, "zeroth: waiting for hosts that do not answer:", names)
		}
		said = names
		time.Sleep(time.Second)
	}
	if s.silent = silent; silent != nil {
		fmt.Fprintf(s.Errs, "zeroth: continuing without hosts that do not answer: %s\n%s\n", strings.Join(silent, ", "), show.Escape(why.Error()))
	}
	return slices.DeleteFunc(slots, func(slot int) bool { return slices.Contains(s.bad, slot) }), nil
}

// longestLook is the maximum time between two attempts to reach a host that does not answer.
const longestLook = 10 * time.Minute

// regain waits until a host that did not answer does so again. Then it makes the processes save
// and end, so that the next start uses the host. It looks less and less often, and gives up when done is
// closed.
func (s *Supervisor) regain(done chan struct{}, after func(time.Duration) <-chan time.Time) {
	for wait := 2 * answerTime; len(s.silent) > 0; wait = min(2*wait, longestLook) {
		select {
		case <-done:
			return
		case <-after(wait):
		}
		for _, h := range s.hosts {
			if !slices.Contains(s.silent, h.name) || s.answers(h) != nil {
				continue
			}
			s.mu.Lock()
			select {
			case <-done: // the processes have ended meanwhile
			default:
				s.regained = true
			}
			s.mu.Unlock()
			if s.hasRegained() {
				fmt.Fprintf(s.Errs, "zeroth: host %s answers again: stopping, to continue with it\n", h.name)
				s.signal(syscall.SIGTERM)
			}
			return
		}
	}
}

// culprit returns the slot of the first process that failed by itself, not because it lost
// another, or -1.
func (s *Supervisor) culprit() int {
	slot, first := -1, len(s.children)
	for rank, c := range s.children {
		if !slices.Contains([]int{ExitDone, ExitAgain, ExitLeft, ExitAlone}, c.code) && c.ended < first {
			slot, first = s.slots[rank], c.ended
		}
	}
	return slot
}

// usable returns the largest prefix of slots whose length the job can use as its number of
// processes. If no process was left out, that is all of them.
func (s *Supervisor) usable(slots []int) ([]int, error) {
	var wrong error
	for n := len(slots); n > 0 && len(slots) < s.n; n-- {
		ranks, err := s.Ranks(n)
		if err == nil && ranks < s.MinRanks {
			return nil, errors.Join(fmt.Errorf("the remaining %d processes have %d ranks, fewer than --min-ranks %d", n, ranks, s.MinRanks), wrong)
		}
		if err == nil {
			return slots[:n], nil
		}
		wrong = cmp.Or(wrong, err)
	}
	if len(slots) == s.n {
		return slots, nil
	}
	return nil, errors.Join(errors.New("the job cannot use fewer processes"), wrong)
}

// interrupted reports whether Ctrl-C asked the launch to stop.
func (s *Supervisor) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked == os.Interrupt
}

// askedToStop reports whether a signal asked the launch to stop.
func (s *Supervisor) askedToStop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked != nil
}

// hasRegained reports whether the processes were stopped because a host answers again.
func (s *Supervisor) hasRegained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.regained
}

// Pass passes a signal on to all processes, also to those that start later.
func (s *Supervisor) Pass(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(sig)
	if slices.Contains(DumpSignals, sig) {
		return
	}
	s.send(wake)
	if s.asked != os.Interrupt {
		s.asked = sig
	}
}

// signal sends a signal to all processes.
func (s *Supervisor) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(sig)
}

// send is signal for callers that hold mu.
func (s *Supervisor) send(sig os.Signal) {
	for _, c := range s.children {
		if c.ready || sig == syscall.SIGKILL {
			c.send(sig)
		}
	}
}

// send sends a signal to the process.
func (c *child) send(sig os.Signal) {
	if c.orders != nil && sig != syscall.SIGKILL {
		n, _ := sig.(syscall.Signal)
		_, _ = fmt.Fprintf(c.orders, "%d\n", n) // an error means that it has ended
		return
	}
	if err := c.cmd.Process.Signal(sig); err == nil && sig == syscall.SIGKILL { // of ssh: its agent kills the process
		c.killed = true
	}
}

// After the first failure, processes get SIGTERM after termDelay, which ends those that
// still wait for others to join, and SIGKILL killDelay later. Between the two, survivors of
// a silent process need parallel.dead_after to end by themselves.
const (
	termDelay = 3 * time.Second
	killDelay = time.Minute
)

// once starts the processes, waits for all of them and returns the exit code.
func (s *Supervisor) once(start int) (code int, err error) {
	s.survived, s.done, s.start0 = false, false, start
	ends, done := make(chan *child), make(chan struct{})
	defer func() {
		s.mu.Lock()
		close(done)
		s.mu.Unlock()
	}()
	if s.hosts != nil {
		s.runID = rand.Text()
		err = s.start(nil, start, ends)
		go s.regain(done, time.After)
	} else {
		var ln net.Listener
		if ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return 0, err
		}
		s.addr = ln.Addr().String()
		err = s.start(ln.(*net.TCPListener), start, ends)
		_ = ln.Close() // process 0 has inherited it
	}
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

// start starts the processes from a thread that lives as long as they do, because Linux
// ends a process when the thread that started it ends (Pdeathsig). On this machine process 0
// inherits ln.
func (s *Supervisor) start(ln *net.TCPListener, start int, ends chan *child) error {
	planned := make([]*child, len(s.slots))
	for rank := range s.slots {
		var err error
		if s.hosts != nil {
			planned[rank], err = s.remoteChild(rank, start)
		} else {
			planned[rank], err = s.child(rank, start, ln)
		}
		if err != nil {
			return err
		}
	}
	var children []*child
	started, all := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for rank, c := range planned {
			c.cmd.Stdout, c.cmd.Stderr = &labelled{to: s.Out, label: c.label(rank)}, &c.errs
			if rank == 0 {
				c.cmd.Stdout, c.cmd.Stderr = s.Out, io.MultiWriter(s.Errs, &c.errs)
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
	err := <-started
	if ln != nil && planned[0].cmd.ExtraFiles != nil {
		_ = planned[0].cmd.ExtraFiles[0].Close() // process 0 has its own
	}
	s.mu.Lock()
	s.children = children
	s.mu.Unlock()
	var running sync.WaitGroup
	for _, c := range children {
		running.Go(func() {
			s.run(c)
			ends <- c
		})
	}
	go func() { running.Wait(); close(all) }()
	return err
}

// run waits for a started process, and gives it its order and signals.
func (s *Supervisor) run(c *child) {
	if c.orders != nil {
		_, _ = c.orders.Write(c.order) // an error means that ssh has ended
	}
	s.mu.Lock()
	if c.ready = true; s.asked != nil {
		c.send(s.asked)
	}
	s.mu.Unlock()
	c.wait()
	if out, ok := c.cmd.Stdout.(*labelled); ok {
		out.end()
	}
}

// child returns a process on this machine that is not started yet.
func (s *Supervisor) child(rank, start int, ln *net.TCPListener, more ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe, s.Args...)}
	c.cmd.Env = append(os.Environ(), "ZEROTH_TOKEN="+s.token, "ZEROTH_ADDR="+s.addr, "ZEROTH_RANK="+strconv.Itoa(rank), "ZEROTH_WORLD_SIZE="+strconv.Itoa(len(s.slots)),
		"ZEROTH_LOCAL_RANK="+strconv.Itoa(s.slots[rank]), "ZEROTH_LOCAL_WORLD_SIZE="+strconv.Itoa(s.n), "ZEROTH_RESTART_COUNT="+strconv.Itoa(start))
	c.cmd.Env = append(c.cmd.Env, more...)
	if rank == 0 && ln != nil {
		c.cmd.Env = append(c.cmd.Env, "ZEROTH_LISTEN_FD=3")
		f, err := ln.File()
		if err != nil {
			return nil, err
		}
		c.cmd.ExtraFiles = []*os.File{f} // descriptor 3
	}
	c.cmd.SysProcAttr = ownGroup() // Ctrl-C reaches it only through the supervisor
	return c, nil
}

// capped is a writer that keeps only the first 64 KiB.
type capped struct{ kept bytes.Buffer }

// Write implements io.Writer and never fails.
func (c *capped) Write(b []byte) (int, error) {
	c.kept.Write(b[:min(len(b), 64<<10-c.kept.Len())])
	return len(b), nil
}

// sshFailed is ssh's exit code if it failed itself.
const sshFailed = 255

func (c *child) wait() {
	_ = c.cmd.Wait() // ProcessState says how it ended
	c.code, c.how = c.cmd.ProcessState.ExitCode(), c.cmd.ProcessState.String()
	switch {
	case c.host != "" && c.code == sshFailed:
		c.code, c.how = -1, "a lost connection"
	case c.host != "" && c.code > bySignal:
		c.how = "signal: " + syscall.Signal(c.code-bySignal).String()
		c.code = -1
	}
}

// wait waits for all processes. After one has failed, the others have termDelay and
// killDelay to end, unless the job goes on without it; if the remaining ones are all stopped
// (SIGSTOP), they are killed at once.
func (s *Supervisor) wait(ends chan *child) {
	var limit <-chan time.Time
	next := syscall.SIGTERM
	for running := len(s.children); running > 0; {
		select {
		case c := <-ends:
			s.ends(c, len(s.children)-running)
			running--
			if c.ended == 0 {
				s.survived = s.Survives != nil && s.Survives()
			}
			if s.done = s.done || c.code == ExitDone; limit == nil && s.revives(c, running, ends) {
				running++
				continue
			}
			if s.done && limit == nil && running > 0 && s.survived && s.Joins != nil && s.Joins() { // some may still try to join
				limit = time.After(termDelay)
			}
			if c.code != 0 && (!s.survived || c.code == ExitInput && c.tries == 0) && limit == nil {
				limit = time.After(termDelay)
			}
			if (c.code != 0 || s.survived) && running > 0 && s.onlyStopped() {
				s.signal(syscall.SIGKILL)
			}
		case <-limit:
			if s.done && s.survived { // those that have joined write their results meanwhile
				s.endLate()
				limit = nil
				continue
			}
			s.signal(next)
			next, limit = syscall.SIGKILL, time.After(killDelay)
		}
	}
}

// ends records that a process has ended, as one of the children that are over.
func (s *Supervisor) ends(c *child, before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.over {
		c.ended, c.over = before, true
	}
}

// label names a process in the output: its number and, if that is not this machine, its host.
func (c *child) label(rank int) string {
	if c.host == "" {
		return strconv.Itoa(rank)
	}
	return fmt.Sprintf("%d on %s", rank, c.host)
}

// labelled is a writer that begins every line with the process that printed it, as in
// "[3 on node2] step 7".
type labelled struct {
	to    io.Writer
	label string
	line  []byte // unfinished
}

// longestLine is the number of bytes after which a line is broken.
const longestLine = 64 << 10

// Write implements io.Writer. It keeps an unfinished line until the rest comes, or until end.
func (l *labelled) Write(b []byte) (int, error) {
	l.line = append(l.line, b...)
	for {
		n := bytes.IndexByte(l.line, '\n')
		if n < 0 && len(l.line) < longestLine {
			return len(b), nil
		}
		if n < 0 {
			n = longestLine
		}
		if _, err := fmt.Fprintf(l.to, "[%s] %s\n", l.label, l.line[:n]); err != nil {
			return 0, err
		}
		l.line = bytes.TrimPrefix(l.line[n:], []byte("\n"))
	}
}

// end writes an unfinished line.
func (l *labelled) end() {
	if len(l.line) > 0 {
		_, _ = l.Write([]byte("\n")) // an error of the launch's own output
	}
}
