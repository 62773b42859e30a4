package shard

import (
	"fmt"
	"slices"
	"strings"
)

// Mesh arranges the ranks of a world in a grid of named dimensions, from the outermost to the
// innermost: ranks that differ only in Tensor are adjacent. A size of 0 means 1.
type Mesh struct {
	Pipeline, Replicate, Shard, Expert, Context, Tensor int

	Copies bool // ranks along Expert and Context have copies of the state, except experts; otherwise they share one
}

// Axis is a dimension of a Mesh.
type Axis int

// The dimensions, from the outermost to the innermost. Ranks along
//
//	Pipeline   have different layers of the model
//	Replicate  have the same state and different data
//	Shard      share one copy of the state and have different data
//	Expert     have different experts and different data, and share one copy of the rest
//	Context    have different positions of the same sequences
//	Tensor     have different parts of the same matrices
const (
	Pipeline Axis = iota
	Replicate
	Shard
	Expert
	Context
	Tensor
	axes
)

// data lists the dimensions along which ranks read different data.
var data = []Axis{Replicate, Shard, Expert}

func (m Mesh) sizes() [axes]int {
	all := [axes]int{m.Pipeline, m.Replicate, m.Shard, m.Expert, m.Context, m.Tensor}
	for a, n := range all {
		if n < 0 {
			panic(fmt.Sprintf("shard: mesh %+v", m))
		}
		all[a] = max(1, n)
	}
	return all
}

// Dimensions formats the sizes of the dimensions: shard and replicate, and others larger than 1.
func (m Mesh) Dimensions() string {
	var words []string
	all := m.sizes()
	for a, name := range [axes]string{"pipeline", "replicate", "shard", "expert", "context", "tensor"} {
		if all[a] > 1 || Axis(a) == Replicate || Axis(a) == Shard {
			words = append(words, fmt.Sprintf("%s %d", name, all[a]))
		}
	}
	return strings.Join(words, " × ")
}

// Size returns the number of ranks in a group that extends along some dimensions.
func (m Mesh) Size(in ...Axis) int {
	n, all := 1, m.sizes()
	for _, a := range in {
		n *= all[a]
	}
	return n
}

// Holders returns the dimensions along which ranks share one copy of the state, and those along
// which they hold the same part of it.
func (m Mesh) Holders() (share, same []Axis) {
	if m.Copies {
		return []Axis{Shard}, []Axis{Replicate, Expert, Context}
	}
	return []Axis{Shard, Expert, Context}, []Axis{Replicate}
}

// ExpertHolders is Holders of experts: ranks along Expert have different ones.
func (m Mesh) ExpertHolders() (share, same []Axis) {
	share, same = m.Holders()
	other := func(a Axis) bool { return a == Expert }
	return slices.DeleteFunc(share, other), slices.DeleteFunc(same, other)
}

// World returns the number of ranks.
func (m Mesh) World() int { return m.Size(Pipeline, Replicate, Shard, Expert, Context, Tensor) }

// Group returns the ranks that differ from rank only along some dimensions, ascending. Rank is at
// index Index.
func (m Mesh) Group(rank int, in ...Axis) []int {
	group, all := []int{rank}, m.sizes()
	for a, step := axes-1, 1; a >= 0; a-- {
		if slices.Contains(in, a) {
			whole := make([]int, 0, len(group)*all[a])
			for i := range all[a] {
				for _, r := range group {
					whole = append(whole, r-m.At(r, a)*step+i*step)
				}
			}
			group = whole
		}
		step *= all[a]
	}
	return group
}

// Index returns the index of rank in its Group.
func (m Mesh) Index(rank int, in ...Axis) int {
	i := 0
	for a, n := range m.sizes() {
		if slices.Contains(in, Axis(a)) {
			i = i*n + m.At(rank, Axis(a))
		}
	}
	return i
}

// At returns the position of rank along a dimension.
func (m Mesh) At(rank int, a Axis) int {
	all, n := m.sizes(), m.World()
	if rank < 0 || rank >= n {
		panic(fmt.Sprintf("shard: rank %d of a mesh of %d", rank, n))
	}
	for _, size := range all[a+1:] {
		rank /= size
	}
	return rank % all[a]
}

// Groups returns the groups of ranks that extend along some dimensions, ordered by their first
// ranks.
func (m Mesh) Groups(in ...Axis) (groups [][]int) {
	for r := range m.World() {
		if m.Index(r, in...) == 0 {
			groups = append(groups, m.Group(r, in...))
		}
	}
	return groups
}

// DataRanks returns the number of ranks that read different data.
func (m Mesh) DataRanks() int { return m.Size(data...) }

// DataRank returns rank's index among the DataRanks. Ranks with the same index read the same data.
func (m Mesh) DataRank(rank int) int { return m.Index(rank, data...) }
