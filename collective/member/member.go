// Package member agrees on which processes of a run go on after some of them were lost, and on the
// step from which they go on. It is a state machine without input and output: its methods are
// events, and the actions that they return say what to send and to do.
//
// A node is a start of a process; one that comes back is another node. A view is a set of nodes with
// the number of its epoch. Nodes train in a view until one of them is lost. Then each reports to the
// lowest node that it has not lost, its leader. Once a leader has the reports of all nodes that it
// has not lost, it proposes a view, waits until all nodes in it have accepted, and lets them enter.
// If the leader is lost, nodes report to the next one, with the view that they have accepted.
//
// Why there is one view at a time: a node never hears again of a node that it has lost, so it
// follows leaders in ascending order, one at a time. A view is entered only if all of its nodes have
// accepted it, and it has a majority of every view that one of them has entered or accepted before
// (or half of it, with its lowest node; or all others are gone, see Config). So two views without a
// common node cannot follow the same view.
//
// Why no step is done by halves: a node counts a step once it has the verdict on it, which needs the
// votes of all nodes of the view. A node without the verdict keeps the gradients that it voted for
// until it enters a view, which has the largest number of steps of its nodes and the last verdict.
//
// Newcomers: a node that wants to join reports to the leader, and waits. When all nodes are between two steps,
// a change takes in one unit of newcomers. They have no state yet, so they are guests of that view: its other
// nodes give them theirs instead of training, and guests do not count in majorities. The next
// change makes those that have got it full nodes. A newcomer that loses a node before it has entered gives up.
package member

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
)

// View is a set of nodes that train together.
type View struct {
	Epoch int   `json:"epoch"`
	Nodes []int `json:"nodes"` // ascending
	// Guests are those of Nodes that have no state, ascending. While there are any, the nodes do not train.
	Guests []int `json:"guests,omitempty"`
}

// Has reports whether the view contains a node.
func (v View) Has(node int) bool { return slices.Contains(v.Nodes, node) }

// voters returns the nodes that are no guests.
func (v View) voters() []int {
	return slices.DeleteFunc(slices.Clone(v.Nodes), func(n int) bool { return slices.Contains(v.Guests, n) })
}

// Kind is the purpose of a Message.
type Kind string

// The kinds of messages.
const (
	Ask     Kind = "ask"     // a leader wants a report
	Report  Kind = "report"  // to the leader
	Propose Kind = "propose" // from the leader: View, Steps and Verdict
	Accept  Kind = "accept"  // to the leader: View
	Enter   Kind = "enter"   // from the leader: all have accepted View
	Out     Kind = "out"     // the receiver is not in the sender's view
)

// Message is sent between nodes. Messages of a node to another arrive in order, or not at all after
// some point.
type Message struct {
	Kind    Kind   `json:"kind"`
	View    View   `json:"view"`              // accepted last
	Entered View   `json:"entered"`           // of a report: entered last
	Steps   int    `json:"steps"`             // done
	Duty    int    `json:"duty,omitempty"`    // work that follows a step: how much of it is done
	Verdict string `json:"verdict,omitempty"` // on step Steps
	Lost    []int  `json:"lost,omitempty"`    // of a report: by the sender, ascending
	Guest   bool   `json:"guest,omitempty"`   // of a report: the sender has no state
	Mates   []int  `json:"mates,omitempty"`   // of a newcomer's report: the nodes of its unit, ascending
}

// Deed is what an Action asks for.
type Deed uint8

// The deeds.
const (
	Send    Deed = iota // send Message to To
	Stop                // end the operations of the view
	Prepare             // get ready for View: its nodes may send data before this one enters it
	GoOn                // enter View with Steps done; if Finish, the last of them with the held gradients and Verdict
	GiveUp              // for Why
)

// Action is what the owner of a Machine has to do.
type Action struct {
	Deed
	To      int
	Message Message
	View    View
	Steps   int
	Duty    int
	Finish  bool
	Verdict string
	Why     string
}

