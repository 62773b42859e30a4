package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"zeroth/collective"
	"zeroth/collective/member"
	"zeroth/collective/rendezvous"
	"zeroth/collective/socket"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/shard"
)

// A process that comes back takes the place of one that was lost. It has a seat of its own: the place plus a multiple
// of the number of places. Until its ranks are ready, its world is a record of what the others have said (answer.Said).
// Then it connects to all processes of the view and to those that come back with it, and knocks.

// newcomer is what a process that has not joined yet knows. The crew's mu guards it.
type newcomer struct {
	answer
	me    rendezvous.Member
	next  int           // of said
	said  []entry       // what the others have said, as far as it is this process's, too
	heard map[int]bool  // seats that have answered, or introduced themselves, in this attempt
	why   string        // the attempt has failed
	news  chan struct{} // capacity 1: one of them has changed
}

// hear records the answer of a process, or its loss.
func (n *newcomer) hear(seat int, why string) {
	if n == nil {
		return
	}
	if n.heard[seat] = true; why != "" && n.why == "" {
		n.why = why
	}
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// enterLate prepares the world of a process that comes back.
func (w *World) enterLate(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.Join, fmt.Errorf("not within %v (parallel.join)", w.cfg.Join))
	defer cancel()
	host, _ := os.Hostname() // only for people
	me := rendezvous.Member{Process: w.cfg.Rank, World: w.cfg.World, Host: host, Boot: bootID(), Sees: sees(folder()), Pid: pid(), GPUs: w.cfg.GPUs}
	a, local, err := w.ask(ctx, w.cfg.Rank, 0)
	if err == nil {
		err = w.open(local, &me)
	}
	if err != nil {
		return err
	}
	c := newCrew(w, nil, a.Session)
	c.seat, c.try = a.Seat, &newcomer{answer: a, me: me}
	w.crew, w.links = c, a.Links
	members := make([]rendezvous.Member, w.cfg.World)
	for _, s := range a.Seated {
		members[s.Seat%c.places] = s.Member
	}
	members[w.cfg.Rank] = me
	w.hosts = numbers(members)
	w.star = rendezvous.Again(rendezvous.Config{
		Processes: w.cfg.World, PerProcess: w.cfg.PerProcess, Heartbeat: w.cfg.Heartbeat, DeadAfter: w.cfg.DeadAfter, Note: w.cfg.Note,
	}, c.session, members, make([]net.Conn, w.cfg.World))
	if err = w.chooseNCCL(); err != nil {
		return err
	}
	if its := w.addsUp(); its != a.Sums {
		return input.BadInput(fmt.Errorf("joining the run: gradients would be summed by %s here, but the run sums them by %s", its, a.Sums))
	}
	w.admit(w.newDoors("data " + c.session))
	return nil
}

// ask asks a process of the run until it answers that this one can join.
func (w *World) ask(ctx context.Context, place, beyond int) (a answer, local net.Addr, err error) {
	var why error
	for {
		a, local, err = w.askAny(ctx, request{Place: place, Beyond: beyond})
		switch {
		case err != nil && why != nil:
			return a, nil, why
		case err != nil:
			return a, nil, rendezvous.Gone(fmt.Sprintf("joining the run: %v", err))
		case a.Over:
			return a, nil, rendezvous.Missing("joining the run: " + a.Why)
		case a.Why == "":
			return a, local, nil
		}
		why = rendezvous.Missing(fmt.Sprintf("joining the run: %s", a.Why))
		select {
		case <-ctx.Done():
			return a, nil, why
		case <-time.After(askAgain):
		}
	}
}

// askAgain is the time between two questions.
const askAgain = 200 * time.Millisecond

// askAny asks the first process of any host that answers.
func (w *World) askAny(ctx context.Context, q request) (a answer, local net.Addr, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type reply struct {
		c   net.Conn
		err error
	}
	all := make(chan reply, len(w.cfg.Back))
	for _, host := range w.cfg.Back {
		at := w.cfg.Process
		at.Host = host
		go func() {
			c, err := rendezvous.Caller{Process: q.Place, Token: w.cfg.Token, TLS: w.cfg.TLS}.Dial(ctx, "tcp", at.Addrs(), w.joinName())
			all <- reply{c, err}
		}()
	}
	for i := range w.cfg.Back {
		r := <-all
		if err = r.err; err != nil {
			continue
		}
		cancel()
		go func() {
			for range w.cfg.Back[i+1:] {
				if r := <-all; r.err == nil {
					_ = r.c.Close()
				}
			}
		}()
		defer r.c.Close()
		_ = r.c.SetDeadline(time.Now().Add(doorTime))
		if err = put(r.c, q); err == nil {
			err = get(r.c, &a)
		}
		if err != nil {
			a = answer{Why: "no answer: " + err.Error()} // that process may just have been lost
		}
		return a, r.c.LocalAddr(), nil
	}
	return a, nil, err
}

