package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"zeroth/job/config"
	"zeroth/job/report"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/job/watch"
)

// publish begins to serve the run's page, on process 0, if the job asks for it.
func (r *run) publish(context.Context) (err error) {
	c := r.c.Report
	if c.Listen == "" || r.self.Process > 0 {
		return nil
	}
	r.watch = watch.NewState(r.Out)
	r.server, err = watch.Open(watch.Options{Listen: c.Listen, TokenFile: c.TokenFile, Folder: r.Out, Stall: c.Stall, State: r.watch, Save: r.saveSoon, Trace: r.traceSoon})
	if err != nil {
		hint := "want an address of this machine with a free port, such as 127.0.0.1:0"
		if strings.HasPrefix(c.Listen, "unix:") {
			hint = "want unix: and a path of at most 107 bytes in a folder that exists"
		}
		return config.Problems{config.ProblemOf(r.c, "report.listen", err.Error(), hint)}
	}
	r.Observer = report.Observers{r.Observer, r.watch}
	r.Observer.Note("live page: " + r.server.String())
	return nil
}

// asks are what clients of the server have asked for, which ranks look at between steps.
type asks struct {
	at    atomic.Int64 // steps that rank 0 has done, since training began
	ranks atomic.Int64 // of this process; 0 before training
	save  atomic.Bool

	mu    sync.Mutex // of asking for a trace
	trace atomic.Pointer[traceAsk]
}

// traceAsk asks for a trace of some steps.
type traceAsk struct {
	from, to int              // the first step and the last
	got      chan *sim.Sample // capacity: one of each rank of this process
}

// saveSoon asks for a checkpoint after the step that is under way.
func (r *run) saveSoon() error {
	if !setup.Saves(r.c) {
		return errors.New("this job saves no checkpoints; set checkpoint.every or checkpoint.save_on_exit")
	}
	r.asks.save.Store(true)
	return nil
}

// ahead is how many steps after the last one of rank 0 a trace begins: no rank is that far.
const ahead = 3

// traceSoon returns a trace of the next steps of this process's ranks.
func (r *run) traceSoon(ctx context.Context, steps int) (watch.Traced, error) {
	ranks := int(r.asks.ranks.Load())
	ask, err := r.askTrace(steps, ranks)
	if err != nil {
		return nil, err
	}
	var samples []*sim.Sample
	for range ranks {
		select {
		case s := <-ask.got:
			samples = append(samples, s)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return sim.Merge(samples), nil
}

func (r *run) askTrace(steps, ranks int) (*traceAsk, error) {
	r.asks.mu.Lock()
	defer r.asks.mu.Unlock()
	at := int(r.asks.at.Load())
	ask := &traceAsk{from: at + ahead, to: at + ahead + steps - 1, got: make(chan *sim.Sample, ranks)}
	switch last := r.asks.trace.Load(); {
	case ranks == 0:
		return nil, errors.New("training has not begun")
	case r.Trace != nil:
		return nil, errors.New("this run already writes a trace, with --trace")
	case last != nil && last.to > at:
		return nil, fmt.Errorf("steps %d to %d are being traced", last.from, last.to)
	case ask.to > r.c.Train.Steps:
		return nil, fmt.Errorf("step %d is the last one, but the trace would end with step %d", r.c.Train.Steps, ask.to)
	}
	r.asks.trace.Store(ask)
	return ask, nil
}

// beginSample begins to measure the parts of every so many steps, or a trace.
func (l *loop) beginSample() {
	n := l.at + 1
	if ask := l.asks.trace.Load(); ask != nil && ask.from == n {
		l.tracing, l.traced = ask, sim.NewTraceSample(l.rank)
		l.traced.Begin()
	}
	if l.sampling = l.traced == nil && l.sample != nil && n%l.c.Report.Every == 0; l.sampling {
		l.sample.Begin()
	}
}

// endSample returns the parts of a step that was measured.
func (l *loop) endSample() (parts sim.Exposure) {
	if l.rank.Rank == 0 {
		l.asks.at.Store(int64(l.at))
	}
	waited := l.rank.Trainer.Waited
	if l.traced != nil {
		l.traced.Step(l.at, waited)
		if l.at == l.tracing.to {
			l.traced.End()
			l.tracing.got <- l.traced
			l.traced = nil
		}
	}
	if !l.sampling {
		return parts
	}
	l.sample.Step(l.at, waited)
	parts = l.sample.End()
	if l.watch != nil {
		lanes, seconds := l.sample.Lanes()
		l.watch.Lanes(l.at, l.rank.Rank, setup.RankKind(l.c, l.rank.Rank), lanes, seconds)
	}
	return parts
}
