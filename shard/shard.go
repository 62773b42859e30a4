// Package shard cuts named parameters into equal pieces. It is pure arithmetic on elements and
// ranges, without memory or dtypes.
//
// A Layout concatenates the parameters of one unit to a flat vector, pads it at the end, and cuts
// it into World equal shards of a multiple of Align elements, or assigns all of it to the first.
// Padding is always at the end of the vector, so a parameter's position in it does not depend on
// World.
package shard

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
)

// Range contains elements [Lo, Hi).
type Range struct {
	Lo int `json:"lo"`
	Hi int `json:"hi"`
}

// Len returns the number of elements.
func (r Range) Len() int { return r.Hi - r.Lo }

// Intersect returns the elements in both ranges; its Len is 0 if there are none.
func (r Range) Intersect(o Range) Range {
	lo := max(r.Lo, o.Lo)
	return Range{lo, max(lo, min(r.Hi, o.Hi))}
}

// Init describes a parameter's initial values: normally distributed, or the constant Mean if Std is
// 0.
type Init struct{ Mean, Std float32 }

// Group is the default hyperparameter group of a parameter.
type Group uint8

const (
	Plain   Group = iota // without weight decay
	Decayed              // with weight decay
)

// Param is a named tensor and its position in the unit's flat vector.
type Param struct {
	Name   string
	Shape  []int
	At     Range // set by Lay
	Group  Group
	Frozen bool  // used but never updated: without gradient and state
	Router bool  // selects or weighs experts: never stored in a Code
	Single bool  // float32 in any precision
	Expert bool  // of one or several experts of a mixture; in a unit, all are or none is
	Rule   int   // index of its update rule
	Code   uint8 // device.Code in which it is stored if it is frozen
	Init   Init
	Cut    Cut // which part of a tensor it is

	Codes *Param // in a layout of codes: the parameter that these words encode; else nil
}

// Numel returns the number of elements of the shape. Dimensions may be 0 but not negative, and the
// product must fit an int.
func (p Param) Numel() int {
	n, fits := 1, true
	for _, d := range p.Shape {
		fits = fits && d >= 0 && (n == 0 || d <= math.MaxInt/n)
		n *= d
	}
	if !fits {
		panic(fmt.Sprintf("shard: parameter %s has shape %v", p.Name, p.Shape))
	}
	return n
}

// Layout describes a unit's flat vector and how it is cut.
type Layout struct {
	Params []Param // in order, with At contiguous except for alignment and Param.Reserved
	World  int     // number of shards
	Align  int     // ShardLen is a multiple of it
	Master bool    // shard 0 is the whole vector, the others are empty
}

// Lay concatenates the parameters, each at a multiple of begin elements. World, align and begin
// must be positive, and begin must divide align: then no shard boundary divides a block of begin
// elements, counted from a parameter's first.
func Lay(params []Param, world, align, begin int) *Layout {
	if world < 1 || align < 1 || begin < 1 || align%begin != 0 {
		panic(fmt.Sprintf("shard: world %d, align %d, begin %d", world, align, begin))
	}
	l := &Layout{Params: make([]Param, len(params)), World: world, Align: align}
	at := 0
	for i, p := range params {
		at = (at + begin - 1) / begin * begin
		p.At = Range{at, at + p.Numel()}
		at += p.Reserved()
		l.Params[i] = p
	}
	return l
}

// Numel returns the number of elements up to the end of the space reserved for the last parameter.
func (l *Layout) Numel() int {
	if len(l.Params) == 0 {
		return 0
	}
	last := l.Params[len(l.Params)-1]
	return last.At.Lo + last.Reserved()
}

// ShardLen returns the number of elements of each shard; with Master, of the first.
func (l *Layout) ShardLen() int {
	step := l.shards() * l.Align
	return (l.Numel() + step - 1) / step * l.Align
}

// shards returns the number of shards that have elements.
func (l *Layout) shards() int {
	if l.Master {
		return 1
	}
	return l.World
}

// Len returns the number of elements of the padded vector.
func (l *Layout) Len() int { return l.shards() * l.ShardLen() }

// Gaps returns the ranges between parameters and at the end that belong to no parameter.
func (l *Layout) Gaps() (gaps []Range) {
	at := 0
	for _, p := range l.Params {
		if p.At.Lo > at {
			gaps = append(gaps, Range{at, p.At.Lo})
		}
		at = p.At.Hi
	}
	if n := l.Len(); n > at {
		gaps = append(gaps, Range{at, n})
	}
	return gaps
}

// Shard returns the range of the flat vector that a rank owns, including padding.
func (l *Layout) Shard(rank int) Range {
	if rank < 0 || rank >= l.World {
		panic(fmt.Sprintf("shard: rank %d of %d", rank, l.World))
	}
	n := l.ShardLen()
	if last := l.shards(); rank >= last {
		return Range{last * n, last * n}
	}
	return Range{rank * n, (rank + 1) * n}
}

// Piece is the part of one parameter that lies in one shard.
type Piece struct {
	Param   int   // index into Layout.Params
	InParam Range // elements of the flattened parameter
	InShard Range // the same elements in the shard
}

// Pieces yields the parts of parameters in a rank's shard, in order. They cover the shard except
// for gaps.
func (l *Layout) Pieces(rank int) iter.Seq[Piece] {
	own := l.Shard(rank)
	return func(yield func(Piece) bool) {
		for i, p := range l.Params {
			in := p.At.Intersect(own)
			if in.Len() == 0 {
				continue
			}
			if !yield(Piece{i, Range{in.Lo - p.At.Lo, in.Hi - p.At.Lo}, Range{in.Lo - own.Lo, in.Hi - own.Lo}}) {
				return
			}
		}
	}
}

// Spread assigns costs to ranks and returns the rank of each: in descending order, each goes to the
// rank with the lowest sum so far, the first if there are several.
func Spread(costs []float64, ranks int) []int {
	if ranks < 1 {
		panic(fmt.Sprintf("shard: %d costs spread over %d ranks", len(costs), ranks))
	}
	order := make([]int, len(costs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(costs[b], costs[a]) })
	of, has := make([]int, len(costs)), make([]float64, ranks)
	for _, i := range order {
		of[i] = slices.Index(has, slices.Min(has))
		has[of[i]] += costs[i]
	}
	return of
}