// said returns what the others have said at this point.
func (n *newcomer) repeat() (entry, error) {
	if n.next == len(n.answer.Said) {
		return entry{}, errors.New("the run did not come this far when it began; this process runs another job")
	}
	e := n.answer.Said[n.next]
	n.next++
	return e, nil
}

// share returns what process 0 has shared.
func (n *newcomer) share() (string, error) {
	e, err := n.repeat()
	n.said = append(n.said, entry{Shared: e.Shared})
	return e.Shared, err
}

// free are facts that may differ: the run goes on.
var free = []string{"checkpoint to continue from"}

// agree compares facts with those of the others.
func (n *newcomer) agree(facts []rendezvous.Fact) error {
	e, err := n.repeat()
	var lines []string
	for i, f := range facts {
		theirs := "nothing"
		if i < len(e.Facts) && e.Facts[i].Name == f.Name {
			theirs = e.Facts[i].Value
		}
		if theirs != f.Value && !slices.Contains(free, f.Name) {
			lines = append(lines, fmt.Sprintf("the process that comes back differs in %s: %s; the run: %s", f.Name, f.Value, theirs))
		}
	}
	if lines != nil {
		return rendezvous.Differences(strings.Join(lines[:min(len(lines), 20)], "\n"))
	}
	n.said = append(n.said, entry{Facts: e.Facts, Agreed: true})
	return err
}

// apart connects the ranks of a newcomer to nobody.
func (w *World) apart(m shard.Mesh) *setup.Connection {
	if mem, err := socket.NewMemory(); err == nil {
		w.mem = mem
	} else {
		w.mem = &socket.Memory{}
	}
	w.crew.place(m)
	w.net = socket.New(socket.Config{Process: w.cfg.Rank, Processes: w.cfg.World, PerProcess: w.cfg.PerProcess, Groups: collective.MeshGroups(m), Hosts: w.hosts, Share: w.mem})
	return w.connection(m)
}

