package tokenizer

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// Merges maps pairs of tokens to the tokens they merge into, with a rank: pairs with a lower
// rank merge first. The zero value is empty.
type Merges struct {
	keys   []uint64 // left<<32 | right, at hash(key) or after; the length is a power of two, at most half used
	values []merge
	n      int
}

// merge is the result of merging a pair of tokens.
type merge struct{ rank, id uint32 }

// noKey marks a free slot; no vocabulary has such ids.
const noKey = math.MaxUint64

// factor is odd and random for each process, so that no file can provoke collisions.
var factor = rand.Uint64() | 1

// slot returns the index of a key, or of the free slot for it.
func (m *Merges) slot(key uint64) int {
	i := int(key * factor >> (65 - bits.Len(uint(len(m.keys)))))
	for m.keys[i] != key && m.keys[i] != noKey {
		i = (i + 1) & (len(m.keys) - 1)
	}
	return i
}

// Set adds a merge. If the pair is already present, the last one wins.
func (m *Merges) Set(left, right, rank, id uint32) {
	if 2*m.n >= len(m.keys) {
		m.grow()
	}
	key := uint64(left)<<32 | uint64(right)
	i := m.slot(key)
	if m.keys[i] == noKey {
		m.n++
	}
	m.keys[i], m.values[i] = key, merge{rank, id}
}

func (m *Merges) grow() {
	old := *m
	size := max(16, 2*len(old.keys))
	m.keys, m.values = make([]uint64, size), make([]merge, size)
	for i := range m.keys {
		m.keys[i] = noKey
	}
	for i, key := range old.keys {
		if key != noKey {
			at := m.slot(key)
			m.keys[at], m.values[at] = key, old.values[i]
		}
	}
}

// Has reports whether a pair merges.
func (m *Merges) Has(left, right uint32) bool {
	_, ok := m.get(left, right)
	return ok
}

// get returns the merge of a pair.
func (m *Merges) get(left, right uint32) (merge, bool) {
	if m.n == 0 {
		return merge{}, false
	}
	key := uint64(left)<<32 | uint64(right)
	i := m.slot(key)
	return m.values[i], m.keys[i] == key
}

// Merger merges the tokens of one piece at a time. It serves one goroutine.
type Merger struct {
	nodes []node
	heap  heap
}

// node is a token of a piece during merging; nodes form a doubly linked list by index.
type node struct {
	id         uint32
	prev, next int32 // -1 at the ends; next is merged for a token that was merged into the previous one
}

const merged = -2

// Reserve allocates memory for a piece of n tokens, so that a long one is not copied while it
// grows.
func (g *Merger) Reserve(n int) {
	g.nodes, g.heap = slices.Grow(g.nodes, n), slices.Grow(g.heap, n)
}

// Push adds a token to the piece.
func (g *Merger) Push(id uint32) {
	i := int32(len(g.nodes))
	g.nodes = append(g.nodes, node{id, i - 1, i + 1})
}

// Append merges the piece, always the leftmost of the pairs with the lowest rank, appends its
// tokens to ids, and begins a new piece. It takes O(n log n) for n tokens, so that even a
// megabyte without spaces is fast.
func (g *Merger) Append(ids []uint32, m *Merges) []uint32 {
	if len(g.nodes) == 0 {
		return ids
	}
	g.nodes[len(g.nodes)-1].next = -1
	for i := range g.nodes {
		g.offer(int32(i), m)
	}
	for len(g.heap) > 0 {
		top := g.heap.pop()
		i := int32(uint32(top))
		n := &g.nodes[i]
		if n.next < 0 {
			continue
		}
		next := &g.nodes[n.next]
		into, ok := m.get(n.id, next.id)
		if !ok || into.rank != uint32(top>>32) {
			continue // the pair changed after it was offered
		}
		n.id = into.id
		n.next, next.next = next.next, merged
		if n.next >= 0 {
			g.nodes[n.next].prev = i
		}
		g.offer(i, m)
		if n.prev >= 0 {
			g.offer(n.prev, m)
		}
	}
	for i := int32(0); i >= 0; i = g.nodes[i].next {
		ids = append(ids, g.nodes[i].id)
	}
	g.nodes = g.nodes[:0]
	return ids
}

// offer adds the pair that begins at node i to the heap, if it merges.
func (g *Merger) offer(i int32, m *Merges) {
	n := &g.nodes[i]
	if n.next < 0 {
		return
	}
	if into, ok := m.get(n.id, g.nodes[n.next].id); ok {
		g.heap.push(uint64(into.rank)<<32 | uint64(uint32(i)))
	}
}

// heap is a binary min-heap of rank<<32 | position.
type heap []uint64

func (h *heap) push(x uint64) {
	s := append(*h, x)
	*h = s
	i := len(s) - 1
	for ; i > 0 && x < s[(i-1)/2]; i = (i - 1) / 2 {
		s[i] = s[(i-1)/2]
	}
	s[i] = x
}

func (h *heap) pop() uint64 {
	s := *h
	top, x := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	i := 0
	for 2*i+1 < len(s) {
		child := 2*i + 1
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if x <= s[child] {
			break
		}
		s[i], i = s[child], child
	}
	if len(s) > 0 {
		s[i] = x
	}
	return top
}
