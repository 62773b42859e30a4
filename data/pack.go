package data

import (
	"cmp"
	"math/bits"
	"slices"
)

// pack distributes documents to new sequences of T positions by best fit decreasing: longest
// first, ties in order; each goes to the sequence with the smallest sufficient gap, ties to
// the one that last received a document, or else to a new one. It uses at most 11/9 of the
// minimum number of sequences, plus 4 (Johnson, Demers, Ullman, Garey and Graham, SIAM J.
// Comput. 3, 1974). The result depends only on the documents: sequences are the same in every
// epoch, and the seed only orders them. Sequences are in the order in which they were begun,
// and the documents of each in their original order.
func (s *sequences) pack(docs []int32, T int) {
	order := make([]int32, len(docs)) // indices of docs
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(s.positions(docs[b]), s.positions(docs[a])) })
	in, free := make([]int32, len(docs)), newGaps(T) // in: the sequence of each of docs
	for _, i := range order {
		n := s.positions(docs[i])
		seq, gap := free.take(n)
		if seq < 0 {
			seq, gap = int32(len(free.next)), T
			free.next = append(free.next, -1)
		}
		in[i] = seq
		free.put(seq, gap-n)
	}
	first, counts := len(s.index), make([]int32, len(free.next))
	for _, seq := range in {
		counts[seq]++
	}
	at := int32(first)
	for seq, n := range counts {
		counts[seq] = at
		at += n
		s.begins = append(s.begins, at)
	}
	s.index = append(s.index, make([]int32, len(docs))...)
	for i, doc := range docs {
		s.index[counts[in[i]]] = doc
		counts[in[i]]++
	}
}

// gaps indexes sequences by the number of positions free in each.
type gaps struct {
	last  []int32  // (T+1) by gap: the last sequence with that gap, or -1
	next  []int32  // by sequence: the previous one with the same gap, or -1
	some  []uint64 // bit r: some sequence has gap r
	words []uint64 // bit w: word w of some is not 0
}

func newGaps(T int) *gaps {
	r := &gaps{last: make([]int32, T+1), some: make([]uint64, T/64+1), words: make([]uint64, T/64/64+1)}
	for i := range r.last {
		r.last[i] = -1
	}
	return r
}

func (r *gaps) put(seq int32, gap int) {
	r.next[seq], r.last[gap] = r.last[gap], seq
	r.some[gap/64] |= 1 << (gap % 64)
	r.words[gap/64/64] |= 1 << (gap / 64 % 64)
}

// take removes the last sequence with the smallest gap of at least n, or returns -1 if there
// is none.
func (r *gaps) take(n int) (seq int32, gap int) {
	if gap = r.least(n); gap < 0 {
		return -1, 0
	}
	seq = r.last[gap]
	if r.last[gap] = r.next[seq]; r.next[seq] < 0 {
		if r.some[gap/64] &^= 1 << (gap % 64); r.some[gap/64] == 0 {
			r.words[gap/64/64] &^= 1 << (gap / 64 % 64)
		}
	}
	return seq, gap
}

// least returns the smallest gap of at least n, or -1.
func (r *gaps) least(n int) int {
	if w := r.some[n/64] >> (n % 64); w != 0 {
		return n + bits.TrailingZeros64(w)
	}
	word := nextBit(r.words, n/64+1)
	if word < 0 {
		return -1
	}
	return 64*word + bits.TrailingZeros64(r.some[word])
}

// nextBit returns the first set bit from n on, or -1.
func nextBit(words []uint64, n int) int {
	for i := n / 64; i < len(words); i++ {
		w := words[i]
		if i == n/64 {
			w &= ^uint64(0) << (n % 64)
		}
		if w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
	}
	return -1
}