// join joins the run at its next change.
func (c *crew) join(ctx context.Context) (member.Action, error) {
	w := c.w
	limit := time.Now().Add(w.cfg.Join)
	for {
		a, err := c.attempt(ctx)
		var refused rendezvous.Refusal
		switch {
		case err == nil || ctx.Err() != nil || errors.As(err, &refused):
			return a, err
		case time.Now().After(limit):
			return a, rendezvous.Missing(fmt.Sprintf("joining the run: not within %v (parallel.join): %v", w.cfg.Join, err))
		}
		w.note(fmt.Sprintf("joining the run: %v; trying again", err))
		select {
		case <-time.After(askAgain):
		case <-w.left:
			return a, err
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
}

// attempt connects to the processes of the run and waits until they take this one in, or one of them is lost.
func (c *crew) attempt(ctx context.Context) (a member.Action, err error) {
	defer func() {
		if err != nil {
			c.attemptNet(c.seat) // others wait for this one until its connections end
		}
	}()
	soon, cancel := context.WithTimeoutCause(ctx, c.w.cfg.Join/4, errors.New("no connection to a process of the run"))
	defer cancel()
	v, mates, err := c.meet(soon)
	if err != nil {
		return a, err
	}
	c.mu.Lock()
	if why := c.try.why; why != "" {
		c.mu.Unlock()
		return a, errors.New(why)
	}
	c.machine, c.parked = member.Join(c.config(), v, mates), true
	c.do(c.machine.Knock())
	c.mu.Unlock()
	if a, err = c.await(ctx.Done()); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.machine = nil
		return a, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.admits, c.try = c.try.answer.Said, true, nil
	return a, nil
}

// meet connects to the processes of the view and to those of this one's unit that come back, too. It returns their
// seats.
func (c *crew) meet(ctx context.Context) (v member.View, mates []int, err error) {
	w, place := c.w, c.try.me.Process
	a, _, err := w.ask(ctx, place, c.seat)
	if err != nil {
		return v, nil, err
	}
	n := c.attemptNet(a.Seat)
	c.mu.Lock()
	c.machine, c.seat, c.conns, c.ends = nil, a.Seat, nil, make(chan member.Action, mostChanges)
	c.try.answer, c.try.heard, c.try.why, c.try.news = a, map[int]bool{}, "", make(chan struct{}, 1)
	c.knocking, c.members = map[int]bool{}, map[int]rendezvous.Member{a.Seat: c.try.me}
	for _, s := range a.Seated {
		c.members[s.Seat] = s.Member
	}
	c.mu.Unlock()
	for _, seat := range a.View.Nodes {
		if err := c.call(ctx, n, seat); err != nil {
			return v, nil, err
		}
	}
	if err := c.heardOf(ctx, a.View.Nodes); err != nil {
		return v, nil, err
	}
	mates, err = c.mates(ctx, n)
	return a.View, mates, err
}

// attemptNet replaces the network of the attempt before this one, which other processes may end later: what it
// reports then concerns nobody.
func (c *crew) attemptNet(seat int) (n *socket.Net) {
	w := c.w
	current := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.net == n
	}
	n = socket.New(socket.Config{
		Process: seat, Processes: c.places, PerProcess: w.cfg.PerProcess, Share: w.mem, Heartbeat: w.cfg.Heartbeat, DeadAfter: w.cfg.DeadAfter,
		Lost: func(process int, err error) {
			if current() {
				w.broke(process, err)
			}
		},
		Told: func(seat int, channel uint32, word []byte) {
			if current() {
				w.told(seat, channel, word)
			}
		},
	})
	w.mu.Lock()
	old := w.net
	w.net = n
	w.mu.Unlock()
	old.Close()
	return n
}

// call connects to a process and introduces this one.
func (c *crew) call(ctx context.Context, n *socket.Net, seat int) error {
	c.mu.Lock()
	it, ok := c.members[seat]
	me := introduction{Member: c.try.me, Facts: factsOf(c.try.said)}
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("the address of process %d is unknown", seat%c.places)
	}
	caller := rendezvous.Caller{Process: c.seat, Token: c.w.cfg.Token, Once: true} // if it does not listen, it was lost
	conn, err := c.w.dialMember(ctx, caller, it, sameHost(me.Member, it), "data "+c.session)
	if err != nil {
		return fmt.Errorf("process %d: %w", seat%c.places, err)
	}
	giveUpAfter(conn, c.w.cfg.DeadAfter)
	n.AddNew(seat, conn)
	n.Tell(seat, lobby, must(me))
	return nil
}

// heardOf waits until processes have answered.
func (c *crew) heardOf(ctx context.Context, seats []int) error {
	for {
		c.mu.Lock()
		why, missing := c.try.why, slices.IndexFunc(seats, func(s int) bool { return !c.try.heard[s] })
		c.mu.Unlock()
		switch {
		case why != "":
			return errors.New(why)
		case missing < 0:
			return nil
		}
		select {
		case <-c.try.news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// mates connects to the other processes of the unit, once they have met the run: this one calls those of lower
// places. It returns all seats of the unit, ascending.
func (c *crew) mates(ctx context.Context, n *socket.Net) ([]int, error) {
	place, mates := c.seat%c.places, []int{c.seat}
	for p, unit := range c.units {
		if unit != c.units[place] || p == place {
			continue
		}
		seat, err := c.waitFor(ctx, p)
		if err == nil && p < place {
			err = c.call(ctx, n, seat)
		}
		if err != nil {
			return nil, err
		}
		mates = append(mates, seat)
	}
	slices.Sort(mates)
	return mates, c.heardOf(ctx, slices.DeleteFunc(slices.Clone(mates), func(s int) bool { return s == c.seat }))
}

// waitFor returns the seat of a process that comes back, once the run knows it.
func (c *crew) waitFor(ctx context.Context, place int) (int, error) {
	for {
		a, _, err := c.w.askAny(ctx, request{Place: c.seat % c.places, Looks: true})
		if err != nil {
			return 0, err
		}
		for _, s := range a.Waiting {
			if s.Seat%c.places == place {
				c.mu.Lock()
				c.members[s.Seat] = s.Member
				c.mu.Unlock()
				return s.Seat, nil
			}
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return 0, fmt.Errorf("process %d of the same replica does not come back: %w", place, context.Cause(ctx))
		}
	}
}
