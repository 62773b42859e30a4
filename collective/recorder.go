package collective

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// RecorderLen is how many operations a Recorder keeps.
const RecorderLen = 4096

// Recorder keeps the last operations of a rank, in all its groups, and how long a
// step of it waits for other ranks. It takes its memory when it is made; an
// operation costs it two looks at the clock. Any goroutine may read it while the
// rank works.
type Recorder struct {
	began time.Time
	ask   func() string // see OnLate; may be nil

	mu     sync.Mutex
	groups []*watchdog
	ring   []Operation // (RecorderLen) operation number n is at n % RecorderLen
	issued uint64      // operations so far
	step   int
	pace   Pace
	first  bool          // an operation of the step has started
	from   time.Duration // the step's begin
}

// RecordedGroup is a group whose operations are recorded.
type RecordedGroup struct {
	Name  string `json:"name"`  // "world", "shard", "replica", "saves"
	Ranks []int  `json:"ranks"` // by Name of the group

	beside bool // its operations are not part of a step
}

// Operation is the record of a collective on one rank. A Recorder keeps it, dumps
// contain it, and a Wait says of it for whom the rank waits. Times are nanoseconds
// since the Recorder began, 0 for not yet: Issued when the rank's program came to
// it, Started when its queue did, Done when the queue was through.
type Operation struct {
	Group   int           `json:"group"` // index of its RecordedGroup
	Seq     int           `json:"seq"`   // in the group
	Step    int           `json:"step"`  // of training; 0 before the first
	Op      string        `json:"op"`
	Label   string        `json:"label"` // the unit, and what is done with it
	Type    string        `json:"type"`
	Count   int           `json:"count"` // elements of the whole buffer
	Bytes   int           `json:"bytes"` // of the whole buffer
	State   string        `json:"state"`
	Issued  time.Duration `json:"issued"`
	Started time.Duration `json:"started"`
	Done    time.Duration `json:"done"`
}

// States of an operation, in this order. Launched is Done on a device that works on its
// own time: it has the operation.
const (
	Issued   = "issued"
	Started  = "started"
	Launched = "launched"
	Done     = "done"
)

// Call is what the ranks of a group must agree on, in a few words.
func (o Operation) Call() string { return fmt.Sprintf("%s of %d %s", o.Op, o.Count, o.Type) }

// Pace is how long a step has taken a rank.
type Pace struct {
	Before time.Duration // from the step's begin until its first operation started
	Waited time.Duration // in operations
	Took   time.Duration // the step
}

// NewRecorder begins to record.
func NewRecorder() *Recorder {
	return &Recorder{began: time.Now(), ring: make([]Operation, RecorderLen)}
}

// now is never 0.
func (r *Recorder) now() time.Duration { return time.Since(r.began) + 1 }

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

// start records that the queue has come to operation n.
func (r *Recorder) start(n uint64, o *Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.State, o.Started = Started, r.now()
	r.keep(n, o)
	if !r.first && !r.groups[o.Group].beside {
		r.first, r.pace.Before = true, o.Started-r.from
	}
}

// finish records that the queue is through with operation n, or has launched it.
func (r *Recorder) finish(n uint64, o *Operation, as string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.State, o.Done = as, r.now()
	r.keep(n, o)
	if !r.groups[o.Group].beside {
		r.pace.Waited += o.Done - o.Started
	}
}

// keep stores operation n, unless its place is taken by another.
func (r *Recorder) keep(n uint64, o *Operation) {
	if r.issued-n <= RecorderLen {
		r.ring[n%RecorderLen] = *o
	}
}

// BeginStep is to be called when no operation of a step is under way.
func (r *Recorder) BeginStep(step int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step, r.first, r.pace, r.from = step, false, Pace{}, r.now()
}

// EndStep is the pace of the step that BeginStep began.
func (r *Recorder) EndStep() Pace {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pace
	p.Took = r.now() - r.from
	return p
}

// Record is what a Recorder has kept.
type Record struct {
	Began      time.Time       `json:"began"`
	At         time.Duration   `json:"at"`        // when it was read, since then
	Forgotten  int             `json:"forgotten"` // operations before those here
	Groups     []RecordedGroup `json:"groups"`
	Operations []Operation     `json:"operations"` // in the order they were issued
}

// Read is what there is so far.
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

// Sent is the bytes that a rank sends in a step of its record, if parts go around rings or from
// each rank to each, in all groups but that of the world, which exchanges statistics. Whole says
// that the record has the step whole.
func (r Record) Sent(rank, step int) (bytes int64, whole bool) {
	for _, o := range r.Operations {
		g := r.Groups[o.Group]
		n := len(g.Ranks)
		switch {
		case o.Step != step || g.beside || g.Name == World.String():
		case o.Op == broadcast.String() && g.Ranks[0] == rank:
			bytes += int64(o.Bytes * (n - 1))
		case o.Op == reduce.String() && g.Ranks[0] != rank:
			bytes += int64(o.Bytes)
		case o.Op == allGather.String() || o.Op == reduceScatter.String():
			bytes += int64(o.Bytes / n * (n - 1))
		}
	}
	return bytes, r.Forgotten == 0 || r.Operations[0].Step < step
}
