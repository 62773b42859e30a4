package shard

import (
	"fmt"
	"iter"
	"slices"
)

// Cut says which part of a tensor a parameter is, where ranks divide matrices between them
// (tensor parallelism): ranges of one dimension. The zero Cut is all of the tensor.
type Cut struct {
	Full []int   // the tensor's shape; the parameter's own differs in Dim alone
	Dim  int     // the dimension that is cut
	Take []Range // indices in it, ascending: as many as the parameter's own shape has there
	Most int     // how many the largest of the tensor's parts has; 0: all have as many
}

// Reserved returns the number of elements for which Lay leaves room: those of the tensor's
// largest part, so that layouts of all parts are equally long.
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

// Tensor returns the shape of the tensor that p is a part of, which is p's own if p is not cut.
func (p Param) Tensor() []int {
	if p.Cut.Full == nil {
		return p.Shape
	}
	return p.Cut.Full
}

// Part returns the part of p that has some ranges, ascending, of a dimension.
func (p Param) Part(dim int, take ...Range) Param {
	if p.Cut.Full != nil {
		panic(fmt.Sprintf("shard: parameter %s is cut twice", p.Name))
	}
	p.Cut = Cut{Full: p.Shape, Dim: dim, Take: take}
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

// Runs yields where elements of of the flattened parameter p lie in the flattened tensor that
// p is a part of: the longest runs that are contiguous in both, ascending, as (elements of the
// tensor, elements of p). A parameter that is not cut has one.
func (p Param) Runs(of Range) iter.Seq2[Range, Range] {
	return func(yield func(tensor, own Range) bool) {
		if p.Cut.Full == nil {
			if of.Len() > 0 {
				yield(of, of)
			}
			return
		}
		inner := 1
		for _, n := range p.Shape[p.Cut.Dim+1:] {
			inner *= n
		}
		row, whole := p.Shape[p.Cut.Dim]*inner, p.Cut.Full[p.Cut.Dim]*inner // elements of an index of the dimensions before
		var tensor, own Range                                               // a run that may go on
		for at := of.Lo; at < of.Hi; {
			outer, in := at/row, at%row
			for _, t := range p.Cut.Take {
				n := t.Len() * inner
				if in >= n {
					in -= n
					continue
				}
				run := min(n-in, of.Hi-at)
				lo := outer*whole + t.Lo*inner + in
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

// Own returns the elements of p whose places in the tensor are in a range: they follow each other.
func (p Param) Own(tensor Range) Range {
	return Range{p.before(tensor.Lo), p.before(tensor.Hi)}
}

// before returns how many elements of p lie before an element of the tensor.
func (p Param) before(tensor int) int {
	if p.Cut.Full == nil {
		return tensor
	}
	inner := 1
	for _, n := range p.Shape[p.Cut.Dim+1:] {
		inner *= n
	}
	whole := p.Cut.Full[p.Cut.Dim] * inner
	if whole == 0 {
		return 0
	}
	n, in := tensor/whole*p.Shape[p.Cut.Dim]*inner, tensor%whole
	for _, t := range p.Cut.Take {
		n += min(max(in-t.Lo*inner, 0), t.Len()*inner)
	}
	return n
}
