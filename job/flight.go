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
	"zeroth/job/setup"
)

// flights writes dumps of what the recorders of this process's ranks have kept into
// the run folder: when the world ends by the fault of another process, when the run
// does by one of ranks, and when somebody asks.
type flights struct {
	r       *run
	ranks   []*setup.Rank
	session string
	host    string
	over    chan struct{} // closed by end
	begun   atomic.Bool   // the run has written to its folder: before that there is nothing that a fault could be read from
	silent  bool          // that dumps cannot be written was told
	all     sync.WaitGroup
}

// recordFlights begins to wait for reasons to dump; end ends that.
func (r *run) recordFlights(ranks []*setup.Rank) *flights {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	f := &flights{r: r, ranks: ranks, session: cmp.Or(r.self.Session, rand.Text()), host: host, over: make(chan struct{})}
	f.all.Go(f.wait)
	return f
}

// wait serves reasons from elsewhere: of the ends of the world the first alone. Who asks
// this process for dumps asks all: this one dumps at once, for others may not answer.
func (f *flights) wait() {
	ended, fault := f.r.self.Ended, false // a dump after a fault is of it, too
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
		case <-f.r.self.Dumps:
			f.asked(fault, true)
		case <-f.over:
			return
		}
	}
}

// asked dumps because somebody has asked, and says so if all ranks do.
func (f *flights) asked(fault, all bool) {
	f.dump("asked", fault)
	if all {
		f.r.Observer.Note("dumped the last operations of every rank to " + f.dir())
	}
}

// end dumps once more where the run ends by a fault: all that its ranks have done is
// known now. In a world of several processes any failure is one to the others.
func (f *flights) end(ctx context.Context, err error) {
	close(f.over)
	f.all.Wait()
	asked := errors.Is(err, ErrElsewhere) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	if err == nil || asked || f.r.self.Alone() && !parted(err) {
		return
	}
	select {
	case <-f.r.self.Ended:
		err = f.r.World.Explain(err) // which is known
	default:
	}
	f.dump(err.Error(), true)
}

func (f *flights) dir() string { return filepath.Join(f.r.Out, flight.Folder) }

// dump writes a file for each rank. What cannot be written is told and keeps nobody.
func (f *flights) dump(why string, fault bool) {
	if fault && !f.begun.Load() {
		return
	}
	for _, rank := range f.ranks {
		d := flight.Dump{Session: f.session, Written: time.Now().UTC(), Why: why, Fault: fault, Rank: rank.Rank, World: f.r.c.Parallel.Ranks,
			Process: f.r.self.Process, Host: f.host, Pid: os.Getpid(), Record: rank.Recorder.Read()}
		if err := d.Write(f.dir()); err != nil && !f.silent {
			f.silent = true
			f.r.Observer.Note(fmt.Sprintf("the last operations of rank %d are not dumped: %v", rank.Rank, err))
		}
	}
}
