package job

import (
	"strings"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/nn"
)

// watchedModule tells the watch when a module is called and what it takes.
type watchedModule struct {
	nn.Module
	w     *watch
	unit  *watchedUnit
	at    int  // its index
	end   bool // it is the last
	floor int  // the arena's height before the module's output
}

// Forward implements nn.Module. The first call in a micro-batch saves what
// Backward needs, or nothing; a second one, to save it after all, follows the
// forward pass.
func (m *watchedModule) Forward(q nn.Ops, mem nn.Scratch, w []device.Buffer, bt *nn.Batch, x, y device.Buffer, s *nn.Saved) {
	m.w.turn()
	phase, of := forward, WorkSpace
	switch {
	case m.w.back:
		phase, of = recomputing, Recomputed
	case s != nil:
		of = SavedActivations
	}
	m.w.at = nil
	if !m.w.back {
		m.w.lower(mem.Mark())
		m.floor = m.w.height()
		m.w.raise(mem.Mark(), SavedActivations) // the output, and in front of the first the gradient of all outputs
	}
	m.w.hold(m.unit)
	m.w.event(phase, m.unit.name, m.at)
	m.Module.Forward(q, &watchedScratch{mem, m, bt, of}, w, bt, x, y, s)
	m.w.at = nil
	if phase == forward {
		m.w.leave(m.unit)
	}
	m.w.back = m.w.back || m.end
}

// Backward implements nn.Module.
func (m *watchedModule) Backward(q nn.Ops, mem nn.Scratch, w, dw []device.Buffer, bt *nn.Batch, x, d device.Buffer, s *nn.Saved) {
	m.w.at = nil
	if m.at > 0 || !m.w.lookup {
		m.w.hold(m.unit)
	}
	m.w.gradient(m.unit)
	m.w.event(backward, m.unit.name, m.at)
	m.Module.Backward(q, &watchedScratch{mem, m, bt, WorkSpace}, w, dw, bt, x, d, s)
	m.w.at = nil
	m.w.lower(m.floor)
	m.w.leave(m.unit)
	if m.at == m.unit.first && m.w.policy.KeepGrads && m.w.micro > 0 {
		m.w.unslot(m.unit) // it has been added to what is kept
	}
	m.w.passed = m.at == 0
}

// watchedScratch tells the watch what a module takes, for the category of.
type watchedScratch struct {
	nn.Scratch
	m  *watchedModule
	bt *nn.Batch
	of Category
}

// Take implements nn.Scratch.
func (s *watchedScratch) Take(t device.DType, n int) device.Buffer {
	of := s.of
	if s.m.end && t == s.bt.Compute && n == min(s.bt.Chunk, s.bt.Rows())*s.m.w.vocab {
		of = Logits
	}
	b := s.Scratch.Take(t, n)
	s.m.w.raise(s.Scratch.Mark(), of)
	return b
}

// Release implements nn.Scratch.
func (s *watchedScratch) Release(to int) {
	s.Scratch.Release(to)
	s.m.w.lower(to)
}

// watchedQueue is a queue on which units are gathered, reduced and updated. Its
// labels tell which and what: "unit h.3: update".
type watchedQueue struct {
	ops
	w     *watch
	label string
}

// Label implements device.Queue.
func (q *watchedQueue) Label(what string) {
	if q.label == what {
		return
	}
	q.label = what
	q.ops.Label(what)
	u, work := q.unit()
	if u == nil || work != string(norming) && work != string(updating) {
		return
	}
	q.w.settle()
	q.w.event(Phase(work), u.name, -1)
	if work == string(updating) {
		q.w.update(u)
	}
}

// unit is what the label says.
func (q *watchedQueue) unit() (u *watchedUnit, work string) {
	name, work, _ := strings.Cut(strings.TrimPrefix(q.label, "unit "), ": ")
	return q.w.units[name], work
}

// watchedGroup tells the watch what is gathered and reduced. A phase without a
// name is part of another.
type watchedGroup struct {
	collective.Group
	w      *watch
	phases [2]Phase // of AllGather and ReduceScatter
}

// AllGather implements collective.Group.
func (g *watchedGroup) AllGather(q device.Queue, whole, own device.Buffer) {
	g.Group.AllGather(q, whole, own)
	g.send(whole)
	u, _ := q.(*watchedQueue).unit()
	if g.phases[0] == "" {
		return
	}
	g.w.turn()
	g.w.at, u.left = nil, -1
	g.w.hold(u)
	g.event(g.phases[0], u)
}

// ReduceScatter implements collective.Group.
func (g *watchedGroup) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	g.Group.ReduceScatter(q, own, whole)
	g.send(whole)
	u, _ := q.(*watchedQueue).unit()
	g.event(g.phases[1], u)
	if g.phases[1] == reducing {
		g.w.reduce(u)
	}
	g.w.at = nil
}

// event is one that only several ranks have.
func (g *watchedGroup) event(p Phase, u *watchedUnit) {
	if g.Size() > 1 {
		g.w.event(p, u.name, -1)
	}
}

// send counts what a rank sends when the parts of b go around a ring.
func (g *watchedGroup) send(b device.Buffer) {
	g.w.sent += int64(b.Bytes() / g.Size() * (g.Size() - 1))
}
