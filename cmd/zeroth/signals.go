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

	"zeroth/input"
)

// signalled is the cause of a context that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "stopped by signal: " + s.String() }

// Is makes it a cancellation.
func (s signalled) Is(target error) bool { return target == context.Canceled }

// Patience after the first signal: with a write to an output that nobody reads, and with a
// command that hears the signal, but does something that does not.
const (
	patientWrite = time.Second
	patientWork  = 10 * time.Second
)

// stopping is how the process takes Ctrl-C, SIGTERM and SIGHUP. At first each ends it at
// once; a command that has something to end by itself hears them instead.
type stopping struct {
	mu    sync.Mutex
	hear  func(os.Signal) // nil: the process ends
	first os.Signal       // that was heard; the others change nothing
	stop  chan struct{}   // closed with it
}

// begin begins to hear signals, for one command; end gives them back.
func (s *stopping) begin() (end func()) {
	s.stop = make(chan struct{})
	signals, over := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		for {
			select {
			case sig := <-signals:
				s.take(sig)
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

// take passes the first signal on, or ends the process.
func (s *stopping) take(sig os.Signal) {
	s.mu.Lock()
	if s.hear == nil && s.first == nil {
		quit(exitStopped) // and keeps the lock
	}
	hear, again := s.hear, s.first != nil
	s.first = sig
	s.mu.Unlock()
	if again {
		return
	}
	signal.Ignore(syscall.SIGPIPE) // an output that nobody reads any longer ends nothing
	close(s.stop)
	hear(sig)
}

// by has a function hear the first signal, until release.
func (s *stopping) by(hear func(os.Signal)) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hear = hear
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hear = nil
	}
}

// quit ends the process without its command's consent, which is as safe as a kill.
func quit(code int) {
	input.Abandon()
	os.Exit(code)
}

// untilSignal is a context that ends with the first Ctrl-C, SIGTERM or SIGHUP,
// of which told is told. From then on Ctrl-C ends the process at once; the
// others, which supervisors and closing terminals send in pairs, change nothing
// more. Release gives signals back. If the command has not ended after a while, late is
// called, which may end the process; nil ends it.
func (s *stopping) untilSignal(parent context.Context, told func(), late func(signalled)) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if late == nil {
		late = func(signalled) { quit(exitStopped) }
	}
	var mu sync.Mutex
	var timer *time.Timer
	give := s.by(func(sig os.Signal) {
		signal.Reset(os.Interrupt)
		cancel(signalled{sig})
		mu.Lock()
		timer = time.AfterFunc(patientWork, func() { late(signalled{sig}) })
		mu.Unlock()
		told()
	})
	return ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		give()
		cancel(nil)
	}
}

// stopped is the error of a command that hears signals and leaves nothing to go on from.
func stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errStopped
	}
	return err
}

// output is an output of the command. It keeps the first error, so that no command
// has to look at each line it prints. The processes of a launch share it.
type output struct {
	io.Writer
	stop <-chan struct{} // closed by the first signal
	mu   sync.Mutex      // of each Write
	err  error
	lost bool // a write has not ended, and nothing is written any longer
}

// Write implements io.Writer. It waits for a reader, but after a signal not for long.
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
	text, ends := append([]byte(nil), b...), make(chan end, 1) // what is given up may still be read
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

// outputTo is an output that hears signals. A terminal stays itself, which progress bars
// have to know; it is never full.
func (s *stopping) outputTo(w io.Writer) (io.Writer, *output) {
	o := &output{Writer: w, stop: s.stop}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f, o
	}
	return o, o
}

// afterEcho begins a line of its own for what is told after a terminal has echoed
// ^C: below a bar, which is drawn from the line's begin, in the place of the echo.
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