// Config describes a node.
type Config struct {
	Me   int
	Unit func(node int) int // nodes of a unit are lost together
	Size func(unit int) int // number of nodes of a unit
	Min  int                // fewest units to go on with
	// Gone reports whether nodes can never act again, and have not acted in a view after one that this node knows.
	// Without them, the rest of that view needs no majority. It may be nil: nobody can tell.
	Gone func(nodes []int, known View) bool
	Duty int // of a node that is between two steps, and so ready to take in others
}

// Machine is a node's state.
type Machine struct {
	cfg     Config
	view    View // accepted last
	entered View // entered last; view, unless a change is under way
	steps   int  // done
	duty    int  // done after the last step
	verdict string
	lost    []int // ascending
	changes bool  // operations of entered have ended
	over    bool
	guest   bool  // it has no state
	mates   []int // of a newcomer: the nodes of its unit

	waiting map[int]Message // of a leader: reports of newcomers

	// of a leader during a change
	reports  map[int]Message
	proposal Message // its view has no nodes while there is none
	accepted []int
	high     int // largest epoch of a proposal, of this node or another, or of a report
}

// New returns a node that has entered a view with a number of steps done.
func New(cfg Config, v View, steps int) *Machine {
	return &Machine{cfg: cfg, view: v, entered: v, steps: steps, high: v.Epoch}
}

// Join returns a newcomer, which knows that the nodes of a view train, and is connected to them and to its
// mates, itself included.
func Join(cfg Config, v View, mates []int) *Machine {
	return &Machine{cfg: cfg, view: v, entered: v, high: v.Epoch, guest: true, mates: mates, changes: true}
}

// Knock asks the leader to take this newcomer in.
func (m *Machine) Knock() []Action {
	return []Action{{Deed: Send, To: m.Leader(), Message: m.report()}}
}

// Filled records that this guest has the state of the others.
func (m *Machine) Filled() { m.guest = false }

// Wanted reports whether a change would take in newcomers.
func (m *Machine) Wanted() bool {
	return !m.over && m.Leader() == m.cfg.Me && m.newcomers(m.entered.Nodes) != nil
}

// View returns the view that was entered last.
func (m *Machine) View() View { return m.entered }

// Lost reports whether the node was lost.
func (m *Machine) Lost(node int) bool { return slices.Contains(m.lost, node) }

// Stand records the number of steps that this node has done and the verdict on the last. It votes for
// the step after them before anybody gets the verdict on that, and passes no step after it has
// reported.
func (m *Machine) Stand(steps, duty int, verdict string) {
	m.steps, m.duty, m.verdict = steps, duty, verdict
}

// Changes reports whether a change is under way.
func (m *Machine) Changes() bool { return m.changes }

// Leader returns the lowest node of the view entered last that is not lost.
func (m *Machine) Leader() int {
	for _, n := range m.entered.Nodes {
		if !m.Lost(n) {
			return n
		}
	}
	return m.cfg.Me
}

// Lose records that nothing will be heard of a node any more.
func (m *Machine) Lose(node int) []Action {
	if m.over || m.Lost(node) || node == m.cfg.Me {
		return nil
	}
	at, _ := slices.BinarySearch(m.lost, node)
	m.lost = slices.Insert(m.lost, at, node)
	delete(m.waiting, node)
	switch {
	case !m.view.Has(node) && !m.entered.Has(node) && !slices.Contains(m.mates, node):
		return nil
	case !m.entered.Has(m.cfg.Me):
		return m.giveUp("a process was lost while this one joined")
	case m.cfg.Unit(node) == m.cfg.Unit(m.cfg.Me):
		return m.giveUp("another process of this replica was lost")
	}
	delete(m.reports, node)
	return m.begin()
}

// Change starts a change of the view, because an operation has failed or a node wants to join.
func (m *Machine) Change() []Action {
	if m.over || m.changes {
		return nil
	}
	return m.begin()
}

