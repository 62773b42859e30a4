package sim

import (
	"math"
	"slices"
)

// simulation runs a recording on paper. Every queue takes its tasks in order; a wait
// ends when what it is for has, and what the host issued after a wait of its own
// begins after that. All ranks do the same at the same time.
//
// Tasks that run at once share the processors: if together they want more than
// there are, each goes on the slower by as much.
type simulation struct {
	*Recording
	seconds []float64 // a kernel's, by queue and kernel, on processors of its own
	wants   []float64 // processors a task of each queue takes
	there   float64   // processors

	now    float64
	next   []int     // by queue, the task that comes
	left   []float64 // by queue, seconds of the task at work; < 0: none is
	begun  []float64
	tracks []*Track
	waited []float64 // when each wait of the host ended; NaN: not yet
}

// run returns what every queue did, and when each wait of the host ended, in
// seconds.
func (r *simulation) run() (tracks []*Track, waited []float64) {
	n := len(r.Queues)
	r.next, r.left, r.begun = make([]int, n), make([]float64, n), make([]float64, n)
	r.waited = slices.Repeat([]float64{math.NaN()}, len(r.waits))
	for i, q := range r.Queues {
		r.left[i] = -1
		r.tracks = append(r.tracks, &Track{name: q.Name, spans: r.memory.spansOf(i, max(1, len(q.Tasks)))})
	}
	for r.start() {
		r.advance()
	}
	return r.tracks, r.waited
}

// start takes up all tasks that can begin now. It returns false when all is done.
func (r *simulation) start() (busy bool) {
	for again := true; again; {
		again = false
		for i, w := range r.waits {
			if math.IsNaN(r.waited[i]) && (i == 0 || !math.IsNaN(r.waited[i-1])) && r.done(w.queue) >= int(w.until) {
				r.waited[i], again = r.now, true
			}
		}
		for i := range r.Queues {
			for r.left[i] < 0 && r.take(i) {
				again = true
			}
		}
	}
	for i, q := range r.Queues {
		if r.left[i] >= 0 {
			return true
		}
		if r.next[i] < len(q.Tasks) {
			busy = true
		}
	}
	if busy {
		panic("sim: a simulation in which every queue waits")
	}
	return false
}

// done is how many tasks of a queue are.
func (r *simulation) done(queue int32) int {
	if r.left[queue] >= 0 {
		return r.next[queue] - 1
	}
	return r.next[queue]
}

// take begins a queue's next task if it can, or passes over one that takes no
// time.
func (r *simulation) take(i int) bool {
	q := r.Queues[i]
	if r.next[i] == len(q.Tasks) {
		return false
	}
	t := &q.Tasks[r.next[i]]
	if t.host >= 0 && math.IsNaN(r.waited[t.host]) || t.Kernel < 0 && r.done(t.on) < int(t.until) {
		return false
	}
	r.next[i]++
	if t.Kernel < 0 {
		return true
	}
	s := r.seconds[i*len(r.Kernels)+int(t.Kernel)]
	if s > 0 {
		r.left[i], r.begun[i] = s, r.now
	}
	return true
}

// advance goes on to the end of the task that ends first.
func (r *simulation) advance() {
	wanted := 0.0
	for i, left := range r.left {
		if left >= 0 {
			wanted += r.wants[i]
		}
	}
	slow := max(1, wanted/r.there)
	pace := func(i int) float64 { // seconds that a second of the task takes
		if r.wants[i] > 0 {
			return slow
		}
		return 1
	}
	step := math.Inf(1)
	for i, left := range r.left {
		if left >= 0 {
			step = min(step, left*pace(i))
		}
	}
	r.now += step
	for i, left := range r.left {
		if left < 0 {
			continue
		}
		r.left[i] -= step / pace(i)
		if r.left[i] <= 1e-12*r.now || left*pace(i) == step {
			r.left[i] = -1
			t := &r.Queues[i].Tasks[r.next[i]-1]
			r.tracks[i].add(ran{r.labels[t.label], r.Kernels[t.Kernel].Op, int64(1e9 * r.begun[i]), int64(1e9 * r.now)})
		}
	}
}

// spansOf is an array of n spans of a queue.
func (m *memory) spansOf(queue, n int) []ran {
	for len(m.spans) <= queue {
		m.spans = append(m.spans, nil)
	}
	if cap(m.spans[queue]) < n {
		m.spans[queue] = make([]ran, n)
	}
	return m.spans[queue][:n]
}

// done is the recording's memory, of which the tasks are of no more use.
func (l *Recording) done() *memory {
	l.memory.tasks = l.memory.tasks[:0]
	for _, q := range l.Queues {
		l.memory.tasks = append(l.memory.tasks, q.Tasks)
		q.Tasks = nil
	}
	return l.memory
}
