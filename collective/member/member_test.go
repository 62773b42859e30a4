package member_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/collective/member"
	"zeroth/tests/nightly"
)

// network runs machines, with a queue of messages between each two, in a random order.
type network struct {
	t        *testing.T
	rng      *rand.Rand
	nodes    []*member.Machine
	queues   map[[2]int][]member.Message
	dead     []bool
	out      []string
	running  []bool   // in the view entered last
	steps    []int    // done
	votes    []bool   // for step steps+1 in the view entered last
	verdicts []string // of step steps
	history  map[int]member.View
}

func newNetwork(t *testing.T, seed uint64, n, each, least int) *network {
	w := &network{t: t, rng: rand.New(rand.NewPCG(seed, 1)), queues: map[[2]int][]member.Message{}, history: map[int]member.View{}}
	var v member.View
	for i := range n {
		v.Nodes = append(v.Nodes, i)
	}
	for i := range n {
		c := member.Config{Me: i, Unit: func(n int) int { return n / each }, Size: func(int) int { return each }, Min: least}
		w.nodes = append(w.nodes, member.New(c, v, 0))
	}
	w.dead, w.out, w.running = make([]bool, n), make([]string, n), slices.Repeat([]bool{true}, n)
	w.steps, w.votes, w.verdicts = make([]int, n), make([]bool, n), make([]string, n)
	return w
}

// do carries out actions of a node and checks what must hold.
func (w *network) do(me int, all []member.Action) {
	for _, a := range all {
		switch a.Deed {
		case member.Send:
			w.queues[[2]int{me, a.To}] = append(w.queues[[2]int{me, a.To}], a.Message)
		case member.Stop:
			w.running[me] = false
		case member.GiveUp:
			w.out[me] = a.Why
			w.kill(me)
		case member.GoOn:
			w.enter(me, a)
		}
	}
}

func (w *network) enter(me int, a member.Action) {
	if was, ok := w.history[a.View.Epoch]; ok && !slices.Equal(was.Nodes, a.View.Nodes) {
		w.t.Fatalf("epoch %d has nodes %v and %v", a.View.Epoch, was.Nodes, a.View.Nodes)
	}
	w.history[a.View.Epoch] = a.View
	if a.Finish && (a.Steps != w.steps[me]+1 || !w.votes[me]) {
		w.t.Fatalf("node %d finishes step %d after %d, voted %v", me, a.Steps, w.steps[me], w.votes[me])
	} else if !a.Finish && (a.Steps != w.steps[me] || a.Verdict != w.verdicts[me]) {
		w.t.Fatalf("node %d goes on at step %d (%s) after %d (%s)", me, a.Steps, a.Verdict, w.steps[me], w.verdicts[me])
	}
	w.running[me], w.votes[me], w.steps[me], w.verdicts[me] = true, false, a.Steps, a.Verdict
	for o := range w.nodes { // nobody goes on in a view without a common node
		if v := w.nodes[o].View(); o != me && !w.dead[o] && w.running[o] && v.Epoch != a.View.Epoch && w.ahead(v, a.View) {
			w.t.Fatalf("node %d is in epoch %d %v, node %d in epoch %d %v", o, v.Epoch, v.Nodes, me, a.View.Epoch, a.View.Nodes)
		}
	}
}

// ahead reports whether two views could both train: all of their nodes are in them.
func (w *network) ahead(a, b member.View) bool {
	trains := func(v member.View) bool {
		return !slices.ContainsFunc(v.Nodes, func(n int) bool { return w.dead[n] || w.nodes[n].View().Epoch != v.Epoch })
	}
	return trains(a) && trains(b)
}

func (w *network) kill(node int) { w.dead[node] = true }

// train makes a node vote, or pass its step if all of its view have voted.
func (w *network) train(me int) {
	v := w.nodes[me].View()
	if !w.running[me] {
		return
	}
	if !w.votes[me] {
		w.votes[me] = true
		return
	}
	for _, n := range v.Nodes {
		same := w.nodes[n].View().Epoch == v.Epoch
		if !(same && (w.steps[n] == w.steps[me] && w.votes[n] || w.steps[n] > w.steps[me])) {
			return
		}
	}
	w.steps[me]++
	w.votes[me], w.verdicts[me] = false, fmt.Sprint(v.Epoch, w.steps[me])
	w.nodes[me].Stand(w.steps[me], 0, w.verdicts[me])
}

