package collective

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"zeroth/device"
)

// op is one of the primitives.
type op uint8

const (
	allGather op = iota
	reduceScatter
	broadcast
	reduce
	ops
)

func (o op) String() string {
	return [ops]string{"all-gather", "reduce-scatter", "broadcast", "reduce"}[o]
}

// call is one operation of a rank, and all that the ranks must agree on.
type call struct {
	seq int // operations the rank issued on the group before this one
	op  op
	t   device.DType
	n   int // elements of the whole buffer, or of the one of a broadcast or a reduce

	label [labelLen]byte // of the queue's work, its first bytes
}

// labelLen is how much of a label is compared: enough for a unit and what is
// done with it.
const labelLen = 48

// about is the label for errors.
func (c call) about() string { return string(bytes.TrimRight(c.label[:], "\x00")) }

func (c call) String() string { return fmt.Sprintf("%v of %d %v", c.op, c.n, c.t) }

// newCall is an operation to be issued on q. It checks what a rank can see of
// its own mistakes.
func newCall(g Group, q device.Queue, o op, whole, own device.Buffer) call {
	c := call{op: o, t: whole.Type, n: whole.N}
	if n := partLen(g, o, whole); own.N != n || own.Type != whole.Type {
		panic(fmt.Sprintf("collective: %v with %d %v as the rank's own part, which has %d", c, own.N, own.Type, n))
	}
	if (o == reduceScatter || o == reduce) && whole.Type.Integer() {
		panic(fmt.Sprintf("collective: %v: sums are of float types", c))
	}
	copy(c.label[:], q.Labelled())
	return c
}

// partLen is the number of elements of a rank's own part of an operation.
func partLen(g Group, o op, whole device.Buffer) int {
	if o == broadcast || o == reduce {
		return whole.N
	}
	return PartLen(g, whole)
}

// disagreement is nil if all ranks make the same call, else an error that
// names each side. It allocates nothing unless they differ.
func disagreement(calls []call, name func(r int) int) error {
	for _, c := range calls {
		if c != calls[0] {
			return divergence(calls, name)
		}
	}
	return nil
}

// ErrDiverged says which ranks called what, where they did not call the same.
type ErrDiverged string

func (e ErrDiverged) Error() string { return string(e) }

// divergence tells the sides apart, the smallest first: it is likely the one
// in the wrong.
func divergence(calls []call, name func(r int) int) error {
	type side struct {
		call
		ranks []int
	}
	var sides []side
	for r, c := range calls {
		at := slices.IndexFunc(sides, func(s side) bool { return s.call == c })
		if at < 0 {
			at, sides = len(sides), append(sides, side{call: c})
		}
		sides[at].ranks = append(sides[at].ranks, name(r))
	}
	slices.SortStableFunc(sides, func(a, b side) int { return cmp.Compare(len(a.ranks), len(b.ranks)) })
	most := sides[len(sides)-1]
	said := make([]string, len(sides))
	alike := !slices.ContainsFunc(sides, func(s side) bool { return s.label != most.label })
	for i, s := range sides {
		said[i] = RankNames(s.ranks)
		if i == 0 {
			said[i] += Plural(s.ranks, " calls", " call")
		}
		said[i] += fmt.Sprintf(" %v", s.call)
		if s.seq != most.seq {
			said[i] += fmt.Sprintf(" as operation %d", s.seq)
		}
		if !alike {
			said[i] += fmt.Sprintf(" (%s)", cmp.Or(s.about(), "without a label"))
		}
	}
	return ErrDiverged(fmt.Sprintf("operation %d: %s", most.seq, strings.Join(said, ", ")))
}

// freeList keeps what operations are made of for the next ones: issuing takes,
// the queue gives back. What a failed queue skips is left to the collector.
type freeList[T any] struct {
	mu   sync.Mutex
	free []*T
}

// take is nil when none is free.
func (f *freeList[T]) take() *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.free) == 0 {
		return nil
	}
	x := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	return x
}

func (f *freeList[T]) give(x *T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, x)
}

// RankNames is "rank 2" or "ranks 0-3,6,7".
func RankNames(ranks []int) string { return Plural(ranks, "rank ", "ranks ") + RankSpans(ranks) }

// Plural is the word for one rank, or that for more.
func Plural(ranks []int, one, more string) string {
	if len(ranks) == 1 {
		return one
	}
	return more
}

// RankSpans is ranks in ascending order as "0-3,6,7".
func RankSpans(ranks []int) string {
	var s []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if j < i+2 {
			j = i
			s = append(s, strconv.Itoa(ranks[i]))
		} else {
			s = append(s, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	return strings.Join(s, ",")
}
