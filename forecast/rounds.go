package forecast

import (
	"slices"

	"zeroth/fsdp"
)

// round is the work that a rank issues in a step between the ends of two passes of a kind, of
// micro-batches as far apart as the pipeline has ranks. In a long step such work repeats, and what it
// waits for is always as far back.
type round struct {
	of       fsdp.Op
	from, to cut
}

// cut is a point in the order in which a rank issues its work.
type cut struct {
	Operations
	tasks []int32 // by queue
	waits int32
}

// cutAt notes that the pass of an event has ended. The first micro-batches may differ: others wait for
// memory of earlier ones, and add to their gradients.
func (l *Recording) cutAt(e fsdp.Event) {
	for i := range l.rounds {
		switch r := &l.rounds[i]; {
		case !e.Done || e.Op != r.of:
		case e.Micro == l.pipeline:
			r.from = l.cut(r.from.tasks)
		case e.Micro == 2*l.pipeline:
			r.to = l.cut(r.to.tasks)
		}
	}
}

// cut returns the current point, with its tasks in the given memory.
func (l *Recording) cut(tasks []int32) cut {
	tasks = tasks[:0]
	for _, q := range l.Queues {
		tasks = append(tasks, int32(len(q.Tasks)))
	}
	return cut{l.Operations, tasks, int32(len(l.waits))}
}

// shorter returns the recording with a round of micro-batches fewer in its last step, of at least three
// rounds.
func (l *Recording) shorter() *Recording {
	for _, r := range slices.Backward(l.rounds) {
		l = l.without(r.from, r.to)
	}
	return l
}

// without returns the recording without the work between two points.
func (l *Recording) without(from, to cut) *Recording {
	x, n := *l, to.waits-from.waits
	x.Flops -= to.Flops - from.Flops
	x.Again -= to.Again - from.Again
	x.Sent -= to.Sent - from.Sent
	back := func(until *int32, queue int32) { *until = max(0, *until-to.tasks[queue]+from.tasks[queue]) }
	x.waits = slices.Concat(l.waits[:from.waits], l.waits[to.waits:])
	for i := range x.waits[from.waits:] {
		w := &x.waits[int(from.waits)+i]
		back(&w.until, w.queue)
	}
	x.ends = slices.Clone(l.ends)
	x.ends[len(x.ends)-1] -= int(n)
	x.Queues = nil
	for i, q := range l.Queues {
		y := *q
		y.Tasks = slices.Concat(q.Tasks[:from.tasks[i]], q.Tasks[to.tasks[i]:])
		for j := range y.Tasks[from.tasks[i]:] {
			t := &y.Tasks[int(from.tasks[i])+j]
			if t.host -= n; t.Kernel < 0 {
				back(&t.until, t.on)
			}
		}
		x.Queues = append(x.Queues, &y)
	}
	return &x
}
