package shard

import (
	"fmt"
	"slices"
	"strings"
)

// Mesh is a world of ranks in a grid of named dimensions, from the outermost to the
// innermost: ranks that differ in Tensor alone are neighbours. A size of 0 counts as 1.
type Mesh struct {
	Pipeline, Replicate, Shard, Context, Tensor int

	Copies bool // ranks that differ in Context have copies of the state; else they share one
}

// Axis is a dimension of a Mesh.
type Axis int

// The dimensions, from the outermost to the innermost. Ranks that differ in
//
//	Pipeline   have different layers of the model
//	Replicate  have the same state and different data
//	Shard      share one copy of the state and have different data
//	Context    have different positions of the same sequences
//	Tensor     have different parts of the same matrices
const (
	Pipeline Axis = iota
	Replicate
	Shard
	Context
	Tensor
	axes
)

// data are the dimensions whose ranks read data of their own.
var data = []Axis{Replicate, Shard}

func (m Mesh) sizes() [axes]int {
	all := [axes]int{m.Pipeline, m.Replicate, m.Shard, m.Context, m.Tensor}
	for a, n := range all {
		if n < 0 {
			panic(fmt.Sprintf("shard: mesh %+v", m))
		}
		all[a] = max(1, n)
	}
	return all
}

// Dimensions names them with their sizes: those of data always, others where there are several ranks.
func (m Mesh) Dimensions() string {
	var words []string
	all := m.sizes()
	for a, name := range [axes]string{"pipeline", "replicate", "shard", "context", "tensor"} {
		if all[a] > 1 || slices.Contains(data, Axis(a)) {
			words = append(words, fmt.Sprintf("%s %d", name, all[a]))
		}
	}
	return strings.Join(words, " × ")
}

// Size returns the number of ranks that differ in some dimensions alone.
func (m Mesh) Size(in ...Axis) int {
	n, all := 1, m.sizes()
	for _, a := range in {
		n *= all[a]
	}
	return n
}

// Holders returns the dimensions whose ranks share one copy of the state, and those whose ranks
// have the same part of it.
func (m Mesh) Holders() (share, same []Axis) {
	if m.Copies {
		return []Axis{Shard}, []Axis{Replicate, Context}
	}
	return []Axis{Shard, Context}, []Axis{Replicate}
}

// World returns the number of ranks.
func (m Mesh) World() int { return m.Size(Pipeline, Replicate, Shard, Context, Tensor) }

// Group returns the ranks that differ from rank in some dimensions alone, ascending. Rank is
// at index Index.
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

// Index returns the place of rank in its Group.
func (m Mesh) Index(rank int, in ...Axis) int {
	i := 0
	for a, n := range m.sizes() {
		if slices.Contains(in, Axis(a)) {
			i = i*n + m.At(rank, Axis(a))
		}
	}
	return i
}

// At returns the position of rank in a dimension.
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

// Groups returns the groups of ranks that differ in some dimensions alone, by their first
// ranks.
func (m Mesh) Groups(in ...Axis) (groups [][]int) {
	for r := range m.World() {
		if m.Index(r, in...) == 0 {
			groups = append(groups, m.Group(r, in...))
		}
	}
	return groups
}

// DataRanks returns the number of ranks that read data of their own.
func (m Mesh) DataRanks() int { return m.Size(data...) }

// DataRank returns rank's index among them. Ranks with equal ones read the same.
func (m Mesh) DataRank(rank int) int { return m.Index(rank, data...) }
