package trace

import (
	"strconv"
	"time"

	"zeroth/internal/setup"
)

// Sample records some steps of one rank during a run. The rank's queues are idle at its beginning
// and end, so that each update belongs to its own step. Therefore the steps at both ends overlap
// less than others. A nil Sample records nothing.
type Sample struct {
	rank  *setup.Rank
	trace Trace // of this rank only
	from  time.Time
}

// Short is the number of tasks per queue in several steps of a model of a hundred layers.
const Short = 1 << 12

// NewSample returns a sample of a rank's steps that keeps up to spans tasks per queue. Begin may be
// called again after End.
func NewSample(r *setup.Rank, spans int) *Sample {
	s := &Sample{rank: r, trace: Trace{origin: time.Now()}}
	s.trace.open(r, spans)
	return s
}

// Begin waits until the rank's queues are idle and starts recording.
func (s *Sample) Begin() {
	own := s.trace.ranks[0]
	for _, k := range own {
		k.n = 0
	}
	for _, q := range s.rank.Queues.All() {
		_ = q.Wait() // the step reports its error
	}
	s.trace.record(s.rank, own)
	s.from = time.Now()
}

// Step ends a step, in which the host waited for the norm from waited[0] to waited[1].
func (s *Sample) Step(n int, waited [2]time.Time) {
	if s == nil {
		return
	}
	now := time.Now()
	own := s.trace.ranks[0]
	own.steps().Add(s.trace.span("", "step "+strconv.Itoa(n), s.from, now))
	own.host().Add(s.trace.span("the norm", "wait", waited[0], waited[1]))
	s.from = now
}

// End waits until the queues are idle, stops recording and returns the mean exposure of the steps.
// The last step ends with its update. The result has no steps if the queues had more tasks than a
// sample keeps.
func (s *Sample) End() (e Exposure) {
	if s == nil {
		return e
	}
	stop(s.rank)
	own := s.trace.ranks[0]
	all := own.steps()
	last := &all.spans[all.n-1]
	last.End = int64(time.Since(s.trace.origin))
	for _, step := range all.All() {
		if step.Start >= own.since() {
			e.add(own, step)
		}
	}
	return e.mean(1)
}

// Lane is the work of one queue in a sample, for drawing.
type Lane struct {
	Queue string    `json:"queue"`
	Spans []Stretch `json:"spans"`
}

// Stretch is work without a visible gap.
type Stretch struct {
	From  float64 `json:"from"` // seconds since the sample began
	To    float64 `json:"to"`
	Task  string  `json:"task"`  // of the longest piece
	Label string  `json:"label"` // of the longest piece: the unit
}

// mostStretches bounds the stretches of a lane.
const mostStretches = 400

// Lanes returns the work of each queue in at most mostStretches pieces each, and the seconds of
// the sample.
func (s *Sample) Lanes() (lanes []Lane, seconds float64) {
	own := s.trace.ranks[0]
	steps := own.steps().All()
	from, to := steps[0].Start, steps[len(steps)-1].End
	gap := (to - from) / mostStretches
	for _, k := range own.withoutSteps() {
		lane := Lane{Queue: k.name}
		var end, longest int64
		for _, r := range busy(k.All(), Span{Start: from, End: to}) {
			n := len(lane.Spans)
			if n == 0 || r.Start-end > gap || r.Task != lane.Spans[n-1].Task && r.End-r.Start > gap {
				lane.Spans = append(lane.Spans, Stretch{From: 1e-9 * float64(r.Start-from)})
				n, longest = n+1, 0
			}
			at := &lane.Spans[n-1]
			if r.End-r.Start > longest {
				longest, at.Task, at.Label = r.End-r.Start, r.Task, r.Label
			}
			end = r.End
			at.To = 1e-9 * float64(end-from)
		}
		lanes = append(lanes, lane)
	}
	return lanes, 1e-9 * float64(to-from)
}
