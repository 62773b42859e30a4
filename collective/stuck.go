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

// Wait is where a rank is: in an operation in which it waits for others, or, where it
// waits for nobody, behind its last one. A rank has one for each operation in which it
// waits.
type Wait struct {
	Rank      int           `json:"rank"`
	For       []int         `json:"for,omitempty"` // ranks; none: it waits for nobody
	Of        string        `json:"of"`            // the name of the operation's group
	Ago       time.Duration `json:"ago"`           // how long the operation is in its state
	Operation               // without a State: the rank has issued none
}

// Wait is where a rank is at a time, without whom it waits for; of is the operation's group.
func (o Operation) Wait(rank int, of string, at time.Duration) Wait {
	return Wait{Rank: rank, Of: of, Ago: max(0, at-max(o.Issued, o.Started, o.Done)), Operation: o}
}

// Where is the operation with its group, unit and step.
func (w Wait) Where() string {
	return fmt.Sprintf("operation %d of %s (%s%s, step %d)", w.Seq, w.Of, w.Call(), after(", ", w.Label), w.Step)
}

// Last is the operation, how far it is, and since when: so long before a moment that ago
// names.
func (w Wait) Last(ago string) string {
	if w.State == "" {
		return "no operation"
	}
	return fmt.Sprintf("%s, %s %v %s", w.Where(), w.State, w.Ago.Round(time.Millisecond), ago)
}

// after is text behind a mark, and nothing where there is none.
func after(mark, text string) string {
	if text == "" {
		return ""
	}
	return mark + text
}

// Waits is where the ranks of recorders are, the first of which is that of the first.
func Waits(recs []*Recorder, first int) (all []Wait) {
	for i, r := range recs {
		all = append(all, r.waits(first+i)...)
	}
	return all
}