// begin ends the operations of the view and reports to the leader, again if something has changed.
func (m *Machine) begin() (do []Action) {
	if !m.changes {
		m.changes = true
		do = append(do, Action{Deed: Stop})
	}
	leader := m.Leader()
	if leader != m.cfg.Me {
		m.reports = nil
		return append(do, Action{Deed: Send, To: leader, Message: m.report()})
	}
	if m.reports == nil {
		m.reports = map[int]Message{}
		for _, n := range m.asked() {
			if n != m.cfg.Me && !m.Lost(n) {
				do = append(do, Action{Deed: Send, To: n, Message: Message{Kind: Ask, View: m.view}})
			}
		}
	}
	return append(do, m.propose()...)
}

// asked returns the nodes that a leader needs reports of: others may have entered the view that this one has
// only accepted.
func (m *Machine) asked() []int {
	all := slices.Sorted(slices.Values(slices.Concat(m.entered.Nodes, m.view.Nodes)))
	return slices.Compact(all)
}

func (m *Machine) report() Message {
	return Message{Kind: Report, View: m.view, Entered: m.entered, Steps: m.steps, Duty: m.duty, Verdict: m.verdict, Lost: slices.Clone(m.lost), Guest: m.guest, Mates: m.mates}
}

// Hear processes a message.
func (m *Machine) Hear(from int, msg Message) []Action {
	if m.over || m.Lost(from) {
		return nil
	}
	if msg.Kind == Out {
		return m.giveUp(fmt.Sprintf("the others went on without this process in epoch %d", msg.View.Epoch))
	}
	if !m.view.Has(from) && !m.entered.Has(from) {
		if msg.Mates == nil || m.Leader() != m.cfg.Me || !covers(msg, m.entered.Nodes) {
			return []Action{m.out(from)}
		}
		if m.waiting == nil {
			m.waiting = map[int]Message{}
		}
		m.waiting[from] = msg
		return nil
	}
	leads := m.Leader() == from
	switch msg.Kind {
	case Ask:
		if m.changes && leads {
			return []Action{{Deed: Send, To: from, Message: m.report()}}
		}
		return m.Change()
	case Report:
		if m.high = max(m.high, msg.View.Epoch); m.Leader() != m.cfg.Me {
			return m.Change()
		}
		var do []Action
		if !m.changes {
			do = m.begin()
		}
		if old, ok := m.reports[from]; ok && reflect.DeepEqual(old, msg) {
			return do // to the same question
		}
		m.reports[from] = msg
		return append(do, m.propose()...)
	case Propose:
		if leads && m.changes && msg.View.Epoch > m.view.Epoch {
			return m.accept(msg)
		}
	case Accept:
		if m.proposal.View.Epoch == msg.View.Epoch && !slices.Contains(m.accepted, from) {
			m.accepted = append(m.accepted, from)
			return m.allIn()
		}
	case Enter:
		if leads && m.view.Epoch == msg.View.Epoch && m.entered.Epoch < msg.View.Epoch {
			return m.enter(msg)
		}
	}
	return nil
}

func (m *Machine) out(node int) Action {
	return Action{Deed: Send, To: node, Message: Message{Kind: Out, View: m.view}}
}

// covers reports whether a newcomer is connected to nodes.
func covers(r Message, nodes []int) bool {
	return !slices.ContainsFunc(nodes, func(n int) bool { return !r.Entered.Has(n) || slices.Contains(r.Lost, n) })
}

// newcomers returns a unit of newcomers that some nodes can take in, ascending, or nil.
func (m *Machine) newcomers(nodes []int) []int {
	for _, first := range slices.Sorted(maps.Keys(m.waiting)) {
		mates := m.waiting[first].Mates
		ready := !slices.ContainsFunc(mates, func(n int) bool {
			r, ok := m.waiting[n]
			return !ok || !slices.Equal(r.Mates, mates) || !covers(r, nodes) || m.lostBy(nodes, n)
		})
		if ready && !slices.ContainsFunc(nodes, func(n int) bool { return m.cfg.Unit(n) == m.cfg.Unit(first) }) {
			return mates
		}
	}
	return nil
}

