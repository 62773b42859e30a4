// Package collective moves buffers between the ranks of a group.
//
// A Group has two primitives, both in place on a buffer of Size equal parts of
// which part r is rank r's own; the rest are functions over them. Sums are
// taken in float32 in rank order, so every implementation gives the same bits.
// A collective is issued on a queue and returns at once; its error sticks to
// the queue. The ranks of a group issue the same operations in the same order.
package collective

import (
	"errors"
	"fmt"

	"zeroth/device"
)

// Group is one rank's end of a set of ranks that communicate.
type Group interface {
	Rank() int
	Size() int
	// AllGather fills every part from its owner. Any element type.
	AllGather(q device.Queue, b device.Buffer)
	// ReduceScatter sets part Rank to the sum of that part over all ranks, in
	// rank order: ((b0+b1)+b2)+... The other parts are left undefined.
	// Float types; 16-bit ones are summed in float32 and rounded once.
	ReduceScatter(q device.Queue, b device.Buffer)
	// Close ends the group on this rank. Pending and later operations of every
	// other rank then fail with ErrPeerLost naming this one. It is idempotent.
	Close() error
}

// ErrClosed is what operations on a closed group return.
var ErrClosed = errors.New("collective: group closed")

// ErrPeerLost says which rank ended the group; it is an ErrClosed.
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

// AllReduce replaces b by its sum over all ranks, in rank order. g.Size() must
// divide its length.
func AllReduce(g Group, q device.Queue, b device.Buffer) {
	g.ReduceScatter(q, b)
	g.AllGather(q, b)
}
