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

// Op is a primitive of Group.
type Op uint8

const (
	allGather Op = iota
	reduceScatter
	broadcast
	reduce
	exchange
	ops
)

// Names of primitives, in their order.
const (
	AllGatherName     = "all-gather"
	ReduceScatterName = "reduce-scatter"
	BroadcastName     = "broadcast"
	ReduceName        = "reduce"
	ExchangeName      = "exchange"
)

var opNames = [ops]string{AllGatherName, ReduceScatterName, BroadcastName, ReduceName, ExchangeName}

func (o Op) String() string { return opNames[o] }

// Named returns the primitive of a name.
func Named(name string) (o Op, ok bool) {
	at := slices.Index(opNames[:], name)
	return Op(max(0, at)), at >= 0
}

// call describes one operation. All ranks must make equal calls.
type call struct {
	seq int // number of operations this rank issued on the group before
	op  Op
	t   device.DType
	n   int // elements of whole; of b for broadcast and reduce, of either buffer for an exchange

	label [labelLen]byte // label of the queue's work, truncated
}

// labelLen is the number of bytes of a label that are compared: enough for a unit and its
// operation.
const labelLen = 48

// about returns the label.
func (c call) about() string { return string(bytes.TrimRight(c.label[:], "\x00")) }

func (c call) String() string { return fmt.Sprintf("%v of %d %v", c.op, c.n, c.t) }

// Issue issues an operation: of a broadcast and a reduce, both are the buffer; of an exchange, own is
// where the parts go.
type Issue func(q device.Queue, o Op, whole, own device.Buffer)

// Primitives are the operations of a Group as calls of one function.
type Primitives struct{ Issue }

func (p Primitives) AllGather(q device.Queue, whole, own device.Buffer) {
	p.Issue(q, allGather, whole, own)
}
func (p Primitives) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	p.Issue(q, reduceScatter, whole, own)
}
func (p Primitives) Exchange(q device.Queue, to, from device.Buffer) { p.Issue(q, exchange, from, to) }
func (p Primitives) Broadcast(q device.Queue, b device.Buffer)       { p.Issue(q, broadcast, b, b) }
func (p Primitives) Reduce(q device.Queue, b device.Buffer)          { p.Issue(q, reduce, b, b) }

// Under is the group that a wrapper with Primitives wraps.
type Under struct{ Group }

// Unwrap returns the group.
func (u Under) Unwrap() Group { return u.Group }

// Do issues an operation of a group; see Issue.
func Do(g Group, q device.Queue, o Op, whole, own device.Buffer) {
	switch o {
	case allGather:
		g.AllGather(q, whole, own)
	case reduceScatter:
		g.ReduceScatter(q, own, whole)
	case exchange:
		g.Exchange(q, own, whole)
	case broadcast:
		g.Broadcast(q, whole)
	case reduce:
		g.Reduce(q, whole)
	}
}

// newCall returns the call to be issued on q. It panics if the arguments are inconsistent.
func newCall(g Group, q device.Queue, o Op, whole, own device.Buffer) call {
	c := call{op: o, t: whole.Type, n: whole.N}
	if n := partLen(g, o, whole); own.N != n || own.Type != whole.Type {
		panic(fmt.Sprintf("collective: %v with %d %v as the rank's own part, which has %d", c, own.N, own.Type, n))
	}
	if (o == reduceScatter || o == reduce) && whole.Type.Integer() {
		panic(fmt.Sprintf("collective: %v: sums need float types", c))
	}
	copy(c.label[:], q.Labelled())
	return c
}

// partLen returns the number of elements of a rank's own part.
func partLen(g Group, o Op, whole device.Buffer) int {
	if o == broadcast || o == reduce || o == exchange {
		return whole.N
	}
	return PartLen(g, whole)
}

// disagreement returns nil if all calls are equal, else an error that names each side. It allocates
// only in the second case.
func disagreement(calls []call, name func(r int) int) error {
	for _, c := range calls {
		if c != calls[0] {
			return divergence(calls, name)
		}
	}
	return nil
}

// ErrDiverged reports which ranks made which calls when the calls differ.
type ErrDiverged string

func (e ErrDiverged) Error() string { return string(e) }

// divergence describes the sides, the smallest first, which is the likely culprit.
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
	texts := make([]string, len(sides))
	sameLabel := !slices.ContainsFunc(sides, func(s side) bool { return s.label != most.label })
	for i, s := range sides {
		texts[i] = RankNames(s.ranks)
		if i == 0 {
			texts[i] += Plural(s.ranks, " calls", " call")
		}
		texts[i] += fmt.Sprintf(" %v", s.call)
		if s.seq != most.seq {
			texts[i] += fmt.Sprintf(" as operation %d", s.seq)
		}
		if !sameLabel {
			texts[i] += fmt.Sprintf(" (%s)", cmp.Or(s.about(), "without a label"))
		}
	}
	return ErrDiverged(fmt.Sprintf("operation %d: %s", most.seq, strings.Join(texts, ", ")))
}

// freeList recycles operations: issue takes one, and its completion on the queue returns it.
// Operations skipped by a failed queue are garbage collected.
type freeList[T any] struct {
	mu   sync.Mutex
	free []*T
}

// take returns a recycled operation, or nil if there is none.
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

// RankNames formats ranks as "rank 2" or "ranks 0-3,6,7".
func RankNames(ranks []int) string { return Plural(ranks, "rank ", "ranks ") + RankSpans(ranks) }

// Plural returns one if there is one rank, else more.
func Plural(ranks []int, one, more string) string {
	if len(ranks) == 1 {
		return one
	}
	return more
}

// RankSpans formats ascending ranks as "0-3,6,7".
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
