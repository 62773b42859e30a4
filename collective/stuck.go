package collective

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Wait describes where a rank is: in an operation in which it waits for others or, if it is not
// waiting, after its last operation. A rank has one Wait for each operation in which it waits.
type Wait struct {
	Rank      int           `json:"rank"`
	For       []int         `json:"for,omitempty"` // ranks; empty if it is not waiting
	GroupName string        `json:"of"`            // name of the operation's group
	Ago       time.Duration `json:"ago"`           // time since the operation entered its state
	Operation               // its State is empty if the rank has issued no operation
}

// Wait returns where a rank is at time at, without the ranks it waits for.
func (o Operation) Wait(rank int, group string, at time.Duration) Wait {
	return Wait{Rank: rank, GroupName: group, Ago: max(0, at-max(o.Issued, o.Started, o.Done)), Operation: o}
}

// Where formats the operation with its group, unit and step.
func (w Wait) Where() string {
	return fmt.Sprintf("operation %d of %s (%s%s, step %d)", w.Seq, w.GroupName, w.Call(), after(", ", w.Label), w.Step)
}

// Last formats the operation with its state and the time since. Ago completes the sentence, for
// example "ago".
func (w Wait) Last(ago string) string {
	if w.State == "" {
		return "no operation"
	}
	return fmt.Sprintf("%s, %s %v %s", w.Where(), w.State, w.Ago.Round(time.Millisecond), ago)
}

// after returns text preceded by mark, or "" if text is empty.
func after(mark, text string) string {
	if text == "" {
		return ""
	}
	return mark + text
}

// Waits returns where the ranks of recs are; recs[0] belongs to rank first.
func Waits(recs []*Recorder, first int) (all []Wait) {
	for i, r := range recs {
		all = append(all, r.waits(first+i)...)
	}
	return all
}

// Blocking returns the first operation that is not complete. Since the operations of all ranks have
// a common order, later ones cannot block the rank. Groups used in parallel to training do not
// count.
func Blocking(operations iter.Seq[Operation], groups []RecordedGroup) (o Operation, some bool) {
	for o := range operations {
		if (o.State == Issued || o.State == Started) && groups[o.Group].Name != Saves.String() {
			return o, true
		}
	}
	return o, false
}

func (r *Recorder) waits(rank int) (all []Wait) {
	record := r.Read()
	r.mu.Lock()
	groups, last := r.groups, Operation{}
	r.mu.Unlock()
	if n := len(record.Operations); n > 0 {
		last = record.Operations[n-1]
	}
	blocking, some := Blocking(slices.Values(record.Operations), record.Groups)
	for i, g := range groups {
		if some && blocking.Group != i && g.Name != Saves.String() {
			continue
		}
		if missing := g.inner.Missing(); missing != nil {
			g.mu.Lock()
			all = append(all, g.wait(g.now, missing))
			g.mu.Unlock()
		}
	}
	switch {
	case all != nil:
		return all
	case groups == nil:
		return []Wait{{Rank: rank}}
	}
	return []Wait{groups[last.Group].wait(last, nil)}
}

// OnLate makes the ranks of recs call ask, which may take seconds, before a late operation fails,
// to find the ranks that block all others.
func OnLate(recs []*Recorder, ask func() string) {
	for _, r := range recs {
		r.mu.Lock()
		r.ask = ask
		r.mu.Unlock()
	}
}

// Fresh is how long an answer of OnLate's ask is reused: ranks that reach their deadlines in
// sequence get the same answer, though the first is no longer waiting.
const Fresh = 10 * time.Second

// OnLateLocal is like OnLate for ranks that are all in this process.
func OnLateLocal(recs []*Recorder) {
	var mu sync.Mutex
	var at time.Time
	found := ""
	OnLate(recs, func() string {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) > Fresh {
			found, at = RootCause(Waits(recs, 0), RankNames), time.Now()
		}
		return found
	})
}

// RootCause describes what all ranks are waiting for in the end, or returns "" if none waits.
func RootCause(all []Wait, name func(ranks []int) string) string {
	return after("root cause: ", strings.Join(Stuck(all, Phrases{name, "not answered", "", "ago"}), "; "))
}

// Phrases are the parts of messages that depend on how the waits were collected.
type Phrases struct {
	Name  func(ranks []int) string // names ranks that others wait for
	None  string                   // describes a rank without information: "no dump"
	Maybe string                   // a possible reason for that
	Ago   string                   // follows a duration: "ago"
}

