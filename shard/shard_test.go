package shard

import (
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyParams draws the parameters of a unit, some of them without elements.
func anyParams(t *rapid.T) []Param {
	shapes := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 9), 0, 3), 0, 8).Draw(t, "shapes")
	params := make([]Param, len(shapes))
	for i, s := range shapes {
		params[i] = Param{Name: fmt.Sprint("p", i), Shape: s, Group: Group(i % 2), Frozen: i%3 == 0, Init: Init{Mean: float32(i), Std: 1}}
	}
	return params
}

func anyLayout(t *rapid.T) *Layout {
	return Lay(anyParams(t), rapid.IntRange(1, 9).Draw(t, "world"), rapid.IntRange(1, 20).Draw(t, "align"), 1)
}

// TestLay checks that parameters are concatenated in order and keep their other fields, and that
// the caller's slice is not modified.
func TestLay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams(t)
		before := slices.Clone(params)
		l := Lay(params, rapid.IntRange(1, 9).Draw(t, "world"), rapid.IntRange(1, 20).Draw(t, "align"), 1)
		if !reflect.DeepEqual(params, before) {
			t.Fatalf("Lay changed its argument to %v", params)
		}
		at := 0
		for i, p := range l.Params {
			n := 1
			for _, d := range p.Shape {
				n *= d
			}
			want := params[i]
			want.At = Range{at, at + n}
			if !reflect.DeepEqual(p, want) || p.Numel() != n {
				t.Fatalf("parameter %d is %v with %d elements, want %v with %d", i, p, p.Numel(), want, n)
			}
			at += n
		}
		if l.Numel() != at {
			t.Fatalf("%d elements, want %d", l.Numel(), at)
		}
	})
}

// TestShards checks that the shards are equal, aligned and contiguous, and cover all parameters
// with less padding than World × Align.
func TestShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		if l.ShardLen()%l.Align != 0 {
			t.Fatalf("shards of %d elements, aligned to %d", l.ShardLen(), l.Align)
		}
		at := 0
		for r := range l.World {
			if s := l.Shard(r); s.Lo != at || s.Len() != l.ShardLen() {
				t.Fatalf("shard %d is %v, want %d elements from %d", r, s, l.ShardLen(), at)
			}
			at += l.ShardLen()
		}
		if pad := l.Len() - l.Numel(); l.Len() != at || pad < 0 || pad >= l.World*l.Align {
			t.Fatalf("%d elements in all shards, length %d with %d of padding, %d shards aligned to %d", at, l.Len(), pad, l.World, l.Align)
		}
	})
}

// TestMasterHasAll checks that a master's shard is the whole vector, padded as for one rank, and
// that the others are empty.
func TestMasterHasAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		l.Master = true
		if one := (&Layout{Params: l.Params, World: 1, Align: l.Align}); l.Shard(0) != one.Shard(0) || l.Len() != one.Len() {
			t.Fatalf("the master has %v of %d, a single rank %v of %d", l.Shard(0), l.Len(), one.Shard(0), one.Len())
		}
		for r := 1; r < l.World; r++ {
			for p := range l.Pieces(r) {
				t.Fatalf("shard %d has %v", r, p)
			}
			if s := l.Shard(r); s.Len() != 0 {
				t.Fatalf("shard %d is %v", r, s)
			}
		}
	})
}

// TestPositionIsIndependentOfWorld checks the basis of resharding by ranges.
func TestPositionIsIndependentOfWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams(t)
		one := Lay(params, 1, 1, 1)
		other := Lay(params, rapid.IntRange(1, 50).Draw(t, "world"), rapid.IntRange(1, 64).Draw(t, "align"), 1)
		if !reflect.DeepEqual(one.Params, other.Params) {
			t.Fatalf("parameters at %v of one rank, %v of %d", one.Params, other.Params, other.World)
		}
	})
}