// move does one random thing. It returns false if no message waits.
func (w *network) move(losses *int) bool {
	n := len(w.nodes)
	if me := w.rng.IntN(n); *losses > 0 && w.rng.IntN(12) == 0 && !w.dead[me] {
		*losses--
		w.kill(me)
	}
	for range 2 {
		if me := w.rng.IntN(n); !w.dead[me] {
			w.train(me)
		}
	}
	var open [][2]int // pairs that can hear
	for a := range n {
		for b := range n {
			q := w.queues[[2]int{a, b}]
			if a != b && !w.dead[b] && !w.nodes[b].Lost(a) && (len(q) > 0 || w.dead[a]) {
				open = append(open, [2]int{a, b})
			}
		}
	}
	if len(open) == 0 {
		return false
	}
	p := open[w.rng.IntN(len(open))]
	if q := w.queues[p]; len(q) > 0 && !(w.dead[p[0]] && w.rng.IntN(4) == 0) {
		w.queues[p] = q[1:]
		w.do(p[1], w.nodes[p[1]].Hear(p[0], q[0]))
		return true
	}
	w.queues[p] = nil
	w.do(p[1], w.nodes[p[1]].Lose(p[0]))
	return true
}

// TestRandomLosses loses processes at random moments and checks that the rest, if it is a majority,
// trains on together.
func TestRandomLosses(t *testing.T) {
	for seed := range uint64(nightly.Of(5000, 20_000)) {
		each, n := 1+int(seed%2), 3+int(seed%5)
		n -= n % each
		w := newNetwork(t, seed, n, each, 1)
		losses := int(seed/7) % (n/2 + 1)
		for moves := 0; w.move(&losses) || losses > 0 && slices.Contains(w.dead, false); moves++ {
			if moves > 100000 {
				t.Fatalf("seed %d does not end", seed)
			}
		}
		var epoch, alive int
		for i, m := range w.nodes {
			if w.dead[i] {
				continue
			}
			if alive++; !w.running[i] {
				t.Fatalf("seed %d: node %d waits for ever", seed, i)
			}
			if epoch == 0 {
				epoch = 1 + m.View().Epoch
			}
			if epoch != 1+m.View().Epoch {
				t.Fatalf("seed %d: epochs differ", seed)
			}
		}
		if kills := int(seed/7) % (n/2 + 1); each == 1 && n > 2*kills && kills < 2 && alive == 0 {
			t.Fatalf("seed %d: nobody is left of %d after %d losses: %q", seed, n, kills, w.out)
		}
	}
}

// TestOneProposal checks that a loss that nodes notice one after the other, and report again, is one change.
func TestOneProposal(t *testing.T) {
	const n = 8
	w := newNetwork(t, 1, n, 1, 1)
	pass := func(from, to int) { // messages
		q := w.queues[[2]int{from, to}]
		w.queues[[2]int{from, to}] = nil
		for _, m := range q {
			w.do(to, w.nodes[to].Hear(from, m))
		}
	}
	w.do(0, w.nodes[0].Lose(n-1)) // it asks the others, who have not noticed
	for i := 1; i < n-1; i++ {
		pass(0, i)
		pass(i, 0)
	}
	for i := 1; i < n-1; i++ {
		w.do(i, w.nodes[i].Lose(n-1))
		pass(i, 0)
	}
	for i := 1; i < n-1; i++ {
		pass(0, i)
		pass(i, 0)
	}
	for i := 1; i < n-1; i++ {
		pass(0, i)
	}
	for i, m := range w.nodes[:n-1] {
		if m.View().Epoch != 1 || m.Changes() {
			t.Errorf("node %d is in epoch %d, changing: %v; want epoch 1", i, m.View().Epoch, m.Changes())
		}
	}
}
