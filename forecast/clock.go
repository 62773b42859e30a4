package forecast

import (
	"math"

	"zeroth/internal/setup"
	"zeroth/job/trace"
)

// simulation runs the recordings of all places of a pipeline on a virtual clock. Every queue runs
// its tasks in order. A wait ends when its target has finished, and work that the host issued
// after waiting begins after that wait. All ranks of a place do the same at the same time. An
// operation between places begins when all of its members have reached it.
type simulation struct {
	ranks  []*pipelineRank
	came   []int             // by junction: members that have reached one of its operations
	joined [][]*pipelineRank // by junction: those that have reached the next one
	now    float64
	shared bool // all places share the same processors
}

// pipelineRank is the simulation of one place.
//
// Concurrent tasks share the processors. If they need more than there are, all of them slow down
// proportionally.
type pipelineRank struct {
	*Recording
	sim     *simulation
	seconds []float64 // of each kernel, by queue and kernel, on processors of its own
	wants   []float64 // processors that a task of each queue needs
	there   float64   // number of processors

	stops     [][]bool  // by queue and task: others wait for the preceding tasks; nil: do not merge tasks
	next      []int     // by queue: index of the next task
	joined    []int     // by queue: number of tasks running as one
	remaining []float64 // by queue: remaining seconds of the running task; < 0: none
	begun     []float64
	counted   []bool         // by queue: the next task is counted in simulation.came
	met       []int          // by junction: operations that have begun
	at        float64        // time up to which running tasks have been advanced
	end       float64        // time of the next end of a task, unless another begins; infinity: none is running
	changed   bool           // other tasks are running than at the last share
	awake     bool           // something has happened since start that may let tasks begin
	waited    []float64      // end of each finished wait of the host
	ended     []float64      // and of each step
	slow      float64        // current slowdown of tasks that need processors
	spent     trace.Exposure // over steps after the first, in nanoseconds
	idle      float64        // nanoseconds of these steps in which no queue is running
	tracks    []*trace.Track // work of every queue; nil unless traced
}

// run runs all tasks of all queues.
func (r *simulation) run(traced bool) {
	n := junctions(len(r.ranks))
	r.came, r.joined = make([]int, n), make([][]*pipelineRank, n)
	for _, p := range r.ranks {
		p.open(r, traced)
	}
	for {
		r.start()
		r.share()
		if !r.advance() {
			return
		}
	}
}

// open initializes a place's queues.
func (r *pipelineRank) open(of *simulation, traced bool) {
	n := len(r.Queues)
	r.sim, r.awake, r.changed = of, true, true
	r.next, r.joined, r.counted, r.met = make([]int, n), make([]int, n), make([]bool, n), make([]int, len(of.came))
	r.remaining, r.begun = make([]float64, n), make([]float64, n)
	for i, q := range r.Queues {
		r.remaining[i] = -1
		if !traced {
			r.stops = append(r.stops, r.stopsOf(i))
		} else {
			r.tracks = append(r.tracks, trace.NewTrack(q.Role, max(1, len(q.Tasks))))
		}
	}
}

// start begins all tasks that can begin now.
func (r *simulation) start() {
	for again := true; again; {
		again = false
		for _, p := range r.ranks {
			again = p.awake && p.start() || again
		}
	}
}

// start begins the place's tasks that can begin now, and reports whether there were any.
func (r *pipelineRank) start() (some bool) {
	r.advance()
	r.awake = false
	for again := true; again; some = some || again {
		again = false
		for at := len(r.waited); at < len(r.waits) && r.done(r.waits[at].queue) >= int(r.waits[at].until); at++ {
			r.waited, again = append(r.waited, r.sim.now), true
			if n := len(r.ended); n < len(r.ends) && r.ends[n] == at {
				r.ended = append(r.ended, r.sim.now)
			}
		}
		for i := range r.Queues {
			for r.remaining[i] < 0 && r.take(i) {
				again = true
			}
		}
	}
	return some
}

// done returns the number of finished tasks of a queue.
func (r *pipelineRank) done(queue int32) int {
	if r.remaining[queue] >= 0 {
		return r.next[queue] - r.joined[queue]
	}
	return r.next[queue]
}

// take begins a queue's next task if possible, or skips a task that takes no time.
func (r *pipelineRank) take(i int) bool {
	q := r.Queues[i]
	if r.next[i] == len(q.Tasks) {
		return false
	}
	t := &q.Tasks[r.next[i]]
	if int(t.host) >= len(r.waited) || t.Kernel < 0 && r.done(t.on) < int(t.until) {
		return false
	}
	if t.Kernel >= 0 && t.on > 0 && !r.meet(i, t.on) {
		return false
	}
	r.next[i]++
	if t.Kernel < 0 {
		return true
	}
	seconds := r.seconds[i*len(r.Kernels):]
	s := seconds[t.Kernel]
	r.joined[i] = 1
	for r.stops != nil && r.next[i] < len(q.Tasks) && !r.stops[i][r.next[i]] {
		s += seconds[q.Tasks[r.next[i]].Kernel]
		r.joined[i]++
		r.next[i]++
	}
	if s > 0 {
		r.remaining[i], r.begun[i], r.changed = s, r.sim.now, true
	}
	return true
}