// TestPieces copies every parameter into the shards by the pieces: each element must arrive once,
// at its place in the flat vector.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		got := make([]int, l.Len()) // 1 + param*1000 + element, 0 without a piece
		want := make([]int, l.Len())
		for i, p := range l.Params {
			for e := range p.Numel() {
				want[p.At.Lo+e] = 1 + i*1000 + e
			}
		}
		for r := range l.World {
			shard := got[r*l.ShardLen() : (r+1)*l.ShardLen()]
			last := 0
			for p := range l.Pieces(r) {
				if p.InParam.Len() != p.InShard.Len() || p.InParam.Len() < 1 || p.InShard.Lo != last {
					t.Fatalf("piece %v of shard %d follows element %d", p, r, last)
				}
				last = p.InShard.Hi
				for i := range p.InShard.Len() {
					shard[p.InShard.Lo+i] += 1 + p.Param*1000 + p.InParam.Lo + i
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("elements by pieces %v\nwant %v", got, want)
		}
	})
}

func TestPiecesStopEarly(t *testing.T) {
	l := Lay([]Param{{Shape: []int{3}}, {Shape: []int{3}}}, 1, 1, 1)
	n := 0
	for range l.Pieces(0) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d pieces after break", n)
	}
}

func TestIntersect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		any := func(name string) Range {
			lo := rapid.IntRange(-5, 20).Draw(t, name)
			return Range{lo, lo + rapid.IntRange(0, 10).Draw(t, name+" length")}
		}
		a, b := any("a"), any("b")
		both := a.Intersect(b)
		for i := -10; i < 40; i++ {
			in := func(r Range) bool { return r.Lo <= i && i < r.Hi }
			if in(both) != (in(a) && in(b)) {
				t.Fatalf("%v and %v intersect in %v: wrong at %d", a, b, both, i)
			}
		}
		if both.Len() < 0 || both.Len() != b.Intersect(a).Len() {
			t.Fatalf("%v and %v intersect in %v of length %d", a, b, both, both.Len())
		}
	})
}

// TestMeshPartitions checks, for sets of dimensions, that groups partition the world into equal
// groups, that a rank's Index matches its Group, and that groups along the other dimensions share
// exactly one rank with it.
func TestMeshPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) int { return rapid.IntRange(0, 3).Draw(t, name) }
		m := Mesh{Pipeline: size("pipeline"), Replicate: size("replicate"), Shard: size("shard"), Expert: size("expert"), Context: size("context"), Tensor: size("tensor")}
		set := rapid.IntRange(0, 1<<axes-1).Draw(t, "dimensions")
		var in, others []Axis
		for a := range axes {
			if set>>a&1 > 0 {
				in = append(in, a)
			} else {
				others = append(others, a)
			}
		}
		partition(t, m.World(), m.Size(in...), func(r int) []int { return m.Group(r, in...) }, func(r int) int { return m.Index(r, in...) })
		if n := len(m.Groups(in...)); n*m.Size(in...) != m.World() {
			t.Fatalf("%+v has %d groups of %v", m, n, in)
		}
		r := rapid.IntRange(0, m.World()-1).Draw(t, "rank")
		for _, s := range m.Group(r, in...) {
			if m.Index(s, others...) != m.Index(r, others...) || s != r && slices.Contains(m.Group(r, others...), s) {
				t.Fatalf("%+v: ranks %d and %d are together in %v and in %v", m, r, s, in, others)
			}
		}
	})
}

// TestMeshOrder checks along which dimension ranks are adjacent.
func TestMeshOrder(t *testing.T) {
	m := Mesh{Pipeline: 2, Replicate: 2, Shard: 2, Expert: 1, Context: 2, Tensor: 2}
	for a, want := range [][]int{{13, 29}, {5, 13}, {9, 13}, {13}, {13, 15}, {12, 13}} {
		if got := m.Group(13, Axis(a)); !slices.Equal(got, want) {
			t.Errorf("rank 13's group of dimension %d is %v, want %v", a, got, want)
		}
	}
	m.Expert = 2
	if got, want := m.Group(13, Expert), []int{9, 13}; !slices.Equal(got, want) {
		t.Errorf("rank 13's group of experts is %v, want %v", got, want)
	}
	m.Expert = 1
	if got, want := m.Group(13, Replicate, Shard), []int{1, 5, 9, 13}; !slices.Equal(got, want) || m.DataRank(13) != 3 || m.DataRanks() != 4 {
		t.Errorf("ranks with data of their own: %v, rank 13 is %d of %d; want %v", got, m.DataRank(13), m.DataRanks(), want)
	}
}

