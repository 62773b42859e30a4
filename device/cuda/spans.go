//go:build cuda

package cuda

import (
	"slices"
	"time"

	"zeroth/device"
	"zeroth/device/cuda/driver"
)

// spans is a queue's trace: events around each task, whose times are read when the host waits for
// the queue, or when an event is needed. Host functions have the host's time. Nothing is recorded
// without a listener.
type spans struct {
	told  func(device.Span)
	zero  driver.Event // recorded at about the host's time at
	at    time.Time
	open  []span // in the order of the stream
	spare []driver.Event
}

// span is a task in the stream.
type span struct {
	queue, label, task string
	from, to           driver.Event
}

// Trace calls f after each subsequent task, when its end is noticed, or stops if f is nil. The queue
// must be idle. Waits for other queues have no spans: they are between the spans.
func (q *Queue) Trace(f func(device.Span)) {
	s := &q.spans
	s.flush()
	s.told = nil
	if f == nil {
		return
	}
	e, before := s.event(q), time.Now()
	q.commands().Record(e)
	if q.Wait() != nil {
		return
	}
	s.zero, s.told = e, f
	s.at = before.Add(time.Since(before) / 2) // the GPU recorded e between both times
}

// event returns an event, of a completed task if possible: no one may wait for the queue during a run.
func (s *spans) event(q *Queue) driver.Event {
	if len(s.spare) == 0 {
		q.flush() // before it, an event may have the state of its last use
		n := 0
		for n < len(s.open) && s.open[n].to.Reached() {
			n++
		}
		s.report(n)
	}
	if n := len(s.spare); n > 0 {
		e := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return e
	}
	e, err := q.dev.gpu.NewEvent(true)
	q.fail(err)
	return e
}

// begin records the beginning of a task, end its end.
func (s *spans) begin(q *Queue, task string) {
	sp := span{q.name, q.label, task, s.event(q), s.event(q)}
	q.commands().Record(sp.from)
	s.open = append(s.open, sp)
}

func (s *spans) end(q *Queue) {
	q.commands().Record(s.open[len(s.open)-1].to)
}

// host reports a host function that began at start.
func (s *spans) host(q *Queue, task string, start time.Time) {
	if s.told != nil && task != "" {
		s.told(device.Span{Queue: q.name, Label: q.label, Task: task, Start: start, End: time.Now()})
	}
}

// flush reports all tasks. The stream must be idle.
func (s *spans) flush() { s.report(len(s.open)) }

// report reports the first n open tasks, which are completed.
func (s *spans) report(n int) {
	for _, sp := range s.open[:n] {
		from, err := sp.from.Since(s.zero)
		to, err2 := sp.to.Since(s.zero)
		if err == nil && err2 == nil {
			s.told(device.Span{Queue: sp.queue, Label: sp.label, Task: sp.task, Start: s.after(from), End: s.after(to)})
		}
		s.spare = append(s.spare, sp.from, sp.to)
	}
	s.open = slices.Delete(s.open, 0, n)
}

func (s *spans) after(ms float32) time.Time {
	return s.at.Add(time.Duration(float64(ms) * float64(time.Millisecond)))
}

func (s *spans) close() {
	for _, e := range s.spare {
		_ = e.Close()
	}
	s.spare = nil
}
