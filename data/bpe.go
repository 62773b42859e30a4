package data

import (
	"encoding/binary"
	"math"
)

// BPE is a byte-level byte-pair encoding (Sennrich et al., arXiv 1508.07909;
// over bytes since GPT-2). A piece of text starts as one token a byte; then,
// as long as there is one, the leftmost of the neighbouring pairs of lowest
// rank becomes one token.
type BPE struct {
	tokens    []string // bytes by id; "" where an id has no token
	bytes     [256]uint32
	merges    map[uint64]merge // by left<<32 | right
	order     []uint64         // the keys of merges, by rank
	separator int32
}

// merge is what a pair of tokens becomes.
type merge struct{ rank, id uint32 }

func pair(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// Vocab is the number of ids.
func (v *BPE) Vocab() int { return len(v.tokens) }

// Separator is the id of <|endoftext|>, or -1.
func (v *BPE) Separator() int32 { return v.separator }

// Encode is the ids of a text.
func (v *BPE) Encode(text []byte) []int32 {
	ids := newEncoder(v).append(nil, text)
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

// Decode is the text of ids.
func (v *BPE) Decode(ids []int32) (text []byte) {
	for _, id := range ids {
		if id < 0 || int(id) >= len(v.tokens) || v.tokens[id] == "" {
			text = append(text, replacement...)
			continue
		}
		text = append(text, v.tokens[id]...)
	}
	return text
}

// width is the bytes that hold an id.
func (v *BPE) width() int {
	if len(v.tokens) <= 1<<16 {
		return 2
	}
	return 4
}

// encoder is the memory of one goroutine that encodes.
type encoder struct {
	*BPE
	known map[string][]uint32 // ids of pieces met before, at most maxKnown
	nodes []node
	heap  heap
}

const (
	maxKnown      = 1 << 16 // pieces: some 10 MB
	maxKnownBytes = 64      // longer pieces seldom come twice
)

func newEncoder(v *BPE) *encoder { return &encoder{BPE: v, known: map[string][]uint32{}} }

// append adds the ids of a text.
func (e *encoder) append(ids []uint32, text []byte) []uint32 {
	for len(text) > 0 {
		n := pieceLen(text)
		ids = e.appendPiece(ids, text[:n])
		text = text[n:]
	}
	return ids
}

func (e *encoder) appendPiece(ids []uint32, piece []byte) []uint32 {
	if known, ok := e.known[string(piece)]; ok {
		return append(ids, known...)
	}
	from := len(ids)
	ids = e.merge(ids, piece)
	if len(piece) <= maxKnownBytes {
		if len(e.known) == maxKnown {
			clear(e.known)
		}
		e.known[string(piece)] = append([]uint32(nil), ids[from:]...)
	}
	return ids
}

// node is a token of a piece while its pairs are merged; nodes are a list in
// both directions, linked by index.
type node struct {
	id         uint32
	prev, next int32 // -1 at the ends
	rank       uint32
}

// noRank marks a token that does not merge with the next one, or is no more.
const noRank = math.MaxUint32

// merge adds the ids of one piece: O(n log n) for n bytes, so that a megabyte
// without a space is no trap.
func (e *encoder) merge(ids []uint32, piece []byte) []uint32 {
	e.nodes, e.heap = e.nodes[:0], e.heap[:0]
	for i, b := range piece {
		e.nodes = append(e.nodes, node{e.bytes[b], int32(i) - 1, int32(i) + 1, noRank})
	}
	e.nodes[len(piece)-1].next = -1
	for i := range e.nodes {
		e.rank(int32(i))
	}
	for len(e.heap) > 0 {
		top := e.heap.pop()
		i := int32(uint32(top))
		n := &e.nodes[i]
		if n.rank != uint32(top>>32) {
			continue // the pair has changed since
		}
		next := &e.nodes[n.next]
		n.id = e.merges[pair(n.id, next.id)].id
		n.next, next.rank = next.next, noRank
		if n.next >= 0 {
			e.nodes[n.next].prev = i
		}
		e.rank(i)
		if n.prev >= 0 {
			e.rank(n.prev)
		}
	}
	for i := int32(0); i >= 0; i = e.nodes[i].next {
		ids = append(ids, e.nodes[i].id)
	}
	return ids
}

// rank looks up the pair that begins at node i and offers it for merging.
func (e *encoder) rank(i int32) {
	n := &e.nodes[i]
	n.rank = noRank
	if n.next < 0 {
		return
	}
	if m, ok := e.merges[pair(n.id, e.nodes[n.next].id)]; ok {
		n.rank = m.rank
		e.heap.push(uint64(m.rank)<<32 | uint64(uint32(i)))
	}
}

// heap is a binary heap, smallest first, of rank<<32 | position.
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

// littleEndian is ids in a segment's form.
func littleEndian(ids []uint32, width int) []byte {
	b := make([]byte, 0, len(ids)*width)
	for _, id := range ids {
		if width == 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(id))
		} else {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	return b
}