// partition checks that the groups partition the world into groups of size ranks.
func partition(t *rapid.T, world, size int, group func(int) []int, index func(int) int) {
	for r := range world {
		g := group(r)
		if len(g) != size || !slices.IsSorted(g) || g[index(r)] != r {
			t.Fatalf("group %v of rank %d, which is %d in it, want %d ranks", g, r, index(r), size)
		}
		for _, s := range g {
			if !slices.Equal(group(s), g) {
				t.Fatalf("ranks %d and %d have groups %v and %v", r, s, g, group(s))
			}
		}
	}
}

func TestBrokenInputPanics(t *testing.T) {
	l := Lay([]Param{{Name: "w", Shape: []int{4, 4}}}, 2, 1, 1)
	lay := func(shape ...int) func() { return func() { Lay([]Param{{Name: "wte", Shape: shape}}, 1, 1, 1) } }
	tests := map[string]func(){
		"world 0, align 1":                func() { Lay(nil, 0, 1, 1) },
		"world 2, align 0":                func() { Lay(nil, 2, 0, 1) },
		"wte has shape [3 -1]":            lay(3, -1),
		"wte has shape [0 -1]":            lay(0, -1),
		"wte has shape [4294967296 4294":  lay(1<<32, 1<<32),
		"wte has shape [9223372036854775": lay(math.MaxInt, 2),
		"rank -1 of 2":                    func() { l.Shard(-1) },
		"rank 2 of 2":                     func() { l.Pieces(2) },
		"rank 6 of a mesh of 6":           func() { Mesh{Shard: 3, Replicate: 2}.Group(6, Shard) },
		"rank -1 of a mesh of 6":          func() { Mesh{Shard: 3, Replicate: 2}.Index(-1, Replicate) },
		"Shard:-1":                        func() { Mesh{Pipeline: 2, Shard: -1}.World() },
	}
	for want, f := range tests {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q in it", got, want)
				}
			}()
			f()
		})
	}
}

// TestMatrices checks where the matrices of a tensor of three dimensions are, whole and cut.
func TestMatrices(t *testing.T) {
	p := Param{Shape: []int{3, 4, 5}, At: Range{100, 160}}
	cut := p.Part(1, Range{2, 4})
	cut.At = Range{100, 130}
	twice := p.Part(0, Range{1, 3}).Part(1, Range{2, 4})
	if m := twice.Matrices(); len(m) != 2 || !slices.Equal(m[0].Tensor(), []int{4, 5}) || m[0].Within(Range{10, 20}) != (Range{0, 10}) {
		t.Errorf("matrices of a part of the first dimension: %+v", m)
	}
	if m := p.Part(0, Range{1, 3}).Matrices(); len(m) != 2 || m[1].Cut.Full != nil {
		t.Errorf("whole matrices of a part: %+v", m)
	}
	for i, m := range append(p.Matrices(), cut.Matrices()...) {
		n, rows := 20, 4
		if i >= 3 {
			n, rows = 10, 2
		}
		if at := 100 + i%3*n; m.At != (Range{at, at + n}) || !slices.Equal(m.Shape, []int{rows, 5}) || !slices.Equal(m.Tensor(), []int{4, 5}) {
			t.Errorf("matrix %d is %+v", i, m)
		}
	}
	if all := p.Matrices()[1].Matrices(); len(all) != 1 || all[0].At != (Range{120, 140}) {
		t.Errorf("of a matrix: %+v", all)
	}
}

// TestTurn checks that parts share all things, each once and as evenly as possible, and that their blocks are aligned: a part
// has at most a node for each binary digit that is 1, and one for what is left over.
func TestTurn(t *testing.T) {
	for n := 1; n < 70; n++ {
		for parts := 1; parts <= n; parts++ {
			seen := map[int]bool{}
			for part := range parts {
				var nodes []Node
				for i := range Turns(n, parts, part) {
					at := Turn(n, parts, part, i)
					if at < 0 || at >= n || seen[at] {
						t.Fatalf("thing %d of part %d of %d is %d of %d", i, part, parts, at, n)
					}
					seen[at] = true
					nodes = Tree(n).Fold(nodes, Node{At: at})
				}
				if most := bits.OnesCount(uint(n/parts)) + 1; len(nodes) > most {
					t.Errorf("part %d of %d has %v of %d leaves, want at most %d nodes", part, parts, nodes, n, most)
				}
			}
			if len(seen) != n {
				t.Errorf("%d parts have %d of %d things", parts, len(seen), n)
			}
		}
	}
}