// Stuck follows the waits from rank to rank and describes where they end, each once: at ranks that
// wait for each other, at ranks without information, and at ranks that are not waiting. The lines do
// not depend on the order in which the ranks answered.
func Stuck(all []Wait, phrases Phrases) (lines []string) {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b Wait) int { return cmp.Compare(a.Rank, b.Rank) })
	ranks := 0
	for _, w := range all {
		ranks = max(ranks, w.Rank+1, slices.Max(append([]int{0}, w.For...))+1)
	}
	byRank := make([][]*Wait, ranks) // by rank
	for i := range all {
		byRank[all[i].Rank] = append(byRank[all[i].Rank], &all[i])
	}
	idle := make([]bool, ranks) // it is not waiting, as far as is known
	for _, set := range sinks(byRank) {
		if idle[set[0]] = len(set) == 1; len(set) > 1 {
			lines = append(lines, cycle(set, byRank, phrases))
		}
	}
	var blocked []blockedOp
	for _, w := range all {
		p := blockedOp{Wait: w}
		for _, r := range w.For {
			if idle[r] && byRank[r] == nil {
				p.unknown = append(p.unknown, r)
			} else if idle[r] {
				p.idle = append(p.idle, r)
			}
		}
		if p.unknown == nil && p.idle == nil {
			continue
		}
		at := slices.IndexFunc(blocked, func(x blockedOp) bool {
			return x.GroupName == w.GroupName && x.Seq == w.Seq && slices.Equal(x.idle, p.idle) && slices.Equal(x.unknown, p.unknown)
		})
		if at < 0 {
			at, blocked = len(blocked), append(blocked, p)
		}
		blocked[at].waiters = append(blocked[at].waiters, w.Rank)
	}
	first := func(r int) bool {
		before := !idle[r]
		idle[r] = false
		return before
	}
	for _, p := range blocked {
		p.unknown, p.idle = slices.DeleteFunc(p.unknown, first), slices.DeleteFunc(p.idle, first)
		lines = append(lines, p.describe(byRank, phrases)...)
	}
	return lines
}

// cycle describes ranks that wait for each other.
func cycle(set []int, byRank [][]*Wait, phrases Phrases) string {
	in := map[string][]int{}
	for _, r := range set {
		for _, w := range byRank[r] {
			if w.For != nil {
				in[w.Where()] = append(in[w.Where()], r)
			}
		}
	}
	var each []string
	for at, ranks := range in {
		if len(in) == 1 {
			return phrases.Name(set) + " wait for each other in " + at
		}
		each = append(each, RankNames(ranks)+" in "+at)
	}
	slices.Sort(each)
	return phrases.Name(set) + " wait for each other: " + strings.Join(each, ", ")
}

// blockedOp is an operation in which waiters wait for ranks that are not waiting themselves.
type blockedOp struct {
	Wait
	waiters, unknown, idle []int
}

// maxListed is the number of ranks of a blockedOp that are described with their last operations.
const maxListed = 8

func (p blockedOp) describe(byRank [][]*Wait, phrases Phrases) (lines []string) {
	either, wait := "", RankNames(p.waiters)+Plural(p.waiters, " waits", " wait")
	if x := p.unknown; len(x) > 0 {
		lines = append(lines, fmt.Sprintf("%s %s %s, and %s for %s in %s%s", phrases.Name(x), Plural(x, "has", "have"), phrases.None, wait, Plural(x, "it", "them"), p.Where(), phrases.Maybe))
		either = " either"
	}
	for _, r := range p.idle[:min(len(p.idle), maxListed)] {
		lines = append(lines, fmt.Sprintf("%s has not reached %s%s, in which %s: its last was %s", phrases.Name([]int{r}), p.Where(), either, wait, byRank[r][0].Last(phrases.Ago)))
	}
	if n := len(p.idle) - maxListed; n > 0 {
		lines = append(lines, fmt.Sprintf("nor have %d more: %s", n, RankSpans(p.idle[maxListed:])))
	}
	return lines
}

// sinks returns the strongly connected components that no edge leaves (Tarjan): sets of ranks that
// wait for each other, and single ranks that are not waiting.
func sinks(byRank [][]*Wait) (sets [][]int) {
	const closed = math.MaxInt
	low, count := make([]int, len(byRank)), 0 // 0: not visited
	var open []int
	var visit func(v int) (leaves bool)
	visit = func(v int) (leaves bool) {
		count++
		first, at := count, len(open)
		low[v], open = first, append(open, v)
		for _, w := range byRank[v] {
			for _, to := range w.For {
				if low[to] == 0 {
					leaves = visit(to) || leaves
				}
				leaves = leaves || low[to] == closed
				low[v] = min(low[v], low[to])
			}
		}
		if low[v] < first {
			return leaves
		}
		set := slices.Clone(open[at:])
		open = open[:at]
		for _, u := range set {
			low[u] = closed
		}
		if slices.Sort(set); !leaves {
			sets = append(sets, set)
		}
		return leaves
	}
	for v := range byRank {
		if low[v] == 0 {
			visit(v)
		}
	}
	slices.SortFunc(sets, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return sets
}
