//go:build cuda

package cuda

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// Exact sums by NCCL: every rank sends part r of its buffer to rank r, whose kernel adds
// what has come in rank order, its own part in its place. So sums have the bits of
// collective.Local, where NCCL's own have others. Parts travel in chunks for which bounce
// memory has a slot a peer: one group of sends and receives a chunk, then one sum, all in
// the order of the stream.

// AddExactly has sums of later operations taken in rank order, by way of bounce memory of
// ExactBounce bytes for the largest of them, which stays the caller's. All ranks of the
// communicator do so with as much, before their first operation.
func (c *Communicator) AddExactly(bounce device.Buffer) { c.exact, c.bounce = true, bounce }

// exactSum sets own to the sum of the ranks' parts of whole.
func (c *Communicator) exactSum(q *Queue, own, whole device.Buffer) error {
	if c.ranks > kernel.MaxSources && own.Type.Size() < 4 {
		return fmt.Errorf("an exact sum of %v over %d ranks: a GPU adds up at most %d at once without rounding", own.Type, c.ranks, kernel.MaxSources)
	}
	step := own.N // elements of a chunk
	if c.ranks > 1 {
		step = c.slot() / own.Type.Size()
		if step == 0 && own.N > 0 {
			return fmt.Errorf("%d bytes of bounce memory for exact sums of %d ranks", c.bounce.Bytes(), c.ranks)
		}
	}
	for lo := 0; lo < own.N; lo += step {
		hi := min(lo+step, own.N)
		if err := c.run(q, func() error { return c.receive(q, whole, lo, hi) }); err != nil {
			return err
		}
		c.addInOrder(q, own, whole, lo, hi)
	}
	q.flush()
	return q.failed()
}

// slot is the bytes of bounce memory for what one other rank sends.
func (c *Communicator) slot() int {
	return c.bounce.Bytes() / (c.ranks - 1) / memoryAlign * memoryAlign
}

// receive brings elements [lo, hi) of the others' parts into bounce memory.
func (c *Communicator) receive(q *Queue, whole device.Buffer, lo, hi int) error {
	if c.ranks == 1 {
		return nil
	}
	elem, part := whole.Type.Size(), whole.N/c.ranks
	return c.comm.SendParts(q.stream, driver.Parts{
		Rank: c.rank, Ranks: c.ranks, Whole: whole.Slice(lo, whole.N).Ptr, Stride: part * elem,
		Slots: c.bounce.Ptr, Slot: c.slot(), N: (hi - lo) * elem,
	})
}

// addInOrder adds elements [lo, hi) of what the ranks have for this one. More than a
// kernel takes are added to where the first of them is, which nobody needs any more.
func (c *Communicator) addInOrder(q *Queue, own, whole device.Buffer, lo, hi int) {
	terms := c.terms[:0]
	for r := range c.ranks {
		terms = append(terms, c.term(whole, r, lo, hi))
	}
	for len(terms) > kernel.MaxSources {
		q.SumInto(terms[0], terms[:kernel.MaxSources])
		terms = append(terms[:1], terms[kernel.MaxSources:]...)
	}
	q.SumInto(own.Slice(lo, hi), terms)
	c.terms = terms
}

// term is where elements [lo, hi) are that rank r has for this one.
func (c *Communicator) term(whole device.Buffer, r, lo, hi int) device.Buffer {
	part := whole.N / c.ranks
	if r == c.rank {
		return whole.Slice(r*part+lo, r*part+hi)
	}
	if r > c.rank {
		r--
	}
	from := r * c.slot() / c.bounce.Type.Size()
	return device.Buffer{Type: whole.Type, Use: device.Bounce, N: hi - lo, Ptr: c.bounce.Slice(from, c.bounce.N).Ptr}
}
