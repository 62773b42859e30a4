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
// collective.Local, where NCCL's own have others. Of a reduce, which has one part, only
// rank 0 is sent anything. Parts travel in chunks for which bounce
// memory has a slot a peer: one group of sends and receives a chunk, then one sum, all in
// the order of the stream.

// AddExactly has sums of later operations taken in rank order, by way of bounce memory of
// ExactBounce bytes for the largest of them, which stays the caller's. All ranks of the
// communicator do so with as much, before their first operation.
func (c *Communicator) AddExactly(bounce device.Buffer) { c.exact, c.bounce = true, bounce }

// exactSum sets own to the sum of the ranks' parts of whole.
func (c *Communicator) exactSum(q *Queue, own, whole device.Buffer) error {
	step, err := c.step(own)
	if err != nil {
		return err
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

// exactReduce sets rank 0's b to the sum of the ranks'.
func (c *Communicator) exactReduce(q *Queue, b device.Buffer) error {
	step, err := c.step(b)
	if err != nil || c.ranks == 1 {
		return err
	}
	for lo := 0; lo < b.N; lo += step {
		hi := min(lo+step, b.N)
		if err := c.run(q, func() error { return c.collect(q, b.Slice(lo, hi)) }); err != nil {
			return err
		}
		if c.rank == 0 {
			c.addInOrder(q, b, b, lo, hi) // its own part begins where b does
		}
	}
	q.flush()
	return q.failed()
}

// step is the elements of a chunk of what one rank is to have the sum of, or why there can
// be no such sum.
func (c *Communicator) step(sum device.Buffer) (int, error) {
	if c.ranks > kernel.MaxSources && sum.Type.Size() < 4 {
		return 0, fmt.Errorf("an exact sum of %v over %d ranks: a GPU adds up at most %d at once without rounding", sum.Type, c.ranks, kernel.MaxSources)
	}
	if c.ranks == 1 {
		return sum.N, nil
	}
	step := c.slot() / sum.Type.Size()
	if step == 0 && sum.N > 0 {
		return 0, fmt.Errorf("%d bytes of bounce memory for exact sums of %d ranks", c.bounce.Bytes(), c.ranks)
	}
	return step, nil
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

// collect brings the others' b into rank 0's bounce memory.
func (c *Communicator) collect(q *Queue, b device.Buffer) error {
	return c.comm.Collect(q.stream, driver.Parts{
		Rank: c.rank, Ranks: c.ranks, Whole: b.Ptr, Slots: c.bounce.Ptr, Slot: c.slot(), N: b.Bytes(),
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
