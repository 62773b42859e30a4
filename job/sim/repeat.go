package sim

// repeat appends a copy of the last step instead of issuing it again; left is the number of steps
// to come, including this one. From the second step on, all steps issue the same work, and their
// waits are at the same distance. It returns false and appends nothing if the existing steps do
// not determine the next one.
func (l *Recording) repeat(left int) bool {
	n := len(l.ends)
	if n < 2 {
		return false
	}
	waits := l.waits[l.ends[n-2]+1 : l.ends[n-1]+1] // of the last step
	from, later := l.last, make([]laterPlaces, len(l.Queues))
	for i := range l.Queues {
		later[i].of(l, i)
	}
	shifted, ok := make([][]int32, len(l.Queues)), true // targets of the last step's waits, shifted to the next step
	for i, q := range l.Queues {
		for _, t := range q.Tasks[from[i]:] {
			if t.Kernel < 0 && ok {
				var until int32
				until, ok = later[t.on].after(t.until)
				shifted[i] = append(shifted[i], until)
			}
		}
	}
	more := make([]hostWait, 0, len(waits))
	for _, w := range waits {
		if ok {
			w.until, ok = later[w.queue].after(w.until)
			more = append(more, w)
		}
	}
	if !ok {
		return false
	}
	l.step(left)
	for i, q := range l.Queues {
		for _, t := range q.Tasks[from[i]:l.last[i]] {
			if t.Kernel < 0 {
				t.until, shifted[i] = shifted[i][0], shifted[i][1:]
			}
			t.host += int32(len(waits))
			q.Tasks = append(q.Tasks, t)
		}
	}
	l.waits = append(l.waits, more...)
	l.ends = append(l.ends, len(l.waits)-1)
	return true
}

// laterPlaces maps targets of waits in the last step to the next step.
type laterPlaces struct {
	tasks        []task
	before, last int     // start of the last step but one, and of the last
	kernels      []int32 // by task of the last step but one: kernels so far
	ends         []int32 // by kernel of the last step: number of tasks up to its end
	alike        bool    // both steps have the same kernels
}

func (p *laterPlaces) of(l *Recording, queue int) {
	p.tasks, p.before, p.last, p.alike = l.Queues[queue].Tasks, l.before[queue], l.last[queue], true
	first := make([]int32, 0, p.last-p.before)
	p.kernels, p.ends = make([]int32, 0, p.last-p.before), make([]int32, 0, len(p.tasks)-p.last)
	for i, t := range p.tasks[p.before:] {
		switch {
		case p.before+i < p.last:
			if t.Kernel >= 0 {
				first = append(first, t.Kernel)
			}
			p.kernels = append(p.kernels, int32(len(first)))
		case t.Kernel >= 0:
			at := len(p.ends)
			p.alike = p.alike && at < len(first) && first[at] == t.Kernel
			p.ends = append(p.ends, int32(p.before+i+1))
		}
	}
	p.alike = p.alike && len(p.ends) == len(first)
}

// after returns the target in the next step for a wait of the last step. A target in the last step
// moves by a step. A target in the step before, which may have had fewer waits, moves to the end
// of the same kernel, because queues are marked after kernels.
func (p *laterPlaces) after(until int32) (later int32, ok bool) {
	switch at := int(until) - p.before; {
	case int(until) > p.last:
		return until + int32(len(p.tasks)-p.last), true
	case at <= 0:
		return until, until == 0
	case !p.alike || p.tasks[until-1].Kernel < 0:
		return 0, false
	default:
		return p.ends[p.kernels[at-1]-1], true
	}
}
