package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/setup"
)

// Trace records the work of every rank's queues: the last Long tasks of each, in memory
// allocated at the start. Write writes it in Chrome's trace format (for ui.perfetto.dev), with a
// process for each rank, a thread for each queue and one for steps, and counters of memory in use
// by category.
type Trace struct {
	origin time.Time
	ranks  []tracks    // by rank of this process
	names  []int       // world numbers of these ranks
	Sent   []int64     // bytes sent by each rank in the last step; -1 if it had more operations than are recorded
	Memory MemoryInUse // nil: not shown
	whole  *Trace      // also of other processes' ranks; nil: there are none
}

// MemoryInUse provides the memory in use on a rank during the traced work. A plan implements it.
type MemoryInUse interface {
	// Counters returns the names of the counted quantities, and the amount of each over time.
	Counters(tracks []*Track) (names []string, list []Usage)
}

// Usage is the memory in use from an instant on.
type Usage struct {
	At    int64   // nanoseconds since Trace.origin
	Bytes []int64 // one for each name
}

// Long is the number of tasks per queue in the trace of a whole run, 48 bytes each: about a hundred steps of a
// model of ten layers.
const Long = 1 << 15

// Track is the work of one queue. It belongs to the queue's goroutine until the queue is idle.
type Track struct {
	name  string
	role  setup.QueueRole // of its queue, if it is the work of one
	spans []Span          // a ring
	n     int             // recorded so far
}

// NewTrack returns an empty track of a queue with room for the given number of spans. When it is
// full, a new span replaces the oldest.
func NewTrack(role setup.QueueRole, spans int) *Track {
	return &Track{name: role.String(), role: role, spans: make([]Span, spans)}
}

// NewSteps returns an empty track of a rank's steps with room for the given number.
func NewSteps(spans int) *Track { return &Track{name: "step", spans: make([]Span, spans)} }

// tracks holds the tracks of a rank: its queues, compute and comm first, its host's waits (except
// in a simulation), and its steps.
type tracks []*Track

func (k tracks) compute() *Track        { return k[setup.Compute] }
func (k tracks) comm() *Track           { return k[setup.Comm] }
func (k tracks) steps() *Track          { return k[len(k)-1] }
func (k tracks) withoutSteps() []*Track { return k[:len(k)-1] } // all but the steps

// host returns the waits of the host, nil in a simulation.
func (k tracks) host() *Track {
	if at := k[len(k)-2]; at.name == waits {
		return at
	}
	return nil
}

// since returns the time from which on all queues have complete spans.
func (k tracks) since() (at int64) {
	for _, q := range k.withoutSteps() {
		at = max(at, kept(q))
	}
	return at
}

// AddRank adds the tracks of a simulated rank: its queues, compute and comm first, and its steps.
func (t *Trace) AddRank(rank int, own []*Track) {
	t.ranks, t.names = append(t.ranks, own), append(t.names, rank)
}

// Ranks returns the tracks of each rank, compute first and steps last.
func (t *Trace) Ranks() (ranks [][]*Track) {
	for _, k := range t.ranks {
		ranks = append(ranks, k)
	}
	return ranks
}

// Span is a finished task, in nanoseconds since Trace.origin.
type Span struct {
	Label, Task string
	Start, End  int64
}

// Add adds the next span.
func (t *Track) Add(s Span) {
	t.spans[t.n%len(t.spans)] = s
	t.n++
}

// All returns the spans kept, oldest first.
func (t *Track) All() []Span {
	if t.n <= len(t.spans) {
		return t.spans[:t.n]
	}
	at := t.n % len(t.spans)
	return slices.Concat(t.spans[at:], t.spans[:at])
}

// New returns an empty trace for the options of a run.
func New() *Trace { return &Trace{origin: time.Now()} }

// Attach starts recording the queues of all ranks, which must be idle.
func (t *Trace) Attach(ranks []*setup.Rank, memory MemoryInUse) {
	if t == nil {
		return
	}
	t.Memory = memory
	for _, r := range ranks {
		own := t.open(r, Long)
		for _, s := range r.Opening {
			own.host().Add(t.span(s.Label, s.Task, s.Start, s.End))
		}
		t.record(r, own)
	}
}

