package sim

import (
	"math"
	"slices"

	"zeroth/job/setup"
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
	waited []float64 // when each wait of the host ended, of those that have
	ended  []float64 // and each step
	spent  Exposure  // of steps after the first, in nanoseconds
	tracks []*Track  // what every queue did; none unless it is traced
}

// run runs all that the queues have.
func (r *simulation) run(traced bool) {
	n := len(r.Queues)
	r.next, r.left, r.begun = make([]int, n), make([]float64, n), make([]float64, n)
	for i, q := range r.Queues {
		if r.left[i] = -1; traced {
			r.tracks = append(r.tracks, &Track{name: q.Name, spans: make([]ran, max(1, len(q.Tasks)))})
		}
	}
	for r.start() {
		r.advance()
	}
}

// start takes up all tasks that can begin now. It returns false when all is done.
func (r *simulation) start() (busy bool) {
	for again := true; again; {
		again = false
		for at := len(r.waited); at < len(r.waits) && r.done(r.waits[at].queue) >= int(r.waits[at].until); at++ {
			r.waited, again = append(r.waited, r.now), true
			if n := len(r.ended); n < len(r.ends) && r.ends[n] == at {
				r.ended = append(r.ended, r.now)
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
	if int(t.host) >= len(r.waited) || t.Kernel < 0 && r.done(t.on) < int(t.until) {
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
	from := r.now
	r.now += step
	r.spend(float64(nanoseconds(r.now) - nanoseconds(from)))
	for i, left := range r.left {
		if left < 0 {
			continue
		}
		r.left[i] -= step / pace(i)
		if r.left[i] <= 1e-12*r.now || left*pace(i) == step {
			r.left[i] = -1
			if r.tracks != nil {
				t := &r.Queues[i].Tasks[r.next[i]-1]
				r.tracks[i].add(ran{r.labels[t.label], r.Kernels[t.Kernel].Op, nanoseconds(r.begun[i]), nanoseconds(r.now)})
			}
		}
	}
}

// nanoseconds are whole.
func nanoseconds(s float64) int64 { return int64(1e9 * s) }

// spend adds nanoseconds in which the queues are at work that are.
func (r *simulation) spend(ns float64) {
	if n := len(r.ended); n == 0 || n == len(r.ends) {
		return
	}
	at := func(i int) bool { return r.left[i] >= 0 }
	r.spent.Seconds += ns
	switch beside := slices.ContainsFunc(r.left[len(setup.Queues):], func(left float64) bool { return left >= 0 }); {
	case at(0):
		r.spent.Compute += ns
	case at(1):
		r.spent.Exposed += ns
	case beside:
		r.spent.Offload += ns
	}
}
