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
	joins    int    // units that have not come yet
	began    int    // number of nodes at first
	proof    bool   // nodes can tell that others are dead
	recorded int    // epoch of the newest change in the run folder
	done     []done // steps that a node has passed
}

// done is a step that has passed in a view.
type done struct {
	step  int
	nodes []int
}

// vote is a node's for a step of a view.
type vote struct{ epoch, step, node int }

// model explores all orders of events.
type model struct {
	t    *testing.T
	most int // steps
	seen map[[16]byte]bool
}

// newWorld returns a world of n nodes, in units of each, that more units may join.
func newWorld(n, each, kills, cuts, joins int, proof bool) *world {
	all := n + joins*each
	w := &world{queues: make([][]Message, all*all), cut: make([]bool, all*all), dead: make([]bool, all), running: slices.Repeat([]bool{true}, n),
		steps: make([]int, all), verdicts: make([]string, all), voted: make([]bool, all), kills: kills, cuts: cuts, joins: joins, began: n, proof: proof}
	var v View
	for i := range n {
		v.Nodes = append(v.Nodes, i)
	}
	for i := range all {
		c := Config{Me: i, Unit: func(n int) int { return n / each }, Size: func(int) int { return each }, Min: 1}
		w.nodes = append(w.nodes, New(c, v, 0))
		if i >= n {
			w.dead[i], w.running = true, append(w.running, false)
		}
	}
	w.watch()
	return w
}

// watch lets the nodes see who is dead in this world.
func (w *world) watch() {
	for _, m := range w.nodes {
		if w.proof {
			m.cfg.Gone = func(nodes []int, known View) bool {
				return w.recorded <= known.Epoch && !slices.ContainsFunc(nodes, func(n int) bool { return !w.dead[n] })
			}
		}
	}
}

// records reports whether a node is the first of its view, which records it before its first step.
func (w *world) records(a int) bool {
	v := w.nodes[a].entered
	return w.proof && w.running[a] && v.voters()[0] == a && w.recorded < v.Epoch
}

// came returns the number of nodes that have been started.
func (w *world) came() int { return len(w.nodes) - w.joins*w.nodes[0].cfg.Size(0) }

// come starts the next unit of newcomers, which know the view of a node.
func (w *world) come(of int) error {
	each := w.nodes[0].cfg.Size(0)
	first := w.came()
	w.joins--
	var mates []int
	for i := range each {
		mates = append(mates, first+i)
	}
	for _, n := range mates {
		w.nodes[n], w.dead[n] = Join(w.nodes[n].cfg, w.nodes[of].entered, mates), false
	}
	for _, n := range mates {
		if err := w.apply(n, w.nodes[n].Knock()); err != nil {
			return err
		}
	}
	return nil
}

// fill gives a guest the state of the others, which are all in its view.
func (w *world) fill(a int) {
	m := w.nodes[a]
	from := m.entered.voters()[0]
	w.steps[a], w.verdicts[a] = w.steps[from], w.verdicts[from]
	m.Filled()
	m.Stand(w.steps[a], 0, w.verdicts[a])
}

