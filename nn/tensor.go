package nn

import (
	"fmt"

	"zeroth/device"
	"zeroth/shard"
)

// Group is a set of ranks that divide the work of modules. Its operations are issued on the queue
// of the pass.
type Group interface {
	Rank() int
	Size() int
	Gather(whole, own device.Buffer) // sets whole to the concatenated own of all ranks
	Reduce(own, whole device.Buffer) // sets own to this rank's part of the sum of whole over all ranks
}

// Cut is the part of each matrix that a rank has (tensor parallelism, Shoeybi et al., arXiv
// 1909.08053). The zero Cut is the whole matrix. Layers that read the residual stream are divided
// by their outputs, in whole heads and parts of the hidden layer; those that write to it by their
// inputs. So a rank's block is that of a narrower model, whose output is a partial sum. The
// embedding and the output layer are divided by the vocabulary. Parameters other than matrices are
// whole on every rank, in separate units, and each rank's gradient of them is a partial sum.
//
// Between the matrices, a rank has some rows of the residual stream (sequence parallelism,
// Korthikanti et al., arXiv 2205.05198), see Batch.Held: it gathers those of all ranks before a
// matrix, and reduce-scatters the outputs after it.
type Cut struct{ Index, Count int }

// some reports whether there is more than one part.
func (c Cut) some() bool { return c.Count > 1 }

// narrow returns this rank's share of n.
func (c Cut) narrow(n int, what string) int {
	if !c.some() {
		return n
	}
	if n%c.Count != 0 {
		panic(fmt.Sprintf("nn: %d %s cannot be divided over %d ranks", n, what, c.Count))
	}
	return n / c.Count
}

// part returns this rank's part of a parameter whose dimension dim consists of concatenated pieces
// with the given lengths on this rank.
func (c Cut) part(p shard.Param, dim int, own ...int) shard.Param {
	if !c.some() {
		return p
	}
	var take []shard.Range
	at := 0
	for _, n := range own {
		take = append(take, shard.Range{Lo: at + c.Index*n, Hi: at + (c.Index+1)*n})
		at += c.Count * n
	}
	return p.Part(dim, take...)
}

// vocab returns this rank's part of a matrix with a row per token: the same number of rows on every
// rank, except that the last may have fewer.
func (c Cut) vocab(p shard.Param) (shard.Param, device.Vocab) {
	if !c.some() {
		return p, device.Vocab{}
	}
	size := p.Shape[0]
	most := (size + c.Count - 1) / c.Count
	own := shard.Range{Lo: min(size, c.Index*most), Hi: min(size, (c.Index+1)*most)}
	p = p.Part(0, own)
	p.Cut.Most = most
	return p, device.Vocab{First: own.Lo, Size: size}
}

// Own returns the range [lo, hi) of the batch's rows that this rank has in the residual stream.
func (b *Batch) Own() (lo, hi int) {
	first, n := 0, b.B*b.T
	if b.Tensor != nil {
		n /= b.Tensor.Size()
		first = b.Tensor.Rank() * n
	}
	if b.hi > 0 {
		return first + b.lo, first + b.hi
	}
	return first, first + n
}

// Held returns the number of Own rows.
func (b *Batch) Held() int { lo, hi := b.Own(); return hi - lo }

// first reports whether this rank is the only or the first one that divides matrices: it adds terms
// that must be added only once to a sum.
func (b *Batch) first() bool { return b.Tensor == nil || b.Tensor.Rank() == 0 }

// whole returns the rows of x on all ranks: x itself without tensor parallelism. Deferred gradients
// may be computed from them.
func (p pass) whole(x device.Mat) device.Mat {
	if p.bt.Tensor == nil {
		return x
	}
	all := p.operand(p.bt.Rows(), x.Cols)
	p.bt.Tensor.Gather(all.Buf, x.Buf)
	return all
}

// summed sets y to this rank's rows of the sum over all ranks of f's result, or adds them with add.
// F writes all rows, or adds to them with its add. Without tensor parallelism, f writes directly to
// y.
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
	n, i := p.bt.Held(), p.bt.Tensor.Rank()
	own := all.RowRange(i*n, (i+1)*n).Buf
	p.bt.Tensor.Reduce(own, all.Buf)
	p.q.AddTo(y.Buf, y.Buf, own)
}
