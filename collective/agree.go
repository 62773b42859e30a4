package collective

import (
	"fmt"
	"math/bits"
)

// Agreement of a Wired's ranks on a call, before an Engine is told, in notes of which
// each rank sends about twice the logarithm of their number, and not one to each other.
//
// A rank tells its call to the ranks 1, 2, 4, ... behind it, and compares those that come
// from as far ahead of it with its own. It then knows that log N others have come. A
// second note to the rank 2^k behind says that a rank has heard, by way of others, of the
// 2^k ranks before it, and whether all of them made one call; it is sent when those from
// 1, 2, ... 2^(k-1) ahead are there. So at the end each rank has heard of all, which is
// the dissemination barrier of Hensgen, Finkel and Manber (1988), and calls that differ
// anywhere are known to every rank: between a rank that differs and any other lies a pair
// of which one hears the other. Then everybody tells everybody, which names the sides.
//
// A rank that does not come is named by those whom it should have told; the others of
// those that wait have nobody to name, and hear it from these.

// fewRanks is how many tell each other directly: it takes no more notes.
const fewRanks = 8

// Kinds of notes of an agreement, beside noteCall and noteCredit.
const (
	noteCome  = 3 // a call, encoded as noteCall's are
	noteHeard = 4 // of the 2^k before the sender; byte 1 is 1 if not all made one call
)

// agreement is one that is under way, and what has come of the next one. It is the
// issuing goroutine's.
type agreement struct {
	call
	from   []ahead // by k: the rank 2^k ahead
	parted bool    // calls differ
	early  map[int][]Note
}

// ahead is what has come from a rank for which this one waits.
type ahead struct{ come, heard bool }

// agree implements agreeing.
func (g *Wired) agree(what call) error {
	if g.Size() <= fewRanks {
		return g.newCall(what).doRun() // an operation on nothing
	}
	parted, err := g.hearAll(what)
	if err != nil || !parted {
		return err
	}
	if err = g.newCall(what).doRun(); err == nil {
		panic(fmt.Sprintf("collective: rank %d heard of another call than %v, and nobody made one", g.Name(g.Rank()), what))
	}
	return err
}

// hearAll returns when the rank has heard of all others, and whether calls differ.
func (g *Wired) hearAll(what call) (parted bool, err error) {
	if why := g.wire.Ended(); why != nil {
		return false, why
	}
	a := &g.agreement
	if err := g.startAgreement(what); err != nil {
		return false, g.leave(err)
	}
	var n Note
	what.encode(&n, 0)
	n[0] = noteCome
	for k := range a.from {
		g.wire.Note(g.behind(k), n)
	}
	for k := range a.from {
		p := g.ahead(k)
		early := a.early[p]
		delete(a.early, p)
		for _, n := range early {
			err = firstOf(err, g.note(k, n))
		}
		if g.peers[p].ahead { // its call of an operation that is none of an engine
			g.partFrom(k)
		}
	}
	for next := 1; err == nil; {
		for next < len(a.from) && a.through(next) {
			g.tellHeard(next)
			next++
		}
		if a.over() {
			break
		}
		var e Event
		if e, err = g.wire.Poll(); err == nil {
			err = g.hear(e)
		}
	}
	return a.parted, g.leave(err)
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// startAgreement marks the group as busy with it.
func (g *Wired) startAgreement(what call) error {
	a := &g.agreement
	if a.from == nil {
		a.from, a.early = make([]ahead, bits.Len(uint(g.Size()-1))), map[int][]Note{}
	}
	clear(a.from)
	a.call, a.parted = what, false
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside {
		panic(fmt.Sprintf("collective: rank %d runs %v during another operation: its queues are not ordered by a mark", g.Name(g.Rank()), what))
	}
	g.inside, g.unheard = true, len(a.from)
	for k := range a.from {
		g.waitsFor[g.ahead(k)] = itsCall
	}
	return g.gone
}

// leave ends the agreement; after an error the group.
func (g *Wired) leave(err error) error {
	if err != nil {
		err = g.abandon(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside = false
	return err
}

// behind and ahead are the ranks at a distance of 2^k.
func (g *Wired) behind(k int) int { return (g.Rank() + 1<<k) % g.Size() }
func (g *Wired) ahead(k int) int  { return (g.Rank() - 1<<k + g.Size()) % g.Size() }

// through is whether the rank has heard of the 2^k before it.
func (a *agreement) through(k int) bool {
	for i, f := range a.from[:k] {
		if !f.come || i > 0 && !f.heard {
			return false
		}
	}
	return true
}

// over is whether it has heard of all, and all has come that is sent to it.
func (a *agreement) over() bool { return a.through(len(a.from)) }

func (g *Wired) tellHeard(k int) {
	n := Note{noteHeard}
	if g.agreement.parted {
		n[1] = 1
	}
	g.wire.Note(g.behind(k), n)
}

// hear takes the agreement a step further.
func (g *Wired) hear(e Event) error {
	a := &g.agreement
	k := bits.TrailingZeros(uint((g.Rank() - e.Peer + g.Size()) % g.Size()))
	waits := k < len(a.from) && g.ahead(k) == e.Peer
	switch {
	case e.Kind == Left:
		if g.gone == nil {
			g.gone = e.Why
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
			g.partFrom(k)
		}
		return nil
	case waits && !a.done(k):
		return g.note(k, e.Note)
	}
	return g.noteEarly(e.Peer, e.Note)
}

// done is whether nothing more comes from the rank 2^k ahead.
func (a *agreement) done(k int) bool { return a.from[k].come && (k == 0 || a.from[k].heard) }

// note is a note of the rank 2^k ahead: its call, then what it has heard.
func (g *Wired) note(k int, n Note) error {
	a := &g.agreement
	f := &a.from[k]
	if n[0] == noteHeard && f.come {
		f.heard = true
		a.parted = a.parted || n[1] != 0
		return nil
	}
	its, err := decodeCall(&n, g.Name(g.ahead(k)))
	if err != nil {
		return err
	}
	if n[0] != noteCome || f.come {
		return fmt.Errorf("collective: rank %d sends a note %d that is not its turn: it is not of this version", g.Name(g.ahead(k)), n[0])
	}
	a.parted = a.parted || its != a.call
	g.arrived(k)
	return nil
}

// arrived is called when the rank 2^k ahead has come.
func (g *Wired) arrived(k int) {
	g.agreement.from[k].come = true
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unheard--
	g.waitsFor[g.ahead(k)] = nothing
}

// partFrom is called when the rank 2^k ahead has come to another kind of operation: it
// will agree to nothing, and tells everybody.
func (g *Wired) partFrom(k int) {
	a := &g.agreement
	a.parted = true
	if !a.from[k].come {
		g.arrived(k)
	}
	a.from[k].heard = true
}

// noteAhead keeps a peer's call of the next operation.
func (g *Wired) noteAhead(e Event) (err error) {
	q := &g.peers[e.Peer]
	if q.ahead {
		return fmt.Errorf("collective: rank %d calls two operations at once: it is not of this version", g.Name(e.Peer))
	}
	q.ahead, q.lends = true, e.Lends
	q.next, err = decodeCall(&e.Note, g.Name(e.Peer))
	return err
}

// noteEarly keeps what a peer says of the next agreement, which is two notes at most.
func (g *Wired) noteEarly(p int, n Note) error {
	a := &g.agreement
	if len(a.early[p]) == 2 || a.from == nil {
		return fmt.Errorf("collective: rank %d sends a note %d that is not its turn: it is not of this version", g.Name(p), n[0])
	}
	a.early[p] = append(a.early[p], n)
	return nil
}
