package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/internal/setup"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/trace"
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
		return config.Problems{spec.ProblemOf(r.c, "report.listen", err.Error(), hint)}
	}
	r.observers = append(r.observers, r.watch)
	r.observers.Note("live page: " + r.server.String())
	return nil
}

// asks contains the requests of clients, which rank 0 reads between steps.
type asks struct {
	at    atomic.Int64 // steps that rank 0 has done
	begun atomic.Bool  // training
	save  atomic.Bool
	trace atomic.Pointer[traceAsk] // nil: nobody waits for one
}

// traceAsk asks for a trace of some steps.
type traceAsk struct {
	steps int
	sent  bool          // to all ranks, by rank 0
	got   chan [][]byte // of each rank; capacity: 1
}

// saveSoon asks for a checkpoint after the step that is under way.
func (r *run) saveSoon() error {
	if !setup.Saves(r.c) {
		return errors.New("this job saves no checkpoints; set checkpoint.every or checkpoint.save_on_exit")
	}
	r.asks.save.Store(true)
	return nil
}

// traceSoon returns a trace of the next steps of all ranks.
func (r *run) traceSoon(ctx context.Context, steps int) (watch.Traced, error) {
	ask, err := r.askTrace(steps)
	if err != nil {
		return nil, err
	}
	select {
	case all := <-ask.got:
		return trace.Merge(all)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sooner is the maximum number of steps between the last one of rank 0 and the first of a trace:
// the one under way, and the one that informs all ranks.
const sooner = 2

func (r *run) askTrace(steps int) (*traceAsk, error) {
	if !r.asks.begun.Load() {
		return nil, errors.New("training has not begun")
	}
	if r.Trace != nil {
		return nil, errors.New("this run already writes a trace, with --trace")
	}
	if last, to := r.c.Train.Steps, int(r.asks.at.Load())+sooner+steps; to > last {
		return nil, fmt.Errorf("step %d is the last one, but the trace may end with step %d", last, to)
	}
	ask := &traceAsk{steps: steps, got: make(chan [][]byte, 1)}
	if !r.asks.trace.CompareAndSwap(nil, ask) {
		return nil, errors.New("another client's trace has not ended")
	}
	return ask, nil
}

// probes measure steps of a rank.
type probes struct {
	pace     collective.Pace // of the last step
	data     time.Duration   // in which the step has read its samples
	slow     report.Stragglers
	leaving  report.Stragglers     // by faults.leave_behind
	together [][]int               // of each rank: the replicas that would be lost with it; nil: the run does not survive that
	why      string                // a replica is to be left out after the last step; empty: none is
	out      bool                  // it is this rank's
	where    func(rank int) string // " (host)" of a rank, or nothing
	timeline *Observation          // may be nil
	trace    *trace.Trace          // of the run; may be nil
	sample   *trace.Sample         // of some steps; nil: none is measured
	sampling bool                  // the step that follows is
	asks     *asks                 // of clients
	watch    *watch.State          // nil: nobody watches
	tracing  int                   // steps of a client's trace that are not done
	traced   *trace.Sample         // a client's trace under way; may be nil
	host     string                // of this rank; empty if there are no other processes
}

// wantTrace returns the number of steps that a client wants traced, once, on rank 0.
func (l *loop) wantTrace() int {
	if l.rank.Rank != 0 {
		return 0
	}
	ask := l.asks.trace.Load()
	if ask == nil || ask.sent {
		return 0
	}
	ask.sent = true
	return ask.steps
}

// beginSample begins to measure the parts of one step in report.every, or a trace.
func (l *loop) beginSample() {
	if l.tracing > 0 && l.traced == nil && l.trace == nil {
		l.traced = trace.NewSample(l.rank, trace.Long)
		l.traced.Begin()
	}
	if l.sampling = l.tracing == 0 && l.sample != nil && (l.at+1)%l.c.Report.Every == 0; l.sampling {
		l.sample.Begin()
	}
}

// endSample returns the parts of a measured step, and begins a requested trace of the next steps.
func (l *loop) endSample(next int) (parts trace.Exposure, err error) {
	if l.rank.Rank == 0 {
		l.asks.at.Store(int64(l.at))
	}
	if l.tracing > 0 {
		l.traced.Step(l.at, l.rank.Trainer.Waited)
		if l.tracing--; l.tracing == 0 {
			err = l.endTrace()
		}
	}
	l.tracing = max(l.tracing, next)
	if !l.sampling || err != nil {
		return parts, err
	}
	l.sample.Step(l.at, l.rank.Trainer.Waited)
	parts = l.sample.End()
	if l.watch != nil {
		lanes, seconds := l.sample.Lanes()
		l.watch.Lanes(l.at, l.rank.Rank, setup.RankKind(l.c, l.rank.Rank), lanes, seconds)
	}
	return parts, nil
}

// endTrace sends the traces of all ranks to the client that waits at process 0.
func (l *loop) endTrace() error {
	l.traced.End()
	mine := l.traced.Encode(l.host, traceBytes(l.rank))
	l.traced = nil
	all, err := gatherTrace(l.rank, mine)
	if err == nil && l.rank.Rank == 0 {
		l.asks.trace.Swap(nil).got <- all
	}
	return err
}

// traceBytes returns how many bytes of a trace a rank may send.
func traceBytes(r *setup.Rank) int { return mostRound / r.Groups.World.Size() }

// gatherTrace returns the parts of a trace of all ranks.
func gatherTrace(r *setup.Rank, mine []byte) ([][]byte, error) {
	comm := r.Queues[setup.Comm]
	comm.Label("trace: all-gather")
	return collective.GatherBytes(r.Groups.World, comm, mine)
}

// shareTrace makes all processes trace if process 0 does, for one file.
func (r *run) shareTrace(ctx context.Context) error {
	if r.self.Alone() {
		return nil
	}
	traced, err := r.World.Share(ctx, strconv.FormatBool(r.Trace != nil))
	r.traced = traced == "true"
	if err == nil && r.traced && r.Trace == nil {
		r.Trace = trace.New()
	}
	return err
}

// collectTrace brings the traces of all ranks to process 0.
func (r *run) collectTrace(context.Context) error {
	if !r.traced {
		return nil
	}
	return setup.TogetherUntil(r.self.Ended, r.ranks, func(rank *setup.Rank) error {
		all, err := gatherTrace(rank, r.Trace.Encode(rank.LocalIndex, r.self.Hosts[rank.Rank], traceBytes(rank)))
		if err != nil || rank.Rank > 0 {
			return err
		}
		return r.Trace.Gather(all)
	})
}