// open adds the tracks of a rank, with room for the given number of tasks per queue.
func (t *Trace) open(r *setup.Rank, spans int) (own tracks) {
	for role := range r.Queues.All() {
		own = append(own, NewTrack(role, spans))
	}
	own = append(own, &Track{name: waits, spans: make([]Span, spans)}, NewSteps(spans))
	t.AddRank(r.Rank, own)
	return own
}

// record starts recording the queues of a rank, which must be idle.
func (t *Trace) record(r *setup.Rank, own tracks) {
	i := 0
	for _, q := range r.Queues.All() {
		k := own[i]
		q.Trace(func(s device.Span) { k.Add(t.span(s.Label, s.Task, s.Start, s.End)) })
		i++
	}
}

// Step records a step of a rank. Only the rank itself may call it.
func (t *Trace) Step(r *setup.Rank, n int, start, end time.Time) {
	if t == nil {
		return
	}
	t.ranks[r.LocalIndex].steps().Add(t.span("", "step "+strconv.Itoa(n), start, end))
}

func (t *Trace) span(label, task string, start, end time.Time) Span {
	return Span{label, task, int64(start.Sub(t.origin)), int64(end.Sub(t.origin))}
}

// waits names the track of the host's waits, on opening a rank and in steps.
const waits = "host waits"

// Wait records that a rank's host waited for the step's norm. Only the rank itself may call it.
func (t *Trace) Wait(r *setup.Rank, start, end time.Time) {
	if t == nil {
		return
	}
	t.ranks[r.LocalIndex].host().Add(t.span("the norm", "wait", start, end))
}

// Detach waits until the queues are idle, stops recording and counts the bytes that the ranks have
// sent. It leaves errors of queues to others.
func (t *Trace) Detach(ranks []*setup.Rank) {
	if t == nil {
		return
	}
	for _, r := range ranks {
		stop(r)
		t.Sent = append(t.Sent, sentLast(r))
	}
}

// stop waits until the queues of a rank are idle and stops recording them.
func stop(r *setup.Rank) {
	for _, q := range r.Queues.All() {
		_ = q.Wait()
		q.Trace(nil)
	}
}

// sentLast returns the bytes that a rank sent in its last step, -1 if unknown.
func sentLast(r *setup.Rank) int64 {
	all := r.Recorder.Read()
	if len(all.Operations) == 0 {
		return 0
	}
	bytes, whole := all.Sent(r.Rank, all.Operations[len(all.Operations)-1].Step)
	if !whole {
		return -1
	}
	return bytes
}

// Exposure divides the time of a rank's steps. Each part is a mean over ranks and over the steps
// that are complete in the trace. If the machine has fewer processors than busy queues, the time
// of a task includes waiting for a processor.
type Exposure struct {
	Steps   int     // per rank
	Seconds float64 // of a step
	Compute float64 // seconds in which the compute queue was running
	Exposed float64 // seconds in which the comm queue was running and the compute queue was not
	Peers   float64 // part of Exposed spent waiting for other ranks
	Offload float64 // seconds in which only the host and the queues of offloading were running
	Norm    float64 // seconds without computation around the host's wait for the norm
	Idle    float64 // seconds in which no queue was running
}

// Exposure returns the mean exposure of the steps, without the first if there are others, because
// it touches everything for the first time.
func (t *Trace) Exposure() (e Exposure) {
	if t == nil {
		return e
	}
	for _, k := range t.ranks {
		since, own := k.since(), k.steps().All()
		if len(own) > 1 {
			own = own[1:]
		}
		for _, step := range own {
			if step.Start >= since {
				e.add(k, step)
			}
		}
	}
	return e.mean(len(t.ranks))
}

