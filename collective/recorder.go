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
// operation costs it two looks at the clock beyond a Watchdog's. Any goroutine may
// read it while the rank works.
type Recorder struct {
	began time.Time
	ask   func() string // see OnLate; may be nil

	mu     sync.Mutex
	groups []RecordedGroup
	dogs   []*watchdog // of the groups
	ring   []recorded  // (RecorderLen) operation number n is at n % RecorderLen
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

// recorded is an operation; times are since the Recorder began, 0 for not yet.
type recorded struct {
	call
	group                 int
	step                  int
	issued, started, done time.Duration
	launched              bool // done means that a device has it, on its own time
}

// Operation is what a Recorder tells of one. Times are nanoseconds since the
// recorder began, 0 for not yet: Issued when the rank's program came to it, Started
// when its queue did, Done when the queue was through.
type Operation struct {
	Group   int           `json:"group"` // index of its RecordedGroup
	Seq     int           `json:"seq"`   // in the group
	Step    int           `json:"step"`  // of training; 0 before the first
	Op      string        `json:"op"`
	Label   string        `json:"label"` // the unit, and what is done with it
	Type    string        `json:"type"`
	Count   int           `json:"count"` // elements of the whole buffer
	Bytes   int           `json:"bytes"` // of the whole buffer
	State   string        `json:"state"` // "issued", "started", "launched" to a device's stream, "done"
	Issued  time.Duration `json:"issued"`
	Started time.Duration `json:"started"`
	Done    time.Duration `json:"done"`
}

// Pace is how long a step has taken a rank.
type Pace struct {
	Before time.Duration // from the step's begin until its first operation started
	Waited time.Duration // in operations
	Took   time.Duration // the step
}

// NewRecorder begins to record.
func NewRecorder() *Recorder {
	return &Recorder{began: time.Now(), ring: make([]recorded, RecorderLen)}
}

// Watchdog is a Watchdog of g whose operations are recorded. Those of a group that is
// used beside training do not count as waiting in a step.
func (r *Recorder) Watchdog(g Group, deadline time.Duration, name string, beside bool) Group {
	w := newWatchdog(g, deadline)
	of := RecordedGroup{Name: name, Ranks: make([]int, g.Size()), beside: beside}
	for i := range of.Ranks {
		of.Ranks[i] = w.inner.Name(i)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.recorder, w.group = r, len(r.groups)
	r.groups, r.dogs = append(r.groups, of), append(r.dogs, w)
	return w
}

// OnLate has ask say for whom all ranks wait in the end, before an operation that is late
// fails: it may take some seconds. It is to be called before the first Watchdog.
func (r *Recorder) OnLate(ask func() string) { r.ask = ask }

// Waits is the ranks, by Name, for whom this one waits in all its groups, ascending, and in
// which operation; where it waits for nobody, which operation was its last.
func (r *Recorder) Waits() (names []int, in string) {
	r.mu.Lock()
	dogs, groups := r.dogs, r.groups
	r.mu.Unlock()
	for i, w := range dogs {
		missing := w.inner.Missing()
		if len(missing) == 0 {
			continue
		}
		w.mu.Lock()
		in = fmt.Sprintf("%v of its %s group (operation %d%s)", w.now, groups[i].Name, w.now.seq, after(": ", w.now.about()))
		w.mu.Unlock()
		names = append(names, missing[0]...)
	}
	if names == nil {
		return nil, r.last()
	}
	slices.Sort(names)
	return slices.Compact(names), in
}

// last is the operation that the rank has issued last, and since when nothing follows.
func (r *Recorder) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.issued == 0 {
		return ""
	}
	o := r.at(r.issued - 1)
	return fmt.Sprintf("%v of its %s group (operation %d%s), which it came to %v ago", o.call, r.groups[o.group].Name, o.seq, after(": ", o.about()), (r.now() - o.issued).Round(100*time.Millisecond))
}

// after is text behind a mark, and nothing where there is none.
func after(mark, text string) string {
	if text == "" {
		return ""
	}
	return mark + text
}

// now is never 0.
func (r *Recorder) now() time.Duration { return time.Since(r.began) + 1 }

// issue records an operation and returns its number.
func (r *Recorder) issue(group int, c call) (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = r.issued
	r.issued++
	r.ring[n%RecorderLen] = recorded{call: c, group: group, step: r.step, issued: r.now()}
	return n
}

// at is operation n, nil if its place is taken by another.
func (r *Recorder) at(n uint64) *recorded {
	if r.issued-n > RecorderLen {
		return nil
	}
	return &r.ring[n%RecorderLen]
}

func (r *Recorder) start(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.at(n)
	if o == nil {
		return
	}
	o.started = r.now()
	if !r.first && !r.groups[o.group].beside {
		r.first, r.pace.Before = true, o.started-r.from
	}
}

// finish is that a queue is through with operation n, or that it is launched.
func (r *Recorder) finish(n uint64, launched bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.at(n)
	if o == nil {
		return
	}
	o.done, o.launched = r.now(), launched
	if !r.groups[o.group].beside {
		r.pace.Waited += o.done - o.started
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
	Began      time.Time
	At         time.Duration // when it was read, since then
	Groups     []RecordedGroup
	Operations []Operation // in the order they were issued
	Forgotten  uint64      // operations before them
}

// Read is what there is so far.
func (r *Recorder) Read() Record {
	r.mu.Lock()
	kept := min(r.issued, RecorderLen)
	all := make([]recorded, 0, kept)
	for n := r.issued - kept; n < r.issued; n++ {
		all = append(all, r.ring[n%RecorderLen])
	}
	out := Record{Began: r.began, At: r.now(), Groups: r.groups[:len(r.groups):len(r.groups)], Forgotten: r.issued - kept}
	r.mu.Unlock()
	for _, o := range all {
		out.Operations = append(out.Operations, o.tell())
	}
	return out
}

func (o recorded) tell() Operation {
	t := Operation{Group: o.group, Seq: o.seq, Step: o.step, Op: o.op.String(), Label: o.about(), Type: o.t.String(), Count: o.n, Bytes: o.n * o.t.Size(),
		State: "issued", Issued: o.issued, Started: o.started, Done: o.done}
	switch {
	case o.launched:
		t.State = "launched"
	case o.done > 0:
		t.State = "done"
	case o.started > 0:
		t.State = "started"
	}
	return t
}

// Call is what the ranks of a group must agree on, in a few words.
func (o Operation) Call() string { return fmt.Sprintf("%s of %d %s", o.Op, o.Count, o.Type) }
