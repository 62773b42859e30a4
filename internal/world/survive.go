package world

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/collective"
	"zeroth/collective/member"
	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
	"zeroth/internal/input/jsonread"
	"zeroth/internal/setup"
	"zeroth/shard"
)

// A world that survives losses has a crew. When a process is lost, its groups end, its ranks stop,
// and its process takes part in a change (package member), by words over the data connections. Then
// the world is one of fewer processes: numbers of processes and ranks count those that are left,
// while connections keep the first ones (seats), and names in errors those of their places.

// A process that comes back takes the place of a lost one, but has a seat of its own: the place plus a multiple of the
// number of places.

// crew is a process's part in changes.
type crew struct {
	w       *World
	seat    int // of this process
	places  int // number of processes of the first world
	session string
	mesh    shard.Mesh // of all
	units   []int      // of each place: see UnitsOf

	mu      sync.Mutex
	machine *member.Machine
	parked  bool                      // the ranks have stopped: the machine may report
	waiting []func() []member.Action  // events until then
	left    bool                      // training has ended: losses end the world
	conns   map[int]*socket.Conn      // by seat: of the star of the view accepted last
	channel uint32                    // of conns
	ends    chan member.Action        // GoOn or GiveUp
	last    atomic.Pointer[[]int]     // seats of the last view, by process; nil: all
	members map[int]rendezvous.Member // by seat: all of the view, and the last ones of other places
	full    []int                     // seats of the view that had state when the last change was reported
	at      int                       // steps done then
	again   int                       // changes in a row after which neither differs
	written func() (int, error)       // see setup.Standing's Recorded

	admits   bool         // training has begun: newcomers may come
	said     []entry      // what all processes have said before
	highest  int          // seat given to a newcomer
	knocking map[int]bool // seats of newcomers that have introduced themselves
	try      *newcomer    // this process has not joined yet; nil: it has
}

// memberChannel carries the messages of changes; others are numbers of epochs.
const memberChannel = 0

// mostChanges bounds the changes that may follow each other, and mostAgain those of which nothing comes.
const mostChanges, mostAgain = 64, 3

func newCrew(w *World, all []rendezvous.Member, session string) *crew {
	c := &crew{w: w, seat: w.cfg.Rank, places: w.cfg.World, session: session, members: map[int]rendezvous.Member{}, knocking: map[int]bool{}, ends: make(chan member.Action, mostChanges)}
	for seat, m := range all {
		c.members[seat] = m
	}
	return c
}

// place sets the places of processes in a mesh.
func (c *crew) place(m shard.Mesh) { c.mesh, c.units = m, UnitsOf(m, c.w.cfg.PerProcess) }

// begin starts to take part, with all processes.
func (c *crew) begin(m shard.Mesh) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.place(m)
	c.full = seats(c.places)
	c.machine = member.New(c.config(), member.View{Nodes: c.full}, 0)
}

func (c *crew) config() member.Config {
	replicas := c.mesh.Size(shard.Replicate)
	least := (c.w.cfg.Survive*len(slices.Compact(slices.Sorted(slices.Values(c.units)))) + replicas - 1) / replicas
	return member.Config{
		Me: c.seat, Min: max(1, least), Duty: setup.BetweenSteps,
		Unit: func(seat int) int { return c.units[seat%c.places] },
		Size: func(unit int) int {
			return len(slices.DeleteFunc(slices.Clone(c.units), func(u int) bool { return u != unit }))
		},
		Gone: c.vanished,
	}
}

// vanished implements member.Config's Gone for processes of this host. The first process of a view records it in
// the run folder before its first step. The caller holds mu.
func (c *crew) vanished(seats []int, known member.View) bool {
	for _, seat := range seats {
		if m, ok := c.members[seat]; !ok || !seesProcesses(c.members[c.seat], m) || !ended(m.Pid) {
			return false
		}
	}
	epoch, err := c.written()
	return err == nil && epoch <= known.Epoch
}

// order returns the seats of a view by process: of each pipeline stage the units in the order in which they came, each in
// the order of its places. A process has ranks of several stages only if all replicas are one unit.
func (c *crew) order(v member.View) []int {
	came := map[int]int{} // first seat of each unit
	for _, seat := range v.Nodes {
		if unit := c.units[seat%c.places]; came[unit] == 0 {
			came[unit] = 1 + seat
		}
	}
	return slices.SortedFunc(slices.Values(v.Nodes), func(a, b int) int {
		a, b = a%c.places, b%c.places
		stage := func(place int) int { return c.mesh.At(place*c.w.cfg.PerProcess, shard.Pipeline) }
		return cmp.Or(stage(a)-stage(b), came[c.units[a]]-came[c.units[b]], a-b)
	})
}

