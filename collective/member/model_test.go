package member

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"

	"zeroth/tests/nightly"
)

// world is a state of some nodes, of the messages between them, and of what may still go wrong.
type world struct {
	nodes    []*Machine
	queues   [][]Message // (n*n) from each node to each
	dead     []bool
	cut      []bool // (n*n) the connection of each pair with a < b
	running  []bool // in the view entered last
	steps    []int
	verdicts []string
	voted    []bool // for step steps+1 in the view entered last
	votes    []vote // of all nodes and steps, which others may count later
	kills    int    // left
	cuts     int    // left
	lost     int    // nodes killed and connections cut
}

// vote is a node's for a step of a view.
type vote struct{ epoch, step, node int }

// model explores all orders of events.
type model struct {
	t    *testing.T
	most int // steps
	seen map[[16]byte]bool
}

func newWorld(n, each, kills, cuts int) *world {
	w := &world{queues: make([][]Message, n*n), cut: make([]bool, n*n), dead: make([]bool, n), running: slices.Repeat([]bool{true}, n),
		steps: make([]int, n), verdicts: make([]string, n), voted: make([]bool, n), kills: kills, cuts: cuts}
	var v View
	for i := range n {
		v.Nodes = append(v.Nodes, i)
	}
	for i := range n {
		c := Config{Me: i, Unit: func(n int) int { return n / each }, Size: func(int) int { return each }, Min: 1}
		w.nodes = append(w.nodes, New(c, v, 0))
	}
	return w
}

func (w *world) clone() *world {
	x := *w
	x.nodes, x.queues = slices.Clone(w.nodes), slices.Clone(w.queues)
	for i, m := range w.nodes {
		y := *m
		y.lost, y.accepted, y.reports = slices.Clone(m.lost), slices.Clone(m.accepted), maps.Clone(m.reports)
		x.nodes[i] = &y
	}
	for i, q := range w.queues {
		x.queues[i] = slices.Clip(q)
	}
	x.dead, x.cut, x.running, x.voted = slices.Clone(w.dead), slices.Clone(w.cut), slices.Clone(w.running), slices.Clone(w.voted)
	x.steps, x.verdicts, x.votes = slices.Clone(w.steps), slices.Clone(w.verdicts), slices.Clone(w.votes)
	return &x
}

// key returns a hash of the state.
func (w *world) key() (k [16]byte) {
	h := fnv.New128a()
	for i, m := range w.nodes {
		if w.dead[i] {
			fmt.Fprint(h, "dead;")
			continue
		}
		fmt.Fprint(h, m.view, m.entered, m.steps, m.verdict, m.lost, m.changes, m.reports, m.reports == nil, m.proposal, m.accepted, m.high, w.running[i], w.voted[i], ";")
	}
	votes := slices.Clone(w.votes)
	slices.SortFunc(votes, func(a, b vote) int { return (a.epoch-b.epoch)<<16 + (a.step-b.step)<<8 + a.node - b.node })
	fmt.Fprint(h, w.queues, w.cut, votes, w.kills, w.cuts)
	h.Sum(k[:0])
	return k
}

// event is something that may happen next; do changes a copy of the world.
type event struct {
	name string
	do   func(*world) error
}

