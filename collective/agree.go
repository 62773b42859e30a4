package collective

import (
	"fmt"
	"math/bits"
)

// Only the ranks that a missing rank owes a note can name it; the other waiting ranks learn the
// name from them.

// fewRanks is the largest group in which all ranks exchange calls directly. Up to this size, that
// takes no more notes than passing them on.
const fewRanks = 8

// Kinds of notes of an agreement, in addition to noteCall and noteCredit.
const (
	noteAgree = 3 // a call, encoded like noteCall
	noteHeard = 4 // from the 2^k ranks before the sender; byte 1 is 1 if their calls differ
)

// agreement holds the current agreement, and notes that arrived early for the next one. Only the
// issuing goroutine uses it.
type agreement struct {
	call
	from    []predecessor // by k: the rank 2^k before this one
	differs bool          // calls differ
	early   map[int][]Note
}

// predecessor records the notes received from a rank before this one.
type predecessor struct{ called, heard bool }

// agree implements agreeing.
func (g *Wired) agree(mine call) error {
	if g.Size() <= fewRanks {
		return g.newCall(mine).doRun() // an operation without data
	}
	differs, err := g.disseminate(mine)
	if err != nil || !differs {
		return err
	}
	if err = g.newCall(mine).doRun(); err == nil {
		panic(fmt.Sprintf("collective: rank %d was notified of a call other than %v, but no rank made one", g.Name(g.Rank()), mine))
	}
	return err
}

// disseminate waits until this rank has received the calls of all others and reports whether calls differ.
func (g *Wired) disseminate(mine call) (differs bool, err error) {
	if why := g.wire.Ended(); why != nil {
		return false, why
	}
	a := &g.agreement
	if err := g.startAgreement(mine); err != nil {
		return false, g.leave(err)
	}
	var n Note
	mine.encode(&n, 0)
	n[0] = noteAgree
	for k := range a.from {
		g.wire.Note(g.successor(k), n)
	}
	for k := range a.from {
		p := g.predecessor(k)
		early := a.early[p]
		delete(a.early, p)
		for _, n := range early {
			err = firstOf(err, g.note(k, n))
		}
		if g.peers[p].ahead { // it called an operation outside the engine
			g.markDifferent(k)
		}
	}
	for next := 1; err == nil; {
		for next < len(a.from) && a.covers(next) {
			g.sendHeard(next)
			next++
		}
		if a.complete() {
			break
		}
		var e Event
		if e, err = g.wire.Poll(); err == nil {
			err = g.handle(e)
		}
	}
	return a.differs, g.leave(err)
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// startAgreement marks the group as busy.
func (g *Wired) startAgreement(mine call) error {
	a := &g.agreement
	if a.from == nil {
		a.from, a.early = make([]predecessor, bits.Len(uint(g.Size()-1))), map[int][]Note{}
	}
	clear(a.from)
	a.call, a.differs = mine, false
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside {
		panic(fmt.Sprintf("collective: rank %d runs %v during another operation: its queues are not ordered by a mark", g.Name(g.Rank()), mine))
	}
	g.inside, g.uncalled = true, len(a.from)
	for k := range a.from {
		g.waitsFor[g.predecessor(k)] = awaitCall
	}
	return g.peerLeft
}

// leave ends the agreement, and after an error the group.
func (g *Wired) leave(err error) error {
	if err != nil {
		err = g.abandon(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside = false
	return err
}

// successor and predecessor return the ranks 2^k after and before this one.
func (g *Wired) successor(k int) int   { return (g.Rank() + 1<<k) % g.Size() }
func (g *Wired) predecessor(k int) int { return (g.Rank() - 1<<k + g.Size()) % g.Size() }

// covers reports whether this rank has the calls of the 2^k ranks before it.
func (a *agreement) covers(k int) bool {
	for i, f := range a.from[:k] {
		if !f.called || i > 0 && !f.heard {
			return false
		}
	}
	return true
}

// complete reports whether this rank has the calls of all others and all notes sent to it.
func (a *agreement) complete() bool { return a.covers(len(a.from)) }

func (g *Wired) sendHeard(k int) {
	n := Note{noteHeard}
	if g.agreement.differs {
		n[1] = 1
	}
	g.wire.Note(g.successor(k), n)
}

// handle processes an event of the current agreement.
func (g *Wired) handle(e Event) error {
	a := &g.agreement
	k := bits.TrailingZeros(uint((g.Rank() - e.Peer + g.Size()) % g.Size()))
	waits := k < len(a.from) && g.predecessor(k) == e.Peer
	switch {
	case e.Kind == Left:
		if g.peerLeft == nil {
			g.peerLeft = e.Why
		}
		if waits && !a.done(k) {
			return e.Why
		}
		return nil
	case e.Kind != Noted:
		panic(fmt.Sprintf("collective: an event %d of rank %d in an agreement, which moves nothing", e.Kind, e.Peer))
	case e.Note[0] == noteCall:
		if err := g.noteAhead(e); err != nil {
			return err
		}
		if waits && !a.done(k) {
			g.markDifferent(k)
		}
		return nil
	case waits && !a.done(k):
		return g.note(k, e.Note)
	}
	return g.noteEarly(e.Peer, e.Note)
}

// done reports whether the rank 2^k before has sent all its notes.
func (a *agreement) done(k int) bool { return a.from[k].called && (k == 0 || a.from[k].heard) }

// note processes a note of the rank 2^k before: first its call, then its confirmation.
func (g *Wired) note(k int, n Note) error {
	a := &g.agreement
	f := &a.from[k]
	if n[0] == noteHeard && f.called {
		f.heard = true
		a.differs = a.differs || n[1] != 0
		return nil
	}
	its, err := decodeCall(&n, g.Name(g.predecessor(k)))
	if err != nil {
		return err
	}
	if n[0] != noteAgree || f.called {
		return fmt.Errorf("collective: rank %d sends a note %d out of turn; all processes must run the same version", g.Name(g.predecessor(k)), n[0])
	}
	a.differs = a.differs || its != a.call
	g.arrived(k)
	return nil
}

// arrived records the call of the rank 2^k before.
func (g *Wired) arrived(k int) {
	g.agreement.from[k].called = true
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uncalled--
	g.waitsFor[g.predecessor(k)] = awaitNothing
}

// markDifferent records that the rank 2^k before called an operation of another kind: it takes no
// part in this agreement and sends its call to all ranks.
func (g *Wired) markDifferent(k int) {
	a := &g.agreement
	a.differs = true
	if !a.from[k].called {
		g.arrived(k)
	}
	a.from[k].heard = true
}

// noteAhead stores a peer's call of the next operation.
func (g *Wired) noteAhead(e Event) (err error) {
	q := &g.peers[e.Peer]
	if q.ahead {
		return fmt.Errorf("collective: rank %d calls two operations at once; all processes must run the same version", g.Name(e.Peer))
	}
	q.ahead, q.lends = true, e.Lends
	q.next, err = decodeCall(&e.Note, g.Name(e.Peer))
	return err
}

// noteEarly stores a peer's notes of the next agreement, at most two.
func (g *Wired) noteEarly(p int, n Note) error {
	a := &g.agreement
	if len(a.early[p]) == 2 || a.from == nil {
		return fmt.Errorf("collective: rank %d sends a note %d out of turn; all processes must run the same version", g.Name(p), n[0])
	}
	a.early[p] = append(a.early[p], n)
	return nil
}