func seats(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// UnitsOf returns, for each process with a number of ranks each, the number of what is lost with it:
// processes with ranks of the same replica have the same number.
func UnitsOf(m shard.Mesh, per int) []int {
	units := seats(m.World() / per)
	for _, replica := range replicas(m) {
		low := units[replica[0]/per]
		for _, r := range replica {
			low = min(low, units[r/per])
		}
		for _, r := range replica {
			was := units[r/per]
			for p := range units {
				if units[p] == was {
					units[p] = low
				}
			}
		}
	}
	return units
}

// replicas returns the ranks of each replica.
func replicas(m shard.Mesh) [][]int {
	all := make([][]int, m.Size(shard.Replicate))
	for r := range m.World() {
		i := m.At(r, shard.Replicate)
		all[i] = append(all[i], r)
	}
	return all
}

// gone reports whether losses end the world.
func (c *crew) gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left || c.machine == nil
}

// Depart ends changes: from now on, a loss ends the world.
func (w *World) Depart() {
	if w.crew != nil {
		w.crew.mu.Lock()
		defer w.crew.mu.Unlock()
		w.crew.left = true
	}
}

// mourn processes the end of the star of some seats, because of a process. It returns false if that ends the world.
// What process 0 says of others is a reason to change, but no loss: it may be process 0 that nobody hears.
func (c *crew) mourn(lost rendezvous.Lost, seats []int) bool {
	seat := seats[lost.Process]
	switch {
	case c.gone():
		return false
	case lost.Here:
	case lost.Told && seat == c.seat: // process 0 has closed the connection
		c.w.lose(seats[0])
	case lost.Told:
		c.event(seat, func() []member.Action { return c.machine.Change() })
	case seat == c.seat:
		c.end("this process has failed: " + lost.Why)
	default:
		c.w.lose(seat)
	}
	return true
}

// seat returns this process's.
func (w *World) seat() int {
	if w.crew == nil {
		return w.cfg.Rank
	}
	return w.crew.seat
}

// seatOf returns the seat of a process, and processOf the process of a seat, or -1 if that was lost.
func (w *World) seatOf(process int) int {
	if nodes := w.crew.nodes(); nodes != nil {
		return nodes[process]
	}
	return process
}

func (w *World) processOf(seat int) int {
	if nodes := w.crew.nodes(); nodes != nil {
		return slices.Index(nodes, seat)
	}
	if w.crew != nil && seat >= w.crew.places { // it has not joined
		return -1
	}
	return seat
}

// processAt returns the process at a place, or -1 if that was lost.
func (w *World) processAt(place int) int {
	if nodes := w.crew.nodes(); nodes != nil {
		return slices.IndexFunc(nodes, func(seat int) bool { return seat%w.crew.places == place })
	}
	return w.processOf(place)
}

// nodes returns the seats of the processes that are left, nil while none is lost.
func (c *crew) nodes() []int {
	if c == nil {
		return nil
	}
	if v := c.last.Load(); v != nil {
		return *v
	}
	return nil
}

// lose processes the loss of a process.
func (w *World) lose(seat int) {
	c := w.crew
	w.mu.Lock()
	n := w.net
	w.mu.Unlock()
	if n != nil {
		n.(*socket.Net).Drop(seat, errors.New("lost"))
	}
	c.mu.Lock()
	conn := c.conns[seat]
	delete(c.knocking, seat)
	c.try.hear(seat, "a process of the run was lost")
	c.mu.Unlock()
	if conn != nil {
		conn.End()
	}
	c.event(seat, func() []member.Action { return c.machine.Lose(seat) })
}

// told processes a word.
func (w *World) told(seat int, channel uint32, word []byte) {
	c := w.crew
	if channel == lobby {
		c.hearIntroduction(seat, word)
		return
	}
	if channel != memberChannel {
		c.mu.Lock()
		conn := c.conns[seat]
		if channel != c.channel {
			conn = nil
		}
		c.mu.Unlock()
		if conn != nil {
			conn.Put(word)
		}
		return
	}
	var m member.Message
	if err := jsonread.Into(word, &m); err != nil {
		w.note(fmt.Sprintf("process %d sends an unreadable message: %v", seat, err))
		return
	}
	c.event(seat, func() []member.Action { return c.machine.Hear(seat, m) })
}

// event passes an event on to the machine. While ranks work, it makes them stop, and waits.
func (c *crew) event(seat int, f func() []member.Action) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left || c.machine == nil || c.machine.Lost(seat):
	case c.parked || !c.machine.View().Has(seat): // others do not disturb the ranks
		c.do(f())
	default:
		if c.waiting = append(c.waiting, f); len(c.waiting) == 1 {
			c.halt(seat)
		}
	}
}

