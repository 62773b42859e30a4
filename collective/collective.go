// Package collective moves buffers between the ranks of a group.
//
// A Group has two primitives between a buffer of Size equal parts, of which
// part r is rank r's own, and that own part, which may lie elsewhere; one that moves
// a buffer of rank 0 to the others, and one that adds theirs up in rank 0's. The rest are functions over them. Sums are taken in float32 in rank order, so every
// implementation gives the same bits. A collective is issued on a queue and
// returns at once; its error sticks to the queue. The ranks of a group issue the
// same operations in the same order, and a rank that uses several queues orders
// its operations by marks. Ranks that do not are told so by the group: it
// compares what they call, with the label of their queues' work.
//
// Local is for ranks that are goroutines of one process, Wired for ranks in
// several, over anything that carries frames from one to another (Wire). They
// differ in what they can promise of an operation that fails. Wherever ranks
// are, it leaves its buffers undefined and ends the group. Local also fails on
// all ranks or on none, and where ranks disagree before it touches data; over
// wires one rank may be done when another hears of the end, which it does in
// its next operation.
//
// A rank whose queue has failed skips its operations and so keeps its peers
// waiting: it must close its groups. Nobody hangs on a rank that does, and
// Watchdog turns one that does not into an error that names it.
package collective

import (
	"errors"
	"fmt"

	"zeroth/device"
)

// Group is one rank's end of a set of ranks that communicate. In both primitives
// own is as long as a part of whole, and either part Rank of it (then the
// operation is in place) or apart from it. The ranks agree on the length and
// type of whole, and need not on where own is. If they do not agree, the
// operation fails on all of them with an error that names each side, and the
// group ends.
type Group interface {
	Rank() int
	Size() int
	// AllGather fills each part of whole from its owner's own, which stays as it
	// is. Any element type.
	AllGather(q device.Queue, whole, own device.Buffer)
	// ReduceScatter sets own to the sum of part Rank of whole over all ranks, in
	// rank order: ((b0+b1)+b2)+... What is not own is left undefined. Float
	// types; 16-bit ones are summed in float32 and rounded once, float64 in
	// float64.
	ReduceScatter(q device.Queue, own, whole device.Buffer)
	// Broadcast fills b from rank 0's b, which stays as it is. Any element type. In a
	// group of two it is a link from rank 0 to rank 1.
	Broadcast(q device.Queue, b device.Buffer)
	// Reduce sets rank 0's b to the sum of b over all ranks, as ReduceScatter adds up.
	// The others' stay as they are.
	Reduce(q device.Queue, b device.Buffer)
	// Close ends the group on this rank and returns at once; the memory of
	// pending operations is free after Wait on their queue. Pending and later
	// operations of every other rank fail with ErrPeerLost, this rank's own
	// with ErrClosed. A rank that closes because it lost a peer passes that
	// peer's name on, so everybody names the rank that closed first. It is
	// idempotent.
	Close() error
}

// Inspectable is a Group that can tell what it waits for; Watchdog looks for it in the
// group it wraps.
type Inspectable interface {
	Group
	// Missing is the ranks, by Name and ascending, that this rank's operation still
	// waits for; nil if it does not wait.
	Missing() []int
	// Abort is Close with a reason: pending and later operations of all ranks,
	// this one too, fail with err, unless the group has ended already. A rank
	// that then closes its other groups passes the reason on.
	Abort(err error)
	// Name is what errors call rank r: its rank in the world that the group is
	// a part of.
	Name(r int) int
}

// ErrClosed is what operations on a closed group return.
var ErrClosed = errors.New("collective: group closed")

// ErrPeerLost says which rank ended the group, by its Name; it is an ErrClosed.
type ErrPeerLost struct{ Rank int }

func (e ErrPeerLost) Error() string { return fmt.Sprintf("peer %d lost", e.Rank) }

func (e ErrPeerLost) Is(target error) bool { return target == ErrClosed }

// Own is part Rank of the buffer: g.Size() must divide its length.
func Own(g Group, b device.Buffer) device.Buffer { return Part(g, b, g.Rank()) }

// Part is part r of the buffer.
func Part(g Group, b device.Buffer, r int) device.Buffer {
	n := PartLen(g, b)
	return b.Slice(r*n, (r+1)*n)
}

// PartLen is the number of elements of each part.
func PartLen(g Group, b device.Buffer) int {
	if b.N%g.Size() != 0 {
		panic(fmt.Sprintf("collective: part of %d elements for %d ranks", b.N, g.Size()))
	}
	return b.N / g.Size()
}

// AllGather is the group's in place: part Rank of b is the rank's own.
func AllGather(g Group, q device.Queue, b device.Buffer) { g.AllGather(q, b, Own(g, b)) }

// ReduceScatter is the group's in place.
func ReduceScatter(g Group, q device.Queue, b device.Buffer) { g.ReduceScatter(q, Own(g, b), b) }

// AllReduce replaces b by its sum over all ranks, in rank order. g.Size() must
// divide its length.
func AllReduce(g Group, q device.Queue, b device.Buffer) {
	ReduceScatter(g, q, b)
	AllGather(g, q, b)
}

// inspectable is g, or the first group under its wrappers, that is Inspectable; nil if
// there is none.
func inspectable(g Group) Inspectable {
	for {
		if w, ok := g.(Inspectable); ok {
			return w
		}
		u, ok := g.(interface{ Unwrap() Group })
		if !ok {
			return nil
		}
		g = u.Unwrap()
	}
}
