// Package collective exchanges buffers between the ranks of a group.
//
// A Group has five primitives. AllGather and ReduceScatter work on a buffer of Size equal parts,
// where part r belongs to rank r; that part may also be a separate buffer. Exchange works on two such
// buffers, Broadcast and Reduce on a whole buffer of rank 0. Everything else is a function of these. Sums are computed in
// float32 in rank order, so all implementations give the same bits. A collective is issued on a
// queue and returns at once; its error sticks to the queue. The ranks of a group must issue the
// same operations in the same order, and a rank that uses several queues must order its operations
// with marks. Groups detect violations: they compare the calls of all ranks, including the labels
// of the queues' work.
//
// Local connects ranks that are goroutines of one process; Wired connects ranks in several
// processes over any transport that implements Wire. They give different guarantees about a failing
// operation. In both, a failed operation leaves its buffers undefined and ends the group. A Local
// operation also fails on all ranks or on none, and fails before it touches data if the calls
// differ. Over wires, an operation may succeed on one rank and fail on another; the first then
// fails in its next operation.
//
// A rank whose queue has failed skips its operations, which blocks its peers until it closes its
// groups. If it does not, Watchdog turns the wait into an error that names it.
package collective

import (
	"errors"
	"fmt"

	"zeroth/device"
)

// Group is one rank's end of a set of communicating ranks. In AllGather and ReduceScatter, own has
// the length of one part of whole and either is part Rank of it (in place) or does not overlap it.
// All ranks must pass the same length and type of whole, but own may be in place on some ranks
// only. If calls differ, the operation fails on all ranks with an error that names each side, and
// the group ends.
type Group interface {
	Rank() int
	Size() int
	// AllGather fills each part of whole from its owner's own, which is unchanged. Any element type
	// is allowed.
	AllGather(q device.Queue, whole, own device.Buffer)
	// ReduceScatter sets own to the sum of part Rank of whole over all ranks, in rank order:
	// ((b0+b1)+b2)+... The rest of whole is left undefined. Only float types are allowed: 16-bit
	// types are summed in float32 and rounded once, float64 in float64.
	ReduceScatter(q device.Queue, own, whole device.Buffer)
	// Exchange sets part r of to to part Rank of rank r's from, for every rank r. The buffers have one
	// length and do not overlap. Any element type is allowed.
	Exchange(q device.Queue, to, from device.Buffer)
	// Broadcast fills b from rank 0's b. Any element type is allowed. A group of two is a link from
	// rank 0 to rank 1.
	Broadcast(q device.Queue, b device.Buffer)
	// Reduce sets rank 0's b to the sum of b over all ranks, computed as in ReduceScatter. The
	// buffers of other ranks are unchanged.
	Reduce(q device.Queue, b device.Buffer)
	// Close ends the group on this rank and returns at once; the memory of pending operations may
	// be freed after Wait on their queue. Pending and later operations of other ranks fail with
	// ErrPeerLost, this rank's own with ErrClosed. A rank that closes because it lost a peer passes
	// on that peer's name, so all ranks name the one that closed first. Close is idempotent.
	Close() error
}

// Inspectable is implemented by groups that can report which ranks they are waiting for. Watchdog
// needs it of the group it wraps, or of one underneath.
type Inspectable interface {
	Group
	// Missing returns the ranks, by Name and ascending, that this rank's operation is waiting for,
	// or nil if it is not waiting.
	Missing() []int
	// Abort closes the group with a reason: pending and later operations of all ranks, including
	// this one, fail with err, unless the group has already ended. If a rank then closes its other
	// groups, it passes on the reason.
	Abort(err error)
	// Name returns the number of rank r in errors: its rank in the world.
	Name(r int) int
}

// ErrClosed is returned by operations on a closed group.
var ErrClosed = errors.New("collective: group closed")

// ErrPeerLost reports the rank that ended the group, by its Name. It matches ErrClosed.
type ErrPeerLost struct{ Rank int }

func (e ErrPeerLost) Error() string { return fmt.Sprintf("peer %d lost", e.Rank) }

func (e ErrPeerLost) Is(target error) bool { return target == ErrClosed }

// Own returns part Rank of the buffer, whose length g.Size() must divide.
func Own(g Group, b device.Buffer) device.Buffer { return Part(g, b, g.Rank()) }

// Part returns part r of the buffer.
func Part(g Group, b device.Buffer, r int) device.Buffer {
	n := PartLen(g, b)
	return b.Slice(r*n, (r+1)*n)
}

// PartLen returns the number of elements of each part.
func PartLen(g Group, b device.Buffer) int {
	if b.N%g.Size() != 0 {
		panic(fmt.Sprintf("collective: part of %d elements for %d ranks", b.N, g.Size()))
	}
	return b.N / g.Size()
}

// AllGather gathers in place: part Rank of b is this rank's own.
func AllGather(g Group, q device.Queue, b device.Buffer) { g.AllGather(q, b, Own(g, b)) }

// ReduceScatter reduces in place: the sum replaces part Rank of b.
func ReduceScatter(g Group, q device.Queue, b device.Buffer) { g.ReduceScatter(q, Own(g, b), b) }

// AllReduce replaces b by its sum over all ranks, in rank order.
func AllReduce(g Group, q device.Queue, b device.Buffer) {
	n := b.N / g.Size() * g.Size()
	if rest := b.Slice(n, b.N); rest.N > 0 {
		g.Reduce(q, rest)
		g.Broadcast(q, rest)
	}
	if n > 0 || b.N == 0 {
		ReduceScatter(g, q, b.Slice(0, n))
		AllGather(g, q, b.Slice(0, n))
	}
}

// inspectable returns g, or the first group it wraps, that is Inspectable, or nil.
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