// halt ends the operations of this process's ranks. The caller holds mu.
func (c *crew) halt(seat int) {
	c.w.mu.Lock()
	n, star := c.w.net, c.w.star
	c.w.mu.Unlock()
	star.Abandon(max(0, c.w.processOf(seat)), "lost")
	if n != nil {
		n.(*socket.Net).Halt(seat)
	}
}

// end ends this process's part. Its peers have lost it.
func (c *crew) end(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.halt(c.seat)
	c.ends <- member.Action{Deed: member.GiveUp, Why: why}
}

// do carries out actions of the machine. The caller holds mu.
func (c *crew) do(all []member.Action) {
	n := c.w.net.(*socket.Net)
	for _, a := range all {
		switch a.Deed {
		case member.Send:
			body, err := json.Marshal(a.Message)
			if err != nil {
				panic(err) // it consists of numbers and a string
			}
			n.Tell(a.To, memberChannel, body)
		case member.Prepare:
			c.prepare(n, a.View)
		case member.GoOn, member.GiveUp:
			select {
			case c.ends <- a:
			default: // the ranks are long gone
			}
		}
	}
}

// prepare opens the wires of a view, and the connections of its star.
func (c *crew) prepare(n *socket.Net, v member.View) {
	for _, conn := range c.conns {
		conn.End()
	}
	c.conns, c.channel = map[int]*socket.Conn{}, uint32(v.Epoch)
	order := c.order(v)
	for _, seat := range order {
		if seat != c.seat && (c.seat == order[0] || seat == order[0]) {
			c.conns[seat] = n.Conn(seat, c.channel)
		}
	}
	groups, ranks := collective.MeshGroups(c.meshOf(v)), c.ranksOf(v)
	for _, g := range groups {
		for i, r := range g {
			g[i] = ranks[r]
		}
	}
	hosts := numbers(c.membersOf(order))
	n.Reform(v.Epoch, groups, func(seat int) int { return hosts[slices.Index(order, seat)] })
	c.hold(v, slowest, func(now member.View) bool { return now.Epoch >= v.Epoch })
}

// slowest is how long a newcomer may take to accept a view.
const slowest = 10 * time.Second

// membersOf returns the processes of seats, by number.
func (c *crew) membersOf(order []int) (all []rendezvous.Member) {
	for i, seat := range order {
		m := c.members[seat]
		m.Process, m.World = i, len(order)
		all = append(all, m)
	}
	return all
}

// ranksOf returns the ranks of a view by their first numbers.
func (c *crew) ranksOf(v member.View) (ranks []int) {
	for _, seat := range c.order(v) {
		for i := range c.w.cfg.PerProcess {
			ranks = append(ranks, seat*c.w.cfg.PerProcess+i)
		}
	}
	return ranks
}

// meshOf returns the mesh of a view.
func (c *crew) meshOf(v member.View) shard.Mesh {
	m := c.mesh
	m.Replicate = len(c.ranksOf(v)) * m.Size(shard.Replicate) / m.World()
	return m
}

// close ends the connections of the star.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.End()
	}
}

// park hands the ranks' standing over to the machine.
func (c *crew) park(s setup.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.halt(c.seat)
	}
	c.parked, c.written = true, s.Recorded
	if c.machine.Stand(s.Steps, s.Duty, s.Verdict); s.Filled {
		c.machine.Filled()
	}
	for _, f := range c.waiting {
		c.do(f())
	}
	c.waiting = nil
	c.do(c.machine.Change())
}

// await returns how a change has ended, unless gives is closed. Later losses begin another one.
func (c *crew) await(gives <-chan struct{}) (a member.Action, err error) {
	for range mostChanges {
		select {
		case a = <-c.ends:
		case <-gives:
			return a, errors.New("this process was asked to stop")
		case <-c.w.left:
			return a, errors.New("the world was closed")
		}
		if a.Deed == member.GiveUp {
			return a, c.leaves(a.Why)
		}
		c.mu.Lock()
		again := c.machine.Changes()
		c.parked = again
		c.mu.Unlock()
		if !again {
			return a, nil
		}
	}
	return a, fmt.Errorf("%d changes without a step: %w", mostChanges, collective.ErrClosed)
}