// stopsOf returns the tasks of a queue that cannot be merged with the previous one: one of the two
// waits, something waits for the point between them, or one computes and the other communicates.
func (r *pipelineRank) stopsOf(queue int) []bool {
	tasks := r.Queues[queue].Tasks
	stops := make([]bool, len(tasks)+1)
	for i, t := range tasks {
		if i == 0 || t.Kernel < 0 || tasks[i-1].Kernel < 0 {
			stops[i] = true
			continue
		}
		was := tasks[i-1]
		exchanges := trace.Exchanges(r.Kernels[t.Kernel].Op)
		stops[i] = t.on > 0 || t.host != was.host ||
			r.Queues[queue].Role == setup.Compute && exchanges != trace.Exchanges(r.Kernels[was.Kernel].Op)
	}
	for _, w := range r.waits {
		if int(w.queue) == queue {
			stops[w.until] = true
		}
	}
	for _, q := range r.Queues {
		for _, t := range q.Tasks {
			if t.Kernel < 0 && int(t.on) == queue {
				stops[t.until] = true
			}
		}
	}
	return stops
}

// meet joins an operation between places, and reports whether all members have.
func (r *pipelineRank) meet(queue int, junction int32) bool {
	if !r.counted[queue] {
		r.counted[queue] = true
		r.sim.came[junction]++
		r.sim.joined[junction] = append(r.sim.joined[junction], r)
	}
	if r.sim.came[junction] < (r.met[junction]+1)*members(junction, len(r.sim.ranks)) {
		return false
	}
	for _, p := range r.sim.joined[junction] {
		p.awake = true
	}
	r.sim.joined[junction] = r.sim.joined[junction][:0]
	r.counted[queue] = false
	r.met[junction]++
	return true
}

// advance moves the clock to the next end of a task. It returns false when all are done.
func (r *simulation) advance() bool {
	next := math.Inf(1)
	for _, p := range r.ranks {
		next = min(next, p.end)
	}
	if math.IsInf(next, 1) {
		r.finish()
		return false
	}
	r.now = next
	for _, p := range r.ranks {
		if r.shared || p.end <= next*(1+1e-12) {
			p.advance()
		}
	}
	return true
}

// finish checks that all tasks are done.
func (r *simulation) finish() {
	for _, p := range r.ranks {
		for i, q := range p.Queues {
			if p.next[i] < len(q.Tasks) {
				panic("forecast: a simulation in which every queue waits")
			}
		}
	}
}

// share divides the processors among the running tasks that need some, and finds the next end of one.
func (r *simulation) share() {
	all, there := 0.0, 0.0
	for _, p := range r.ranks {
		if p.changed || r.shared {
			wanted := p.wanted()
			p.slow = max(1, wanted/p.there)
			all, there = all+wanted, there+p.there
		}
	}
	for _, p := range r.ranks {
		if r.shared {
			p.slow = max(1, all/there)
		}
		if p.changed || r.shared {
			p.changed, p.end = false, math.Inf(1)
			for i, left := range p.remaining {
				if left >= 0 {
					p.end = min(p.end, r.now+left*p.pace(i))
				}
			}
		}
	}
}

// wanted returns the number of processors that the place's running tasks need.
func (r *pipelineRank) wanted() (n float64) {
	for i, left := range r.remaining {
		if left >= 0 {
			n += r.wants[i]
		}
	}
	return n
}

// pace returns the slowdown of a queue's task.
func (r *pipelineRank) pace(i int) float64 {
	if r.wants[i] > 0 {
		return r.slow
	}
	return 1
}

// advance moves the place's running tasks forward to the current time. A task that is too short to
// move the clock ends, too.
func (r *pipelineRank) advance() {
	now, step := r.sim.now, r.sim.now-r.at
	if step > 0 {
		r.spend(float64(nanoseconds(now) - nanoseconds(r.at)))
		r.at = now
	}
	for i, left := range r.remaining {
		if left < 0 {
			continue
		}
		r.remaining[i] -= step / r.pace(i)
		if r.remaining[i] > 1e-12*now {
			continue
		}
		r.remaining[i], r.awake, r.changed = -1, true, true
		if r.tracks != nil {
			t := &r.Queues[i].Tasks[r.next[i]-1]
			r.tracks[i].Add(trace.Span{
				Label: r.labels[t.label], Task: r.Kernels[t.Kernel].Op, Start: nanoseconds(r.begun[i]), End: nanoseconds(now),
			})
		}
	}
}

// nanoseconds converts seconds to whole nanoseconds.
func nanoseconds(s float64) int64 { return int64(1e9 * s) }

// spend attributes nanoseconds to the queues that are running.
func (r *pipelineRank) spend(ns float64) {
	if n := len(r.ended); n == 0 || n == len(r.ends) {
		return
	}
	var computing, moving, offloading, updating bool
	for i, left := range r.remaining {
		if left < 0 {
			continue
		}
		switch role := r.Queues[i].Role; {
		case role == setup.Compute: // ranks that divide matrices do not compute while they exchange
			computing = !trace.Exchanges(r.Kernels[r.Queues[i].Tasks[r.next[i]-1].Kernel].Op)
			moving = moving || !computing
		case role.Offloads():
			offloading = true
		case role == setup.Update:
			updating = true
		default:
			moving = true
		}
	}
	r.spent.Seconds += ns
	switch {
	case computing:
		r.spent.Compute += ns
	case moving:
		r.spent.Exposed += ns
	case offloading:
		r.spent.Offload += ns
	case !updating:
		r.idle += ns
	}
}
