package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/collective/flight"
	"zeroth/internal/setup"
)

// flights dumps the recorded operations of this process's ranks to the run folder: when another
// process or one of its own ranks fails, and on request.
type flights struct {
	r       *run
	ranks   []*setup.Rank
	session string
	host    string
	over    chan struct{}        // closed by end
	begun   atomic.Bool          // the run has written to its folder; earlier faults are not dumped
	seen    [mostWhere]time.Time // by rank: when its dump that the last request showed was written
	silent  bool                 // a warning that dumps cannot be written was given
	all     sync.WaitGroup
}

// recordFlights starts to wait for reasons to dump, until end is called.
func (r *run) recordFlights(ranks []*setup.Rank) *flights {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	f := &flights{r: r, ranks: ranks, session: cmp.Or(r.self.Session, rand.Text()), host: host, over: make(chan struct{})}
	f.all.Go(f.wait)
	return f
}

// wait dumps for reasons from outside: requests, and the first failure of the world. A request
// to this process asks all processes; this one dumps at once, because others may not answer.
func (f *flights) wait() {
	ended, dumps, fault := f.r.self.Ended, f.r.self.Dumps, false // a dump after a fault is of it, too
	if f.r.c.Faults.Survive {
		ended = nil // end dumps if the run does not go on
	}
	for {
		select {
		case <-ended:
			ended, fault = nil, true
			f.dump("another process was lost or has failed", fault)
		case <-f.r.Dump:
			f.asked(fault, f.r.self.Alone())
			if f.r.self.Dump != nil {
				f.r.self.Dump()
			}
		case <-dumps:
			f.asked(fault, true)
		case <-f.over:
			return
		}
	}
}

// asked dumps on request, and reports whether all ranks do.
func (f *flights) asked(fault, all bool) {
	since := time.Now()
	f.dump("asked", fault)
	if !all {
		return
	}
	f.r.observers.Note("dumped the last operations of every rank to " + f.dir())
	if f.r.self.Process == 0 {
		for _, line := range f.whereabouts(since) {
			f.r.observers.Note(line)
		}
	}
}

// mostWhere is how many ranks a request lists.
const mostWhere = 64

// patientDumps is how long a request waits for the dumps of other processes.
const patientDumps = 3 * time.Second

// whereabouts describes where each rank is, by the dumps written for a request. It skips dumps that
// an earlier request used.
func (f *flights) whereabouts(since time.Time) (lines []string) {
	world := f.r.c.Parallel.Ranks
	for rank := range min(world, mostWhere) {
		file := filepath.Join(f.dir(), fmt.Sprintf("rank-%d.json", rank))
		for {
			all, err := flight.Read([]string{file})
			if err == nil && all[0].Session == f.session && all[0].Written.After(f.seen[rank]) {
				f.seen[rank] = all[0].Written
				lines = append(lines, fmt.Sprintf("rank %d%s: %s", rank, f.r.where(rank), all[0].Last("ago")))
				break
			}
			if time.Since(since) > patientDumps || !f.sleep() {
				lines = append(lines, fmt.Sprintf("rank %d%s wrote no dump within %v", rank, f.r.where(rank), patientDumps))
				break
			}
		}
	}
	if world > mostWhere {
		lines = append(lines, fmt.Sprintf("and %d more ranks; 'zeroth flight %s' compares all", world-mostWhere, f.r.Out))
	}
	return lines
}

// sleep waits a moment, unless the run is over.
func (f *flights) sleep() bool {
	select {
	case <-time.After(50 * time.Millisecond):
		return true
	case <-f.over:
		return false
	}
}

// end dumps once more if the run failed, when all operations of its ranks are known. With several
// processes every error counts as a failure, because the other processes see it as one.
func (f *flights) end(ctx context.Context, err error) {
	f.stop()
	asked := errors.Is(err, ErrElsewhere) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	if err == nil || asked || f.r.self.Alone() && !causedByPeers(err) {
		return
	}
	select {
	case <-f.r.self.Ended:
		err = f.r.World.Explain(err) // which is known
	default:
	}
	f.dump(err.Error(), true)
}

// stop waits no more for reasons to dump.
func (f *flights) stop() {
	close(f.over)
	f.all.Wait()
}

func (f *flights) dir() string { return filepath.Join(f.r.Out, flight.Folder) }

// dump writes one file per rank. Write errors are reported and do not stop the run.
func (f *flights) dump(why string, fault bool) {
	if fault && !f.begun.Load() {
		return
	}
	for _, rank := range f.ranks {
		d := flight.Dump{Session: f.session, Written: time.Now().UTC(), Why: why, Fault: fault, Rank: rank.Rank, World: f.r.c.Parallel.Ranks,
			Process: f.r.self.Process, Host: f.host, Pid: os.Getpid(), Record: rank.Recorder.Read()}
		if err := d.Write(f.dir()); err != nil && !f.silent {
			f.silent = true
			f.r.observers.Warn(fmt.Sprintf("cannot dump the last operations of rank %d: %v", rank.Rank, err))
		}
	}
}