// leaves returns the error of this process when it does not go on.
func (c *crew) leaves(why string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.machine.View()
	v.Nodes = slices.DeleteFunc(slices.Clone(v.Nodes), c.machine.Lost)
	var lost []int
	for _, seat := range c.full {
		if c.machine.Lost(seat) {
			lost = append(lost, c.ranksAt(seat)...)
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		why = fmt.Sprintf("lost %s: %s", collective.RankNames(lost), why)
	}
	return setup.Left{Why: why, Others: c.meshOf(v).Replicate >= c.w.cfg.Survive}
}

// Wanted implements setup.Survivor.
func (w *World) Wanted() bool {
	c := w.crew
	if c == nil || !w.cfg.Joins {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admits = true
	w.openDoor()
	return !c.left && c.machine.Wanted()
}

// Late implements setup.Survivor.
func (w *World) Late() bool { return w.crew.isLate() }

func (c *crew) isLate() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.try != nil
}

// Survive implements setup.Survivor.
func (w *World) Survive(ctx context.Context, s setup.Standing) (*setup.Change, error) {
	c := w.crew
	var a member.Action
	var err error
	switch {
	case c.isLate():
		a, err = c.join(ctx)
	case c == nil || c.gone():
		return nil, collective.ErrClosed
	default:
		c.park(s)
		a, err = c.await(nil)
	}
	if err != nil {
		return nil, err
	}
	if c.again++; !slices.Equal(c.order(a.View), c.nodes()) || a.Steps != c.at || len(a.View.Guests) > 0 {
		c.again = 0
	}
	if c.again == mostAgain {
		return nil, fmt.Errorf("the same processes have failed %d times at step %d: %w", mostAgain, a.Steps+1, collective.ErrClosed)
	}
	w.reform(a.View)
	c.at = a.Steps
	c.hold(a.View, w.cfg.Join, func(now member.View) bool { return now.Epoch > a.View.Epoch })
	to := &setup.Change{
		Standing: setup.Standing{Steps: a.Steps, Duty: a.Duty, Verdict: a.Verdict}, Epoch: a.View.Epoch, Guests: len(a.View.Guests) > 0,
		Replicas: c.meshOf(a.View).Size(shard.Replicate), Connection: w.connection(c.meshOf(a.View)),
	}
	c.news(a.View, to)
	return to, nil
}

// news adds to a change who was lost and who has joined.
func (c *crew) news(v member.View, to *setup.Change) {
	full := slices.DeleteFunc(slices.Clone(v.Nodes), func(s int) bool { return slices.Contains(v.Guests, s) })
	for _, seat := range c.full {
		if m := c.members[seat]; !slices.Contains(full, seat) {
			to.Lost = append(to.Lost, c.ranksAt(seat)...)
			if m.Host == c.members[c.seat].Host {
				to.Pids = append(to.Pids, m.Pid)
			}
		}
	}
	for _, seat := range full {
		if c.full != nil && !slices.Contains(c.full, seat) {
			to.Joined = append(to.Joined, c.ranksAt(seat)...)
		}
	}
	slices.Sort(to.Lost)
	slices.Sort(to.Joined)
	c.full = full
	c.mu.Lock()
	defer c.mu.Unlock()
	for seat := range c.members { // the ones before those that have come back
		if !v.Has(seat) && !c.knocking[seat] && slices.ContainsFunc(v.Nodes, func(s int) bool { return s%c.places == seat%c.places }) {
			delete(c.members, seat)
		}
	}
	for _, seat := range v.Nodes {
		delete(c.knocking, seat)
	}
}

// ranksAt returns the ranks at the place of a seat.
func (c *crew) ranksAt(seat int) (ranks []int) {
	for i := range c.w.cfg.PerProcess {
		ranks = append(ranks, seat%c.places*c.w.cfg.PerProcess+i)
	}
	return ranks
}

// reform makes this the world of a view.
func (w *World) reform(v member.View) {
	c := w.crew
	order := c.order(v)
	conns := make([]net.Conn, len(order))
	c.mu.Lock()
	members := c.membersOf(order)
	for i, seat := range order {
		if conn := c.conns[seat]; conn != nil {
			conns[i] = conn
		}
	}
	c.last.Store(&order)
	w.tried = time.Time{} // who had the door may be lost
	c.mu.Unlock()
	old := w.star
	w.mu.Lock()
	w.cfg.Rank, w.cfg.World, w.hosts = slices.Index(order, c.seat), len(order), numbers(members)
	w.star = rendezvous.Again(rendezvous.Config{
		Processes: w.cfg.World, PerProcess: w.cfg.PerProcess, Seats: order, Heartbeat: w.cfg.Heartbeat, DeadAfter: w.cfg.DeadAfter,
		Note: w.cfg.Note, Me: rendezvous.Member{Process: w.cfg.Rank},
	}, fmt.Sprintf("%s-%d", c.session, v.Epoch), members, conns)
	star := w.star
	w.mu.Unlock()
	go w.follow(star, order)
	old.Close()
}
