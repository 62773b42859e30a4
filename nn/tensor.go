package nn

import (
	"fmt"

	"zeroth/device"
	"zeroth/shard"
)

// Group is ranks that divide the work of modules between them. Its operations are issued on
// the queue of the pass.
type Group interface {
	Rank() int
	Size() int
	Gather(whole, own device.Buffer) // sets whole to the own of all ranks, in their order
	Reduce(own, whole device.Buffer) // sets own to its part of the sum of whole over all ranks
}

// Cut is which part of each matrix a rank has, of so many (tensor parallelism, Shoeybi et al.,
// arXiv 1909.08053). The zero Cut is all of it. Layers that read the residual stream are
// divided by their outputs, whole heads and a part of the hidden layer; those that write to it
// by their inputs. So a block of a rank is that of a narrower model, whose output is a part of
// a sum. The embedding and the output layer are divided by the vocabulary. What is not a
// matrix is whole on every rank, in units of its own, and each rank's gradient of it is part
// of a sum.
//
// Between the matrices a rank has some rows of the residual stream (sequence parallelism,
// Korthikanti et al., arXiv 2205.05198), see Batch.Held: it gathers those of all ranks before
// a matrix and adds up its own of all ranks' outputs behind it.
type Cut struct{ Index, Of int }

// some says whether there is more than one part.
func (c Cut) some() bool { return c.Of > 1 }

// narrow returns the part of n that a rank has.
func (c Cut) narrow(n int, what string) int {
	if !c.some() {
		return n
	}
	if n%c.Of != 0 {
		panic(fmt.Sprintf("nn: %d %s cannot be divided over %d ranks", n, what, c.Of))
	}
	return n / c.Of
}

// part returns the rank's part of a parameter, whose dimension dim has pieces of so many
// indices on this rank, one after the other.
func (c Cut) part(p shard.Param, dim int, own ...int) shard.Param {
	if !c.some() {
		return p
	}
	var take []shard.Range
	at := 0
	for _, n := range own {
		take = append(take, shard.Range{Lo: at + c.Index*n, Hi: at + (c.Index+1)*n})
		at += c.Of * n
	}
	return p.Part(dim, take...)
}

// vocab returns the rank's part of a matrix with a row for each token: as many rows on every
// rank but the last, which may have fewer.
func (c Cut) vocab(p shard.Param) (shard.Param, device.Vocab) {
	if !c.some() {
		return p, device.Vocab{}
	}
	size := p.Shape[0]
	most := (size + c.Of - 1) / c.Of
	own := shard.Range{Lo: min(size, c.Index*most), Hi: min(size, (c.Index+1)*most)}
	p = p.Part(0, own)
	p.Cut.Most = most
	return p, device.Vocab{First: own.Lo, Size: size}
}

// Own returns rows [lo, hi) of the batch: those of the residual stream that the rank has.
func (b *Batch) Own() (lo, hi int) {
	if b.Tensor == nil {
		return 0, b.Rows()
	}
	n := b.Rows() / b.Tensor.Size()
	return b.Tensor.Rank() * n, (b.Tensor.Rank() + 1) * n
}

// Held returns how many rows Own are.
func (b *Batch) Held() int { lo, hi := b.Own(); return hi - lo }

// first says whether the rank is the only one, or the first, of those that divide matrices:
// what must be added once to a sum is added by it.
func (b *Batch) first() bool { return b.Tensor == nil || b.Tensor.Rank() == 0 }

// whole returns the rows that all ranks have of x: x itself, where matrices are not divided.
// Gradients that are left for later may be computed from them.
func (p pass) whole(x device.Mat) device.Mat {
	if p.bt.Tensor == nil {
		return x
	}
	all := p.operand(p.bt.Rows(), x.Cols)
	p.bt.Tensor.Gather(all.Buf, x.Buf)
	return all
}

// summed sets y, or with add adds to it, the rank's rows of the sum over all ranks of what f
// writes, or with its add adds, to all rows. Where matrices are not divided f writes to y.
func (p pass) summed(y device.Mat, add bool, f func(all device.Mat, add bool)) {
	if p.bt.Tensor == nil {
		f(y, add)
		return
	}
	defer p.mem.Release(p.mem.Mark())
	all := device.Matrix(p.mem.Take(y.Buf.Type, p.bt.Rows()*y.Cols), p.bt.Rows(), y.Cols)
	f(all, false)
	if !add {
		p.bt.Tensor.Reduce(y.Buf, all.Buf)
		return
	}
	lo, hi := p.bt.Own()
	own := all.RowRange(lo, hi).Buf
	p.bt.Tensor.Reduce(own, all.Buf)
	p.q.AddTo(y.Buf, y.Buf, own)
}