// events returns what may happen next. Messages of a pair arrive in order, and some of the last ones
// never if the sender dies or the connection is cut.
func (w *world) events(most int) (all []event) {
	add := func(name string, do func(*world) error) { all = append(all, event{name, do}) }
	for a := range w.nodes {
		if w.dead[a] {
			continue
		}
		if w.kills > 0 {
			add(fmt.Sprint("kill ", a), func(w *world) error { w.kills--; w.lost++; w.kill(a); return nil })
		}
		if w.running[a] && !w.voted[a] && w.steps[a] < most {
			add(fmt.Sprint("vote ", a), func(w *world) error {
				w.voted[a] = true
				w.votes = append(w.votes, vote{w.nodes[a].entered.Epoch, w.steps[a] + 1, a})
				return nil
			})
		}
		if w.running[a] && w.voted[a] && w.passes(a) {
			add(fmt.Sprint("pass ", a), func(w *world) error {
				w.steps[a]++
				w.voted[a], w.verdicts[a] = false, fmt.Sprint(w.nodes[a].entered.Epoch, "/", w.steps[a])
				w.nodes[a].Stand(w.steps[a], 0, w.verdicts[a])
				return nil
			})
		}
		if w.running[a] && w.fails(a) {
			add(fmt.Sprint("fail ", a), func(w *world) error { return w.apply(a, w.nodes[a].Change()) })
		}
		for b := range w.nodes {
			if a == b {
				continue
			}
			if at := min(a, b)*len(w.nodes) + max(a, b); a < b && w.cuts > 0 && !w.dead[b] && !w.cut[at] {
				add(fmt.Sprint("cut ", a, b), func(w *world) error { w.cuts--; w.lost++; w.cut[at] = true; return nil })
			}
			if w.nodes[a].Lost(b) {
				continue
			}
			if q := w.queues[b*len(w.nodes)+a]; len(q) > 0 {
				add(fmt.Sprint(a, " hears ", q[0].Kind, " from ", b), func(w *world) error {
					w.queues[b*len(w.nodes)+a] = q[1:]
					return w.apply(a, w.nodes[a].Hear(b, q[0]))
				})
			}
			if w.dead[b] || w.cut[min(a, b)*len(w.nodes)+max(a, b)] {
				add(fmt.Sprint(a, " loses ", b), func(w *world) error {
					w.queues[b*len(w.nodes)+a] = nil
					return w.apply(a, w.nodes[a].Lose(b))
				})
			}
		}
	}
	return all
}

func (w *world) kill(a int) {
	w.dead[a], w.running[a] = true, false
	for b := range w.nodes {
		w.queues[b*len(w.nodes)+a] = nil
	}
}

// passes reports whether a node can have the votes of its whole view.
func (w *world) passes(a int) bool {
	for _, n := range w.nodes[a].entered.Nodes {
		if !slices.Contains(w.votes, vote{w.nodes[a].entered.Epoch, w.steps[a] + 1, n}) {
			return false
		}
	}
	return true
}

// fails reports whether an operation of a node's view may fail: one of its nodes has ended the view,
// or will never enter it.
func (w *world) fails(a int) bool {
	v := w.nodes[a].entered
	return slices.ContainsFunc(v.Nodes, func(n int) bool {
		return w.dead[n] || w.nodes[n].view.Epoch != v.Epoch || w.nodes[n].entered.Epoch == v.Epoch && !w.running[n]
	})
}

