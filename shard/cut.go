package shard

import (
	"fmt"
	"iter"
	"slices"
)

// Cut describes which part of a tensor a parameter is, if ranks divide matrices (tensor
// parallelism) or a tensor of experts: ranges of one dimension. The zero Cut is the whole tensor.
type Cut struct {
	Full  []int   // the tensor's shape; the parameter's own differs only in Dim, and in dimension 0 with First
	First Range   // indices in dimension 0, if that is cut as well as Dim; empty: all
	Dim   int     // the dimension that is cut
	Take  []Range // indices in Dim, ascending; as many as the parameter's own shape has there
	Most  int     // number of indices of the largest part; 0: all parts are equal
}

// Reserved returns the number of elements that Lay reserves: the size of the tensor's largest part,
// so that layouts of all parts have the same length.
func (p Param) Reserved() int {
	n := p.Numel()
	if own := p.Cut.Most; own > 0 {
		n = own
		for i, d := range p.Shape {
			if i != p.Cut.Dim {
				n *= d
			}
		}
	}
	return n
}

// Tensor returns the shape of the tensor that p is a part of, or p's own if p is not cut.
func (p Param) Tensor() []int {
	if p.Cut.Full == nil {
		return p.Shape
	}
	return p.Cut.Full
}

// Matrices returns the matrices of the last two dimensions of p, each as a parameter at its place in p.
func (p Param) Matrices() []Param {
	last := len(p.Shape) - 2
	if last == 0 {
		return []Param{p}
	}
	n := 1
	for _, d := range p.Shape[:last] {
		n *= d
	}
	at := p.At
	if p.Shape = p.Shape[last:]; p.Cut.Full != nil && p.Cut.Dim >= last {
		p.Cut.Full, p.Cut.Dim, p.Cut.First = p.Cut.Full[last:], p.Cut.Dim-last, Range{}
	} else {
		p.Cut = Cut{}
	}
	all, each := make([]Param, n), p.Numel()
	for i := range all {
		p.At = Range{at.Lo + i*each, at.Lo + (i+1)*each}
		all[i] = p
	}
	return all
}

// Flat returns the shape of p as one matrix, of all rows in its last dimension.
func (p Param) Flat() (rows, cols int) {
	cols = p.Shape[len(p.Shape)-1]
	return p.Numel() / max(1, cols), cols
}

// Part returns the part of p with the given ranges of a dimension, in ascending order. A range of dimension 0 can
// be cut again in another one.
func (p Param) Part(dim int, take ...Range) Param {
	full, first := p.Shape, Range{}
	if was := p.Cut; was.Full != nil {
		if was.Dim > 0 || len(was.Take) != 1 || dim == 0 {
			panic(fmt.Sprintf("shard: parameter %s is cut twice", p.Name))
		}
		full, first = was.Full, was.Take[0]
	}
	p.Cut = Cut{Full: full, First: first, Dim: dim, Take: take}
	p.Shape = slices.Clone(p.Shape)
	p.Shape[dim] = 0
	for i, r := range take {
		if r.Lo < 0 || r.Len() < 0 || r.Hi > p.Cut.Full[dim] || i > 0 && r.Lo < take[i-1].Hi {
			panic(fmt.Sprintf("shard: parameter %s of shape %v is cut at %v in dimension %d", p.Name, p.Cut.Full, take, dim))
		}
		p.Shape[dim] += r.Len()
	}
	return p
}

// Runs maps a range of elements of the flattened parameter p to the flattened tensor: it yields the
// longest runs that are contiguous in both, ascending, as (elements of the tensor, elements of p).
// A parameter that is not cut has one.
func (p Param) Runs(of Range) iter.Seq2[Range, Range] {
	return func(yield func(tensor, own Range) bool) {
		if p.Cut.Full == nil {
			if of.Len() > 0 {
				yield(of, of)
			}
			return
		}
		inner, base := p.inner(), p.base()
		row, whole := p.Shape[p.Cut.Dim]*inner, p.Cut.Full[p.Cut.Dim]*inner // elements per index of the outer dimensions
		var tensor, own Range                                               // the current run, which may continue
		for at := of.Lo; at < of.Hi; {
			outer, in := at/row, at%row
			for _, t := range p.Cut.Take {
				n := t.Len() * inner
				if in >= n {
					in -= n
					continue
				}
				run := min(n-in, of.Hi-at)
				lo := base + outer*whole + t.Lo*inner + in
				if lo == tensor.Hi && own.Len() > 0 {
					tensor.Hi, own.Hi = tensor.Hi+run, own.Hi+run
				} else {
					if own.Len() > 0 && !yield(tensor, own) {
						return
					}
					tensor, own = Range{lo, lo + run}, Range{at, at + run}
				}
				at += run
				break
			}
		}
		if own.Len() > 0 {
			yield(tensor, own)
		}
	}
}

// inner returns the number of elements of the dimensions after the cut one.
func (p Param) inner() int {
	n := 1
	for _, d := range p.Shape[p.Cut.Dim+1:] {
		n *= d
	}
	return n
}

// base returns the number of elements of the tensor before those with the first index of Cut.First.
func (p Param) base() int {
	n := p.Cut.First.Lo
	for _, d := range p.Cut.Full[1:] {
		n *= d
	}
	return n
}

// Within returns the elements of p that lie in a range of the tensor; they are contiguous in p.
func (p Param) Within(tensor Range) Range {
	return Range{p.preceding(tensor.Lo), p.preceding(tensor.Hi)}
}

// preceding returns the number of elements of p that precede an element of the tensor.
func (p Param) preceding(tensor int) int {
	if p.Cut.Full == nil {
		return tensor
	}
	inner := p.inner()
	whole := p.Cut.Full[p.Cut.Dim] * inner
	if whole == 0 {
		return 0
	}
	tensor = max(0, tensor-p.base())
	n, in := tensor/whole*p.Shape[p.Cut.Dim]*inner, tensor%whole
	if n >= p.Numel() {
		return p.Numel()
	}
	for _, t := range p.Cut.Take {
		n += min(max(in-t.Lo*inner, 0), t.Len()*inner)
	}
	return n
}