// lostBy reports whether some nodes report that they have lost another.
func (m *Machine) lostBy(nodes []int, node int) bool {
	return slices.ContainsFunc(nodes, func(n int) bool { return slices.Contains(m.reports[n].Lost, node) })
}

// accept accepts a proposal of the leader, which may be this node.
func (m *Machine) accept(p Message) []Action {
	m.view, m.high = p.View, max(m.high, p.View.Epoch)
	do := []Action{{Deed: Prepare, View: p.View}}
	if leader := m.Leader(); leader != m.cfg.Me {
		do = append(do, Action{Deed: Send, To: leader, Message: Message{Kind: Accept, View: p.View}})
	}
	return do
}

// enter enters the view that was accepted. A node of it may be lost already.
func (m *Machine) enter(p Message) []Action {
	finish := m.steps < p.Steps && !m.guest
	var do []Action
	for _, n := range m.entered.Nodes { // it may wait for this node, and have lost the leader
		if !m.view.Has(n) && !m.Lost(n) {
			do = append(do, m.out(n))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(m.waiting)) {
		switch stays := m.view.Has(n); {
		case !stays && covers(m.waiting[n], m.view.Nodes) && !m.lostBy(m.view.Nodes, n):
			continue
		case !stays: // it is not connected to all
			do = append(do, m.out(n))
		}
		delete(m.waiting, n)
	}
	m.mates = nil
	m.entered, m.steps, m.duty, m.verdict = m.view, p.Steps, p.Duty, p.Verdict
	m.changes, m.reports, m.proposal, m.accepted = false, nil, Message{}, nil
	do = append(do, Action{Deed: GoOn, View: m.view, Steps: p.Steps, Duty: p.Duty, Finish: finish, Verdict: p.Verdict})
	if slices.ContainsFunc(m.view.Nodes, m.Lost) {
		do = append(do, m.begin()...)
	}
	return do
}

func (m *Machine) giveUp(why string) []Action {
	m.over = true
	return []Action{{Deed: GiveUp, Why: why}}
}

// propose proposes a view once all nodes that are not lost have reported. It replaces an earlier proposal if
// that is another one: nodes report again when they have lost one that others have missed before.
func (m *Machine) propose() []Action {
	if m.reports == nil {
		return nil
	}
	old, accepted := m.proposal, m.accepted
	m.proposal, m.accepted = Message{}, nil
	m.reports[m.cfg.Me] = m.report()
	for _, n := range m.asked() {
		if _, ok := m.reports[n]; !ok && !m.Lost(n) {
			return nil
		}
	}
	v := View{Nodes: m.choose()}
	for _, n := range v.Nodes {
		if m.reports[n].Guest {
			v.Guests = append(v.Guests, n)
		}
	}
	voters := v.voters()
	if why := m.refuses(v.Nodes, voters); why != "" {
		return m.giveUp(why)
	}
	p := Message{Kind: Propose}
	for _, n := range voters {
		if r := m.reports[n]; r.Steps > p.Steps || n == voters[0] {
			p.Steps, p.Verdict = r.Steps, r.Verdict
		}
	}
	p.Duty = m.duties(voters, p.Steps)
	if v.Guests == nil && m.level(voters, p) {
		v.Guests = m.newcomers(voters)
		for _, n := range v.Guests {
			m.reports[n] = m.waiting[n]
		}
		v.Nodes = slices.Sorted(slices.Values(append(v.Nodes, v.Guests...)))
	}
	v.Epoch = old.View.Epoch
	if p.View = v; old.View.Nodes != nil && m.high == v.Epoch && reflect.DeepEqual(p, old) {
		m.proposal, m.accepted = old, accepted
		return nil
	}
	m.high++
	p.View.Epoch = m.high
	m.proposal = p
	var do []Action
	for _, n := range v.Nodes {
		if n != m.cfg.Me {
			do = append(do, Action{Deed: Send, To: n, Message: p})
		}
	}
	do = append(do, m.accept(p)...)
	m.accepted = append(m.accepted, m.cfg.Me)
	return append(do, m.allIn()...)
}

// duties returns how much of the work after a step all nodes have done.
func (m *Machine) duties(nodes []int, steps int) int {
	least := math.MaxInt
	for _, n := range nodes {
		r := m.reports[n]
		if r.Steps < steps {
			return 0
		}
		least = min(least, r.Duty)
	}
	return least
}

// level reports whether all nodes are between the same two steps.
func (m *Machine) level(nodes []int, p Message) bool {
	return p.Duty >= m.cfg.Duty && !slices.ContainsFunc(nodes, func(n int) bool {
		r := m.reports[n]
		return r.Steps != p.Steps || r.Duty != p.Duty
	})
}

// choose returns the nodes to go on with: those of the newest view, connected to each other, of
// complete units.
func (m *Machine) choose() (nodes []int) {
	var newest View
	for _, r := range m.reports {
		if newest.Nodes == nil || r.Entered.Epoch > newest.Epoch {
			newest = r.Entered
		}
	}
	for n := range m.reports {
		if newest.Has(n) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	for {
		drop := m.apart(nodes)
		if drop < 0 {
			return nodes
		}
		nodes = slices.DeleteFunc(nodes, func(n int) bool { return m.cfg.Unit(n) == drop })
	}
}

// apart returns a unit that cannot stay among ascending nodes, or -1: it is incomplete, or it and another have lost each
// other. Of these two the one that is apart from more units goes, or the one with the higher lowest node. Few units are
// behind a broken link, and each of them is apart from most others.
func (m *Machine) apart(nodes []int) int {
	var units []int // by lowest node
	size, from := map[int]int{}, map[int]map[int]bool{}
	for _, n := range nodes {
		unit := m.cfg.Unit(n)
		if size[unit]++; size[unit] == 1 {
			units, from[unit] = append(units, unit), map[int]bool{}
		}
	}
	for _, n := range nodes {
		for _, o := range m.reports[n].Lost {
			if slices.Contains(nodes, o) {
				a, b := m.cfg.Unit(n), m.cfg.Unit(o)
				from[a][b], from[b][a] = true, true
			}
		}
	}
	worst := -1
	for _, unit := range units {
		if size[unit] < m.cfg.Size(unit) {
			return unit
		}
		if n := len(from[unit]); n > 0 && n >= len(from[worst]) {
			worst = unit
		}
	}
	return worst
}

// refuses says why some nodes, of which the voters are no guests, cannot be a view, or returns "".
func (m *Machine) refuses(nodes, voters []int) string {
	var units []int
	for _, n := range voters {
		units = append(units, m.cfg.Unit(n))
	}
	slices.Sort(units)
	if n := len(slices.Compact(units)); n < m.cfg.Min || n == 0 {
		return fmt.Sprintf("fewer replicas are left (%d) than faults.min_replicas", n)
	}
	for _, n := range nodes {
		r := m.reports[n]
		for _, base := range []View{r.Entered, r.View} {
			of := base.voters()
			others := slices.DeleteFunc(slices.Clone(of), func(b int) bool { return slices.Contains(voters, b) })
			stay := len(of) - len(others)
			minor := 2*stay < len(of) || 2*stay == len(of) && slices.Contains(others, of[0])
			if minor && (m.cfg.Gone == nil || !m.cfg.Gone(others, r.View)) {
				return fmt.Sprintf("%d of the %d processes of epoch %d are left, which is no majority: the others may go on without them", stay, len(of), base.Epoch)
			}
		}
	}
	return ""
}

// allIn lets all nodes enter the view once all of them have accepted it.
func (m *Machine) allIn() (do []Action) {
	p := m.proposal
	if len(m.accepted) < len(p.View.Nodes) {
		return nil
	}
	p.Kind = Enter
	for _, n := range p.View.Nodes {
		if n != m.cfg.Me {
			do = append(do, Action{Deed: Send, To: n, Message: p})
		}
	}
	return append(do, m.enter(p)...)
}