func (w *world) clone() *world {
	x := *w
	x.nodes, x.queues = slices.Clone(w.nodes), slices.Clone(w.queues)
	for i, m := range w.nodes {
		y := *m
		y.lost, y.accepted, y.reports, y.waiting = slices.Clone(m.lost), slices.Clone(m.accepted), maps.Clone(m.reports), maps.Clone(m.waiting)
		x.nodes[i] = &y
	}
	for i, q := range w.queues {
		x.queues[i] = slices.Clip(q)
	}
	x.dead, x.cut, x.running, x.voted = slices.Clone(w.dead), slices.Clone(w.cut), slices.Clone(w.running), slices.Clone(w.voted)
	x.steps, x.verdicts, x.votes, x.done = slices.Clone(w.steps), slices.Clone(w.verdicts), slices.Clone(w.votes), slices.Clip(w.done)
	x.watch()
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
		fmt.Fprint(h, m.view, m.entered, m.steps, m.verdict, m.lost, m.changes, m.reports, m.reports == nil, m.proposal, m.accepted, m.high, m.guest, m.waiting, w.running[i], w.voted[i], ";")
	}
	votes := slices.Clone(w.votes)
	slices.SortFunc(votes, func(a, b vote) int { return (a.epoch-b.epoch)<<16 + (a.step-b.step)<<8 + a.node - b.node })
	fmt.Fprint(h, w.queues, w.cut, votes, w.kills, w.cuts, w.joins, w.recorded, w.done)
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
		if w.joins > 0 && w.running[a] && w.nodes[a].entered.Guests == nil {
			add(fmt.Sprint("come to ", a), func(w *world) error { return w.come(a) })
		}
		if guests := w.nodes[a].entered.Guests; w.running[a] && guests != nil {
			left := slices.ContainsFunc(guests, func(g int) bool { return !w.dead[g] && w.nodes[g].guest })
			if w.nodes[a].guest && slices.Contains(guests, a) && w.trains(w.nodes[a].entered) {
				add(fmt.Sprint("fill ", a), func(w *world) error { w.fill(a); return nil })
			} else if !left {
				add(fmt.Sprint("filled ", a), func(w *world) error { return w.apply(a, w.nodes[a].Change()) })
			}
		}
		if w.running[a] && w.nodes[a].Wanted() {
			add(fmt.Sprint("take in ", a), func(w *world) error { return w.apply(a, w.nodes[a].Change()) })
		}
		if w.records(a) {
			add(fmt.Sprint("record ", a), func(w *world) error { w.recorded = w.nodes[a].entered.Epoch; return nil })
		} else if w.running[a] && w.nodes[a].entered.Guests == nil && !w.voted[a] && w.steps[a] < most {
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
				return w.passed(a)
			})
		}
		if w.running[a] && w.fails(a) {
			add(fmt.Sprint("fail ", a), func(w *world) error { return w.apply(a, w.nodes[a].Change()) })
		}
		for b := range w.nodes {
			if a == b || b >= w.came() {
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

// passed records that a node has passed a step, which must not have passed in a view without a node of this one.
func (w *world) passed(a int) error {
	nodes, step := w.nodes[a].entered.Nodes, w.steps[a]
	if !w.proof || slices.ContainsFunc(w.done, func(d done) bool { return d.step == step && slices.Equal(d.nodes, nodes) }) {
		return nil
	}
	for _, d := range w.done {
		if d.step == step && !slices.ContainsFunc(nodes, func(n int) bool { return slices.Contains(d.nodes, n) }) {
			return fmt.Errorf("nodes %v pass step %d after %v", nodes, step, d.nodes)
		}
	}
	w.done = append(w.done, done{step, nodes})
	return nil
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
	if m := w.nodes[me]; m.high < m.view.Epoch {
		return fmt.Errorf("node %d could lead to an epoch before %d", me, m.view.Epoch)
	}
	return nil
}

func (w *world) enter(me int, a Action) error {
	switch {
	case w.nodes[me].guest && !a.Finish:
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
		case m.guest || m.entered.Guests != nil || len(m.waiting) > 0:
			return fmt.Errorf("newcomers of node %d wait for ever in epoch %d", i, m.entered.Epoch)
		default:
			epoch = m.entered.Epoch
		}
	}
	safe := w.lost <= 1 && w.began > 2 || w.proof && !slices.Contains(w.cut, true) && w.lost < w.began
	if epoch < 0 && safe && w.nodes[0].cfg.Size(0) == 1 {
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
	cases := []struct{ n, each, kills, cuts, steps, joins int }{
		{2, 1, 1, 0, 2, 0}, {2, 1, 0, 1, 1, 0}, {3, 1, 1, 0, 1, 0}, {3, 1, 0, 1, 0, 0}, {3, 1, 2, 0, 0, 0}, {4, 2, 1, 0, 0, 0}, // 11,000 states
		{2, 1, 1, 0, 0, 1},
		{3, 1, 1, 0, 2, 0}, {3, 1, 0, 1, 1, 0}, {3, 1, 1, 1, 1, 0}, {3, 1, 0, 2, 0, 0}, {4, 1, 1, 0, 0, 0}, {4, 2, 1, 0, 1, 0}, // 450,000
		{2, 2, 1, 0, 0, 1}, {3, 1, 1, 0, 0, 1}, {2, 1, 1, 0, 0, 2}, {2, 1, 1, 0, 1, 1}, {2, 1, 0, 1, 1, 1},
	}
	for _, x := range cases[:nightly.Of(7, len(cases))] {
		c := &model{t: t, most: x.steps, seen: map[[16]byte]bool{}}
		c.explore(newWorld(x.n, x.each, x.kills, x.cuts, x.joins, false), nil)
		if testing.Verbose() {
			t.Logf("%+v: %d states", x, len(c.seen))
		}
	}
}

// TestEveryOrderOnAHost is TestEveryOrder for nodes that can tell that others are dead. Any last one goes on.
func TestEveryOrderOnAHost(t *testing.T) {
	nightly.Long(t)
	cases := []struct{ n, kills, cuts, steps int }{
		{2, 1, 0, 2}, {2, 1, 1, 2}, {2, 2, 1, 1}, {3, 2, 0, 1},
		{3, 1, 1, 1}, {3, 2, 1, 0}, {4, 2, 0, 0},
	}
	for _, x := range cases[:nightly.Of(4, len(cases))] {
		c := &model{t: t, most: x.steps, seen: map[[16]byte]bool{}}
		c.explore(newWorld(x.n, 1, x.kills, x.cuts, 0, true), nil)
		if testing.Verbose() {
			t.Logf("%+v: %d states", x, len(c.seen))
		}
	}
}

func count(nodes []int, is func(int) bool) (n int) {
	for _, x := range nodes {
		if is(x) {
			n++
		}
	}
	return n
}

// TestCutUnitsGo checks that two units go, each of which two others have lost, and not the four units of those.
func TestCutUnitsGo(t *testing.T) {
	v := View{}
	for n := range 12 {
		v.Nodes = append(v.Nodes, n)
	}
	m := New(Config{Me: 5, Unit: func(n int) int { return n / 2 }, Size: func(int) int { return 2 }}, v, 0)
	m.reports = map[int]Message{}
	for _, n := range v.Nodes {
		m.reports[n] = Message{Entered: v}
	}
	for n := range 4 {
		m.reports[n] = Message{Entered: v, Lost: []int{4 + 2*n}}
	}
	if got := m.choose(); !slices.Equal(got, v.Nodes[4:]) {
		t.Errorf("%v are left", got)
	}
}
