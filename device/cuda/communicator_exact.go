//go:build cuda

package cuda

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/kernel"
)

// Exact sums over NCCL: every rank sends part r of its buffer to rank r, whose kernel adds the
// received parts and its own in rank order. So sums have the bits of collective.Local, unlike
// NCCL's own. In a reduce, which has one part, only rank 0 receives. Parts are sent in chunks that
// fit a slot of bounce memory for each peer: per chunk, one group of sends and receives, then one
// sum, all in the order of the stream.

// AddExactly makes sums of later operations be computed in rank order, using bounce memory of
// ExactBounce bytes for the largest of them, which the caller keeps. All ranks of the communicator
// must do so with the same size, before their first operation.
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
	if err != nil {
		return err
	}
	for lo := 0; lo < b.N; lo += step {
		hi := min(lo+step, b.N)
		if err := c.run(q, func() error { return c.collect(q, b.Slice(lo, hi)) }); err != nil {
			return err
		}
		if c.rank == 0 {
			c.addInOrder(q, b, b, lo, hi) // its own part begins at the start of b
		}
	}
	q.flush()
	return q.failed()
}

// step returns the number of elements per chunk for the sum on one rank, or an error if it is
// unsupported.
func (c *Communicator) step(sum device.Buffer) (int, error) {
	if c.ranks > kernel.MaxSources && sum.Type.Size() < 4 {
		return 0, fmt.Errorf("an exact sum of %v over %d ranks: a GPU sums at most %d at once without rounding", sum.Type, c.ranks, kernel.MaxSources)
	}
	step := c.slot() / sum.Type.Size()
	if step == 0 && sum.N > 0 {
		return 0, fmt.Errorf("%d bytes of bounce memory for exact sums of %d ranks", c.bounce.Bytes(), c.ranks)
	}
	return step, nil
}

// slot returns the size in bytes of the bounce memory for one other rank.
func (c *Communicator) slot() int {
	return c.bounce.Bytes() / (c.ranks - 1) / memoryAlign * memoryAlign
}

// receive receives elements [lo, hi) of the others' parts in bounce memory.
func (c *Communicator) receive(q *Queue, whole device.Buffer, lo, hi int) error {
	elem, part := whole.Type.Size(), whole.N/c.ranks
	return c.comm.SendParts(q.stream, driver.Parts{
		Rank: c.rank, Ranks: c.ranks, Whole: whole.Slice(lo, whole.N).Ptr, Stride: part * elem,
		Slots: c.bounce.Ptr, Slot: c.slot(), N: (hi - lo) * elem,
	})
}

// collect receives the others' b in rank 0's bounce memory.
func (c *Communicator) collect(q *Queue, b device.Buffer) error {
	return c.comm.Collect(q.stream, driver.Parts{
		Rank: c.rank, Ranks: c.ranks, Whole: b.Ptr, Slots: c.bounce.Ptr, Slot: c.slot(), N: b.Bytes(),
	})
}

// addInOrder adds elements [lo, hi) of the ranks' parts for this one. If they are more than a
// kernel takes, partial sums are stored in place of the first of them, which is no longer needed.
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

// term returns elements [lo, hi) of rank r's part for this one.
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
