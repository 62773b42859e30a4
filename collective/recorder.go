package collective

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// RecorderLen is the number of operations that a Recorder keeps.
const RecorderLen = 4096

// Recorder records the last operations of a rank, in all its groups, and how long each step waits
// for other ranks. It allocates only when created and reads the clock twice per operation. Any
// goroutine may read it while the rank works.
type Recorder struct {
	began time.Time

	mu     sync.Mutex
	ask    func() string // see OnLate; may be nil
	groups []*watchdog
	ring   []Operation // (RecorderLen) operation n is at index n % RecorderLen
	issued uint64      // operations so far
	step   int
	pace   Pace
	first  bool          // an operation of the step has started
	from   time.Duration // begin of the step
}

// RecordedGroup is a group whose operations are recorded.
type RecordedGroup struct {
	Name  string `json:"name"`  // "world", "shard", "replica", "saves"
	Ranks []int  `json:"ranks"` // by Name of the group

	background bool // its operations are not part of a step
}

// Operation is the record of a collective on one rank. Times are nanoseconds since the Recorder was
// created, 0 for not yet: Issued when the rank's program issued it, Started when its queue reached
// it, Done when the queue completed it.
type Operation struct {
	Group   int           `json:"group"` // index of its RecordedGroup
	Seq     int           `json:"seq"`   // sequence number in the group
	Step    int           `json:"step"`  // of training; 0 before the first
	Op      string        `json:"op"`
	Label   string        `json:"label"` // the unit and its operation
	Type    string        `json:"type"`
	Count   int           `json:"count"` // elements of the whole buffer
	Bytes   int           `json:"bytes"` // of the whole buffer
	State   string        `json:"state"`
	Issued  time.Duration `json:"issued"`
	Started time.Duration `json:"started"`
	Done    time.Duration `json:"done"`
}

// States of an operation, in order. On an asynchronous device, Launched replaces Done: the device
// has the operation.
const (
	Issued   = "issued"
	Started  = "started"
	Launched = "launched"
	Done     = "done"
)

// Call formats the parameters that the ranks of a group must agree on.
func (o Operation) Call() string { return fmt.Sprintf("%s of %d %s", o.Op, o.Count, o.Type) }

// Pace holds the durations of a rank's step.
type Pace struct {
	Before time.Duration // from the begin of the step until its first operation started
	Waited time.Duration // in operations
	Took   time.Duration // of the whole step
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{began: time.Now(), ring: make([]Operation, RecorderLen)}
}

// now returns the time since r was created. It is never 0.
func (r *Recorder) now() time.Duration { return time.Since(r.began) + 1 }

// asks returns the function of OnLate, or nil.
func (r *Recorder) asks() func() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ask
}

// issue records an operation and returns its number.
func (r *Recorder) issue(o *Operation) (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = r.issued
	r.issued++
	o.Step, o.State, o.Issued = r.step, Issued, r.now()
	r.keep(n, o)
	return n
}

// start records that the queue has reached operation n.
func (r *Recorder) start(n uint64, o *Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.State, o.Started = Started, r.now()
	r.keep(n, o)
	if !r.first && !r.groups[o.Group].background {
		r.first, r.pace.Before = true, o.Started-r.from
	}
}

// finish records that the queue has completed or launched operation n.
func (r *Recorder) finish(n uint64, o *Operation, as string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.State, o.Done = as, r.now()
	r.keep(n, o)
	if !r.groups[o.Group].background {
		r.pace.Waited += o.Done - o.Started
	}
}

// keep stores operation n, unless it has been overwritten.
func (r *Recorder) keep(n uint64, o *Operation) {
	if r.issued-n <= RecorderLen {
		r.ring[n%RecorderLen] = *o
	}
}

// BeginStep starts a step. No operation of another step may be pending.
func (r *Recorder) BeginStep(step int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step, r.first, r.pace, r.from = step, false, Pace{}, r.now()
}

// EndStep returns the pace of the step started by BeginStep.
func (r *Recorder) EndStep() Pace {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pace
	p.Took = r.now() - r.from
	return p
}

// Record is a copy of a Recorder's content.
type Record struct {
	Began      time.Time       `json:"began"`
	At         time.Duration   `json:"at"`        // time of the copy, since Began
	Forgotten  int             `json:"forgotten"` // number of earlier operations that were overwritten
	Groups     []RecordedGroup `json:"groups"`
	Operations []Operation     `json:"operations"` // in the order of issue
}

// Read returns the current content.
func (r *Recorder) Read() Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := min(int(r.issued), RecorderLen)
	all := Record{Began: r.began.UTC(), At: r.now(), Forgotten: int(r.issued) - kept, Groups: []RecordedGroup{}}
	for _, g := range r.groups {
		all.Groups = append(all.Groups, g.RecordedGroup)
	}
	oldest := all.Forgotten % RecorderLen // 0 until the ring is full
	all.Operations = slices.Concat(r.ring[oldest:kept], r.ring[:oldest])
	return all
}

// Sent returns the bytes that a rank sent in a step, in all groups except world, which exchanges
// statistics. It assumes that parts travel around rings or directly between ranks. Whole reports
// whether the record contains the complete step.
func (r Record) Sent(rank, step int) (bytes int64, whole bool) {
	for _, o := range r.Operations {
		g := r.Groups[o.Group]
		n := len(g.Ranks)
		switch {
		case o.Step != step || g.background || g.Name == World.String():
		case o.Op == broadcast.String() && g.Ranks[0] == rank:
			bytes += int64(o.Bytes * (n - 1))
		case o.Op == reduce.String() && g.Ranks[0] != rank:
			bytes += int64(o.Bytes)
		case o.Op == allGather.String() || o.Op == reduceScatter.String() || o.Op == exchange.String():
			bytes += int64(o.Bytes / n * (n - 1))
		}
	}
	return bytes, r.Forgotten == 0 || r.Operations[0].Step < step
}