// apply carries out a node's actions and checks what must hold.
func (w *world) apply(me int, all []Action) error {
	for _, a := range all {
		switch a.Deed {
		case Send:
			if at := me*len(w.nodes) + a.To; !w.dead[a.To] && !w.nodes[a.To].Lost(me) && !w.cut[min(me, a.To)*len(w.nodes)+max(me, a.To)] {
				w.queues[at] = append(slices.Clip(w.queues[at]), a.Message)
			}
		case Stop:
			w.running[me] = false
		case GiveUp:
			w.kill(me)
		case GoOn:
			if err := w.enter(me, a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) enter(me int, a Action) error {
	switch {
	case a.Finish && (a.Steps != w.steps[me]+1 || !w.voted[me]):
		return fmt.Errorf("node %d finishes step %d after %d, voted %v", me, a.Steps, w.steps[me], w.voted[me])
	case !a.Finish && (a.Steps != w.steps[me] || a.Verdict != w.verdicts[me]):
		return fmt.Errorf("node %d goes on at step %d (%s) after %d (%s)", me, a.Steps, a.Verdict, w.steps[me], w.verdicts[me])
	}
	for _, n := range a.View.Nodes {
		if c := w.nodes[me].cfg; count(a.View.Nodes, func(o int) bool { return c.Unit(o) == c.Unit(n) }) != c.Size(c.Unit(n)) {
			return fmt.Errorf("epoch %d %v has only a part of unit %d", a.View.Epoch, a.View.Nodes, c.Unit(n))
		}
	}
	w.running[me], w.voted[me], w.steps[me], w.verdicts[me] = true, false, a.Steps, a.Verdict
	for o, m := range w.nodes {
		v := m.entered
		if o == me || w.dead[o] {
			continue
		}
		if v.Epoch == a.View.Epoch && (!slices.Equal(v.Nodes, a.View.Nodes) || w.running[o] && w.steps[o] < a.Steps) {
			return fmt.Errorf("epoch %d has nodes %v at step %d and %v at %d", v.Epoch, v.Nodes, w.steps[o], a.View.Nodes, a.Steps)
		}
		if v.Epoch != a.View.Epoch && w.trains(v) && w.trains(a.View) {
			return fmt.Errorf("epochs %d %v and %d %v train at once", v.Epoch, v.Nodes, a.View.Epoch, a.View.Nodes)
		}
	}
	return nil
}

// trains reports whether all nodes of a view are in it.
func (w *world) trains(v View) bool {
	return !slices.ContainsFunc(v.Nodes, func(n int) bool { return w.dead[n] || w.nodes[n].entered.Epoch != v.Epoch })
}

// rests checks a state in which nothing is left to happen but losses: all that live train together.
func (w *world) rests() error {
	epoch := -1
	for i, m := range w.nodes {
		switch {
		case w.dead[i]:
		case !w.running[i]:
			return fmt.Errorf("node %d waits for ever", i)
		case epoch >= 0 && m.entered.Epoch != epoch:
			return fmt.Errorf("node %d is in epoch %d, another in %d", i, m.entered.Epoch, epoch)
		default:
			epoch = m.entered.Epoch
		}
	}
	if epoch < 0 && w.lost <= 1 && len(w.nodes) > 2 && w.nodes[0].cfg.Size(0) == 1 {
		return fmt.Errorf("nobody is left after %d losses", w.lost)
	}
	return nil
}

// explore visits all states that follow from one, and returns the path to the first that is wrong.
func (c *model) explore(w *world, path []string) {
	k := w.key()
	if c.seen[k] {
		return
	}
	c.seen[k] = true
	if len(path) > 150 {
		c.t.Fatalf("no end: %q", path)
	}
	all, quiet := w.events(c.most), true
	for _, e := range all {
		next := w.clone()
		err := e.do(next)
		here := append(slices.Clip(path), e.name)
		if err != nil {
			c.t.Fatalf("%v, after %q", err, here)
		}
		quiet = quiet && (len(e.name) > 3 && (e.name[:4] == "kill" || e.name[:3] == "cut"))
		c.explore(next, here)
	}
	if quiet {
		if err := w.rests(); err != nil {
			c.t.Fatalf("%v, after %q", err, path)
		}
	}
}

// TestEveryOrder explores every order of events of a few nodes: votes, verdicts, losses, cut
// connections, and messages that arrive late or never.
func TestEveryOrder(t *testing.T) {
	cases := []struct{ n, each, kills, cuts, steps int }{
		{2, 1, 1, 0, 2}, {2, 1, 0, 1, 1}, {3, 1, 1, 0, 1}, {3, 1, 0, 1, 0}, {3, 1, 2, 0, 0}, {4, 2, 1, 0, 0}, // 11,000 states
		{3, 1, 1, 0, 2}, {3, 1, 0, 1, 1}, {3, 1, 1, 1, 1}, {3, 1, 0, 2, 0}, {4, 1, 1, 0, 0}, {4, 2, 1, 0, 1}, // 450,000
	}
	for _, x := range cases[:nightly.Of(6, len(cases))] {
		c := &model{t: t, most: x.steps, seen: map[[16]byte]bool{}}
		c.explore(newWorld(x.n, x.each, x.kills, x.cuts), nil)
	}
}