// After returns the exposure of each step after the first steps ones, if it is complete in the
// trace.
func (t *Trace) After(steps int) (all []Exposure) {
	for i := steps; i < t.ranks[0].steps().n; i++ {
		e := Exposure{}
		for _, k := range t.ranks {
			if own := k.steps().All(); i < len(own) && own[i].Start >= k.since() {
				e.add(k, own[i])
			}
		}
		if e.Steps == len(t.ranks) {
			all = append(all, e.mean(len(t.ranks)))
		}
	}
	return all
}

// mean converts sums of nanoseconds to the mean over all steps, given the number of ranks.
func (e Exposure) mean(ranks int) Exposure {
	if e.Steps == 0 {
		return e
	}
	scale := 1e-9 / float64(e.Steps)
	return Exposure{e.Steps / ranks, e.Seconds * scale, e.Compute * scale, e.Exposed * scale, e.Peers * scale, e.Offload * scale, e.Norm * scale, e.Idle * scale}
}

// add adds a step of a rank, in nanoseconds.
func (e *Exposure) add(k tracks, step Span) {
	compute := k.compute().All()
	computing, moving := busy(compute, step), busy(k.comm().All(), step)
	if exchanged := slices.DeleteFunc(slices.Clone(computing), func(r Span) bool { return !Exchanges(r.Task) }); len(exchanged) > 0 {
		computing, moving = slices.DeleteFunc(computing, func(r Span) bool { return Exchanges(r.Task) }), union(moving, exchanged)
	}
	for _, q := range k.withoutSteps() {
		if q.role.IsLink() {
			moving = union(moving, slices.DeleteFunc(busy(q.All(), step), waitsForPeers))
		}
	}
	e.Steps++
	e.Seconds += float64(step.End - step.Start)
	e.Compute += float64(measure(computing))
	e.Exposed += float64(measure(moving) - overlap(moving, computing))
	waiting := slices.DeleteFunc(slices.Clone(moving), func(r Span) bool { return !waitsForPeers(r) })
	e.Peers += float64(measure(waiting) - overlap(waiting, computing))
	all := union(computing, moving)
	seen := measure(all)
	for _, q := range k.withoutSteps() {
		if q.role.Offloads() {
			all = union(all, busy(q.All(), step))
		}
	}
	e.Offload += float64(measure(all) - seen)
	for _, q := range k.withoutSteps() {
		if q.role == setup.Update {
			all = union(all, busy(q.All(), step))
		}
	}
	e.Idle += float64(step.End - step.Start - measure(all))
	if host := k.host(); host != nil {
		for _, w := range host.All() {
			if w.Start >= step.Start && w.End <= step.End {
				e.Norm += float64(bubble(compute, w))
			}
		}
	}
}

// Exchanges reports whether a task communicates, or waits for other ranks.
func Exchanges(task string) bool {
	_, communicates := collective.Named(task)
	return communicates || task == collective.Waiting
}

// waitsForPeers reports whether a task is a wait for other ranks.
func waitsForPeers(r Span) bool { return r.Task == collective.Waiting }

// kept returns the time from which on a track's spans are complete.
func kept(t *Track) int64 {
	if t.n <= len(t.spans) {
		return 0
	}
	return t.spans[t.n%len(t.spans)].End
}

// busy returns the parts of consecutive spans that are in window and not waits.
func busy(spans []Span, window Span) (out []Span) {
	for _, s := range spans {
		s.Start, s.End = max(s.Start, window.Start), min(s.End, window.End)
		if s.Start < s.End && s.Task != "wait" {
			out = append(out, s)
		}
	}
	return out
}

// bubble returns the time without computation from the beginning of a host's wait to the first
// computation after it, 0 if there is none.
func bubble(compute []Span, wait Span) int64 {
	since := wait.Start
	for _, s := range compute {
		switch {
		case s.Task == "wait":
		case s.Start >= wait.End:
			return s.Start - since
		default:
			since = max(since, s.End)
		}
	}
	return 0
}

// measure returns the total length of disjoint spans.
func measure(spans []Span) (n int64) {
	for _, s := range spans {
		n += s.End - s.Start
	}
	return n
}