// Held is the operation that holds a rank up: of those it has issued, in order, the first that
// it is not through with. The operations of all ranks are parts of one order, so a rank has
// nothing to wait for in those behind it. Those of groups beside training hold nothing up.
func Held(operations iter.Seq[Operation], groups []RecordedGroup) (o Operation, some bool) {
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
	held, some := Held(slices.Values(record.Operations), record.Groups)
	for i, g := range groups {
		if some && held.Group != i && g.Name != Saves.String() {
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

// OnLate has the ranks of recorders ask whom all ranks wait for in the end, which may
// take some seconds, before an operation that is late fails. It is to be called before
// the first Watchdog.
func OnLate(recs []*Recorder, ask func() string) {
	for _, r := range recs {
		r.ask = ask
	}
}

// Fresh is how long the answer of OnLate's ask holds: ranks that come to their deadlines
// one after the other are told the same, though the first no longer waits.
const Fresh = 10 * time.Second

// OnLateHere is OnLate for ranks that are all in this process.
func OnLateHere(recs []*Recorder) {
	var mu sync.Mutex
	var at time.Time
	found := ""
	OnLate(recs, func() string {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) > Fresh {
			found, at = InTheEnd(Waits(recs, 0), RankNames), time.Now()
		}
		return found
	})
}

// InTheEnd is whom ranks that were asked wait for; empty if they wait for nobody.
func InTheEnd(all []Wait, name func(ranks []int) string) string {
	return after("in the end all wait for this: ", strings.Join(Stuck(all, Words{name, "not answered", "", "ago"}), "; "))
}

// Words are those by which ways of learning where ranks are differ.
type Words struct {
	Name  func(ranks []int) string // how ranks are named that others wait for
	None  string                   // what a rank has of which nothing is known: "no dump"
	Maybe string                   // why that may be
	Ago   string                   // before when a rank was in its last operation: "ago"
}

// Stuck follows who waits for whom, and says where that ends, once each: at ranks that wait
// for each other, at ranks of which nothing is known, and at ranks that wait for nobody.
func Stuck(all []Wait, say Words) (said []string) {
	ranks := 0
	for _, w := range all {
		ranks = max(ranks, w.Rank+1, slices.Max(append([]int{0}, w.For...))+1)
	}
	of := make([][]*Wait, ranks) // by rank
	for i := range all {
		of[all[i].Rank] = append(of[all[i].Rank], &all[i])
	}
	last := make([]bool, ranks) // it waits for nobody, so far as is known
	for _, set := range ends(of) {
		if last[set[0]] = len(set) == 1; len(set) > 1 {
			said = append(said, circle(set, of, say))
		}
	}
	var places []place
	for _, w := range all {
		p := place{Wait: w}
		for _, r := range w.For {
			if last[r] && of[r] == nil {
				p.unknown = append(p.unknown, r)
			} else if last[r] {
				p.idle = append(p.idle, r)
			}
		}
		if p.unknown == nil && p.idle == nil {
			continue
		}
		at := slices.IndexFunc(places, func(x place) bool {
			return x.Of == w.Of && x.Seq == w.Seq && slices.Equal(x.idle, p.idle) && slices.Equal(x.unknown, p.unknown)
		})
		if at < 0 {
			at, places = len(places), append(places, p)
		}
		places[at].waiters = append(places[at].waiters, w.Rank)
	}
	told := func(r int) bool {
		before := !last[r]
		last[r] = false
		return before
	}
	for _, p := range places {
		p.unknown, p.idle = slices.DeleteFunc(p.unknown, told), slices.DeleteFunc(p.idle, told)
		said = append(said, p.tell(of, say)...)
	}
	return said
}

// circle tells of ranks that wait for each other.
func circle(set []int, of [][]*Wait, say Words) string {
	in := map[string][]int{}
	for _, r := range set {
		for _, w := range of[r] {
			if w.For != nil {
				in[w.Where()] = append(in[w.Where()], r)
			}
		}
	}
	var each []string
	for at, ranks := range in {
		if len(in) == 1 {
			return say.Name(set) + " wait for each other in " + at
		}
		each = append(each, RankNames(ranks)+" in "+at)
	}
	slices.Sort(each)
	return say.Name(set) + " wait for each other: " + strings.Join(each, ", ")
}

// place is an operation in which ranks wait for ends.
type place struct {
	Wait
	waiters, unknown, idle []int
}

// mostTold is how many ranks of a place are told with their last operations.
const mostTold = 8

func (p place) tell(of [][]*Wait, say Words) (said []string) {
	either, wait := "", RankNames(p.waiters)+Plural(p.waiters, " waits", " wait")
	if x := p.unknown; len(x) > 0 {
		said = append(said, fmt.Sprintf("%s %s %s, and %s for %s in %s%s", say.Name(x), Plural(x, "has", "have"), say.None, wait, Plural(x, "it", "them"), p.Where(), say.Maybe))
		either = " either"
	}
	for _, r := range p.idle[:min(len(p.idle), mostTold)] {
		said = append(said, fmt.Sprintf("%s has not reached %s%s, in which %s: its last was %s", say.Name([]int{r}), p.Where(), either, wait, of[r][0].Last(say.Ago)))
	}
	if n := len(p.idle) - mostTold; n > 0 {
		said = append(said, fmt.Sprintf("nor have %d more: %s", n, RankSpans(p.idle[mostTold:])))
	}
	return said
}

// ends is where every way from rank to rank ends: sets of ranks that all reach each other
// and nothing else, one of a rank alone that waits for nobody. (Tarjan's strongly connected
// components, of which those that no edge leaves.)
func ends(of [][]*Wait) (sets [][]int) {
	const closed = math.MaxInt
	low, count := make([]int, len(of)), 0 // 0: not visited
	var open []int
	var visit func(v int) (leaves bool)
	visit = func(v int) (leaves bool) {
		count++
		first, at := count, len(open)
		low[v], open = first, append(open, v)
		for _, w := range of[v] {
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
	for v := range of {
		if low[v] == 0 {
			visit(v)
		}
	}
	slices.SortFunc(sets, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return sets
}
