package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"zeroth/internal/input"
)

// signalled is the cause of a context that a signal cancelled.
type signalled struct{ os.Signal }

// signalNames are the names people know; os.Signal has others, such as "terminated".
var signalNames = map[os.Signal]string{os.Interrupt: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP"}

func (s signalled) Error() string { return "stopped by " + signalNames[s.Signal] }

// Is reports that the cause is a cancellation.
func (s signalled) Is(target error) bool { return target == context.Canceled }

// How long to wait after the first signal: for a write to an output that nobody reads, and
// for a command to end by itself.
// Tests shorten patientWork.
const patientWrite = time.Second

var patientWork = 10 * time.Second

// stopping handles Ctrl-C, SIGTERM and SIGHUP. By default each ends the process at once; a
// command that must end in its own way handles them instead.
type stopping struct {
	mu      sync.Mutex
	handler func(os.Signal) // of the running command; nil ends the process
	first   os.Signal       // first signal; later ones are ignored
	stop    chan struct{}   // closed by the first signal
}

// begin starts handling signals for one command; end stops.
func (s *stopping) begin() (end func()) {
	s.stop = make(chan struct{})
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		all = append(all, syscall.SIGHUP)
	}
	return onSignals(s.deliver, all...)
}

// onSignals calls f with each of some signals, one after the other, until end is called.
func onSignals(f func(os.Signal), some ...os.Signal) (end func()) {
	signals, over := make(chan os.Signal, 8), make(chan struct{})
	if len(some) > 0 {
		signal.Notify(signals, some...)
	}
	go func() {
		for {
			select {
			case sig := <-signals:
				f(sig)
			case <-over:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(over)
	}
}

// deliver passes the first signal to the handler, or ends the process.
func (s *stopping) deliver(sig os.Signal) {
	s.mu.Lock()
	if s.handler == nil && s.first == nil {
		quit(exitStopped) // still holding the lock
	}
	handler, again := s.handler, s.first != nil
	s.first = sig
	s.mu.Unlock()
	if again {
		return
	}
	signal.Ignore(syscall.SIGPIPE) // a closed output must not end the process
	close(s.stop)
	handler(sig)
}

// handle sets the handler of the first signal until release is called.
func (s *stopping) handle(handler func(os.Signal)) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = handler
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handler = nil
	}
}

// quit ends the process at once, which is as safe as a kill.
func quit(code int) {
	input.Abandon()
	os.Exit(code)
}

// untilSignal returns a context that is cancelled by the first Ctrl-C, SIGTERM or SIGHUP,
// before onSignal is called. From then on Ctrl-C ends the process at once; the other
// signals, which supervisors and closing terminals send in pairs, are ignored. If the
// command has not ended after 10 seconds, late is called, which may end the process; a nil
// late ends it. The caller must call release.
func (s *stopping) untilSignal(parent context.Context, onSignal func(), late func(signalled)) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if late == nil {
		late = func(signalled) { quit(exitStopped) }
	}
	var mu sync.Mutex
	var timer *time.Timer
	release = s.handle(func(sig os.Signal) {
		signal.Reset(os.Interrupt)
		cancel(signalled{sig})
		mu.Lock()
		timer = time.AfterFunc(patientWork, func() { late(signalled{sig}) })
		mu.Unlock()
		onSignal()
	})
	restore := release
	return ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		restore()
		cancel(nil)
	}
}

// stopped returns errStopped if the command ended because of a signal.
func stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errStopped
	}
	return err
}

// output is standard output or error. It records the first error, so that commands need
// not check every line they print. The processes of a launch share it.
type output struct {
	io.Writer
	stop <-chan struct{} // closed by the first signal
	mu   sync.Mutex      // of each Write
	err  error
	lost bool // a write did not return after a signal; later ones are dropped
}

// Write waits for a reader, after a signal only for a second.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost {
		return len(b), nil
	}
	type end struct {
		n   int
		err error
	}
	text, ends := append([]byte(nil), b...), make(chan end, 1) // an abandoned write may still read it
	go func() {
		n, err := o.Writer.Write(text)
		ends <- end{n, err}
	}()
	late := o.stop
	for {
		select {
		case e := <-ends:
			o.err = cmp.Or(o.err, e.err)
			return e.n, e.err
		case <-late:
			if late != o.stop {
				o.lost = true
				return len(b), nil
			}
			over := make(chan struct{})
			time.AfterFunc(patientWrite, func() { close(over) })
			late = over
		}
	}
}

// outputTo returns the output for w. A terminal is returned as it is, because progress
// bars need it and it never blocks for long.
func (s *stopping) outputTo(w io.Writer) (io.Writer, *output) {
	o := &output{Writer: w, stop: s.stop}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f, o
	}
	return o, o
}

// afterEcho moves to a clean line after a terminal has echoed ^C.
func afterEcho(w io.Writer) {
	f, ok := w.(*os.File)
	switch {
	case !ok || !term.IsTerminal(int(f.Fd())):
	case os.Getenv("TERM") == "dumb":
		fmt.Fprintln(f)
	default:
		fmt.Fprint(f, "\r\x1b[K")
	}
}