// overlap returns the time in which both a and b were running; each is a list of consecutive
// spans.
func overlap(a, b []Span) (n int64) {
	for len(a) > 0 && len(b) > 0 {
		n += max(0, min(a[0].End, b[0].End)-max(a[0].Start, b[0].Start))
		if a[0].End < b[0].End {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return n
}

// union returns the time in which a or b was running, as consecutive spans.
func union(a, b []Span) (out []Span) {
	for len(a) > 0 || len(b) > 0 {
		if len(a) == 0 || len(b) > 0 && b[0].Start < a[0].Start {
			a, b = b, a
		}
		s := a[0]
		a = a[1:]
		if n := len(out); n > 0 && s.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, s.End)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// Line describes the exposure in a line.
func (e Exposure) Line() string {
	ms := func(s float64) string { return fmt.Sprintf("%.1f ms", 1e3*s) }
	peers, offload, norm := "", "", ""
	if e.Norm > 0 {
		norm = fmt.Sprintf("; for %s nothing is computed while the host waits for the norm", ms(e.Norm))
	}
	if e.Peers > 0 {
		peers = fmt.Sprintf(", %s of it waiting for other ranks", ms(e.Peers))
	}
	if e.Offload > 0 {
		offload = fmt.Sprintf("exposed offload %s (%.1f %%), ", ms(e.Offload), 100*e.Offload/e.Seconds)
	}
	return fmt.Sprintf("a step of %s: computing %s, exposed communication %s (%.1f %%%s), %sneither %s (over %d steps)%s",
		ms(e.Seconds), ms(e.Compute), ms(e.Exposed), 100*e.Exposed/e.Seconds, peers, offload, ms(e.Seconds-e.Compute-e.Exposed-e.Offload), e.Steps, norm)
}

// Gather adds the encoded work of all ranks, which only Write uses.
func (t *Trace) Gather(all [][]byte) (err error) {
	t.whole, err = Merge(all)
	if err == nil {
		t.whole.Memory = t.Memory
	}
	return err
}

// Write writes the recorded spans. Times are in microseconds.
func (t *Trace) Write(w io.Writer) error {
	if t.whole != nil {
		return t.whole.Write(w)
	}
	b := bufio.NewWriter(w)
	b.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	sep := "\n"
	event := func(format string, args ...any) {
		b.WriteString(sep)
		fmt.Fprintf(b, format, args...)
		sep = ",\n"
	}
	for at, tracks := range t.ranks {
		rank := t.names[at]
		event(`{"name":"process_name","ph":"M","pid":%d,"args":{"name":"rank %d"}}`, rank, rank)
		for i, k := range tracks {
			tid := (i + 1) % len(tracks) // the steps first
			event(`{"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":%q}}`, rank, tid, k.name)
			for _, s := range k.All() {
				event(`{"name":%q,"cat":%q,"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"for":%q}}`,
					s.Task, k.name, rank, tid, float64(s.Start)/1e3, float64(s.End-s.Start)/1e3, s.Label)
			}
		}
	}
	for at, tracks := range t.ranks {
		t.writeMemory(event, t.names[at], tracks)
	}
	b.WriteString("\n]}\n")
	return b.Flush()
}

// writeMemory writes the memory in use on a rank as counters.
func (t *Trace) writeMemory(event func(format string, args ...any), rank int, tracks []*Track) {
	if t.Memory == nil {
		return
	}
	names, list := t.Memory.Counters(tracks)
	for _, u := range list {
		var args []string
		for i, name := range names {
			args = append(args, fmt.Sprintf("%q:%d", name, u.Bytes[i]))
		}
		event(`{"name":"memory in use","ph":"C","pid":%d,"ts":%.3f,"args":{%s}}`, rank, float64(u.At)/1e3, strings.Join(args, ","))
	}
}

// ByLabel merges consecutive spans in window with the same label.
func ByLabel(spans []Span, window Span) (list []Span) {
	for _, s := range spans {
		if s.End <= window.Start || s.Start >= window.End || s.Label == "" {
			continue
		}
		if n := len(list); n > 0 && list[n-1].Label == s.Label {
			list[n-1].End = s.End
			continue
		}
		list = append(list, s)
	}
	return list
}
