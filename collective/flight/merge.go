package flight

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"zeroth/collective"
)

// Report is the comparison of several dumps.
type Report struct {
	Session  string   `json:"session"`
	World    int      `json:"world"`    // number of ranks
	Dumps    []Source `json:"dumps"`    // by rank
	Absent   []int    `json:"absent"`   // ranks without a dump
	Other    []string `json:"other"`    // ignored files: of other starts of a world, written before the fault, or of an earlier request
	Diverged bool     `json:"diverged"` // ranks have not executed the same operations
	Groups   []Group  `json:"groups"`   // groups whose members have not completed the same operations
	Verdict  []string `json:"verdict"`
}

// Source describes a dump that the report uses.
type Source struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	Pid  int    `json:"pid"`
	Why  string `json:"why"`
	File string `json:"file"`
	Last string `json:"last"` // last operation and its state
}

// Group describes the first operation that not all members of a group have completed.
type Group struct {
	Name   string        `json:"name"`
	Ranks  []int         `json:"ranks"`
	Seq    int           `json:"seq"`
	Step   int           `json:"step"`
	Calls  []Call        `json:"calls"`  // distinct calls, the rarest first; several mean that ranks diverged
	Done   []int         `json:"done"`   // ranks that have completed it
	In     []int         `json:"in"`     // ranks that have started it, and wait or move data
	Waited time.Duration `json:"waited"` // the longest time since such a start, until the dump, nanoseconds
	Before []int         `json:"before"` // ranks with a dump that have not reached it
	Absent []int         `json:"absent"` // ranks without a dump

	in []collective.Wait // waits of the ranks in In
}

// Call is a call made by some ranks.
type Call struct {
	Call  string `json:"call"`
	Label string `json:"label"`
	Ranks []int  `json:"ranks"`

	at collective.Wait // of the first of Ranks
}

// moving is how long ranks may wait in an operation without being considered stuck. Ranks are asked
// one after the other while they train, so their dumps are from different moments; dumps written
// more than together before the last one are ignored.
const moving, together = 10 * time.Second, time.Minute

// Merge compares the dumps of the latest start of the world. If some were written because of a
// fault, it ignores dumps that users requested; otherwise it ignores those of an earlier request.
func Merge(all []Dump) (*Report, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("no dumps given")
	}
	last := slices.MaxFunc(all, func(a, b Dump) int { return a.Written.Compare(b.Written) })
	fault := slices.ContainsFunc(all, func(d Dump) bool { return d.Fault && d.Session == last.Session })
	r := &Report{Session: last.Session, World: last.World}
	dumps := map[int]*Dump{}
	for i := range all {
		d := &all[i]
		switch {
		case d.Session != last.Session || d.World != last.World || fault && !d.Fault, !fault && last.Written.Sub(d.Written) > together:
			r.Other = append(r.Other, d.File)
		case dumps[d.Rank] != nil:
			return nil, fmt.Errorf("%s and %s are both of rank %d; pass only the newer", dumps[d.Rank].File, d.File, d.Rank)
		default:
			dumps[d.Rank] = d
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(dumps)) {
		d := dumps[rank]
		r.Dumps = append(r.Dumps, Source{rank, d.Host, d.Pid, d.Why, d.File, d.last().Last(before)})
	}
	for rank := range last.World {
		if dumps[rank] == nil && len(r.Absent) < mostNamed {
			r.Absent = append(r.Absent, rank)
		}
	}
	for _, m := range members(dumps) {
		if g, ok := m.diverging(); ok {
			r.Groups = append(r.Groups, g)
		}
	}
	r.conclude(dumps, fault)
	return r, nil
}

// mostNamed limits the number of ranks listed as absent, since a file may claim a million ranks.
const mostNamed = 1 << 16

// before is the suffix of times in messages.
const before = "before its dump"

// Last describes the operation that the rank was in, or its last one. Ago follows the time since.
func (d *Dump) Last(ago string) string { return d.last().Last(ago) }

// last returns where the rank is: in an operation, or after its last one.
func (d *Dump) last() collective.Wait {
	if len(d.Operations) == 0 {
		return collective.Wait{Rank: d.Rank}
	}
	o := d.Operations[len(d.Operations)-1]
	if i := slices.IndexFunc(d.Operations, func(o collective.Operation) bool { return o.State == collective.Started }); i >= 0 {
		o = d.Operations[i]
	}
	return o.Wait(d.Rank, d.Groups[o.Group].Name, d.At)
}

// member is a group, with the operations of its ranks.
type member struct {
	collective.RecordedGroup
	name string                         // with its ranks, unless it contains all
	ops  map[int][]collective.Operation // by rank, in order
	at   map[int]time.Duration          // time of the dump, by rank
}

// members sorts the operations of all dumps by group.
func members(dumps map[int]*Dump) (all []member) {
	at := map[string]int{}
	for _, rank := range slices.Sorted(maps.Keys(dumps)) {
		d := dumps[rank]
		mine := make([]int, len(d.Groups))
		for i, g := range d.Groups {
			key := fmt.Sprint(g.Name, g.Ranks)
			if _, ok := at[key]; !ok {
				at[key] = len(all)
				name := g.Name
				if len(g.Ranks) < d.World {
					name += " of " + collective.RankNames(g.Ranks)
				}
				all = append(all, member{g, name, map[int][]collective.Operation{}, map[int]time.Duration{}})
			}
			mine[i] = at[key]
			all[mine[i]].at[rank] = d.At
			all[mine[i]].ops[rank] = nil // a member even without operations
		}
		for _, o := range d.Operations {
			ops := all[mine[o.Group]].ops
			ops[rank] = append(ops[rank], o)
		}
	}
	return all
}

// diverging returns the first operation that the members' dumps call differently, or that some
// members have not completed while others wait in it.
func (m member) diverging() (g Group, ok bool) {
	from, to := 0, -1
	for _, ops := range m.ops {
		if len(ops) > 0 {
			from, to = max(from, ops[0].Seq), max(to, ops[len(ops)-1].Seq)
		}
	}
	for seq := from; seq <= to; seq++ {
		if g = m.status(seq); len(g.Calls) > 1 || len(g.In)+len(g.Before) > 0 {
			return g, len(g.Calls) > 1 || len(g.In) > 0
		}
	}
	return g, false
}

// status returns the progress of the members with an operation.
func (m member) status(seq int) Group {
	g := Group{Name: m.Name, Ranks: m.Ranks, Seq: seq}
	for _, rank := range m.Ranks {
		ops, ok := m.ops[rank]
		if !ok {
			g.Absent = append(g.Absent, rank)
			continue
		}
		at, ok := slices.BinarySearchFunc(ops, seq, func(o collective.Operation, seq int) int { return cmp.Compare(o.Seq, seq) })
		if !ok {
			g.Before = append(g.Before, rank)
			continue
		}
		w := ops[at].Wait(rank, m.name, m.at[rank])
		g.Step = w.Step
		g.call(w)
		switch w.State {
		case collective.Issued:
			g.Before = append(g.Before, rank)
		case collective.Started:
			g.In, g.in = append(g.In, rank), append(g.in, w)
			g.Waited = max(g.Waited, w.Ago)
		default:
			g.Done = append(g.Done, rank)
		}
	}
	slices.SortStableFunc(g.Calls, func(a, b Call) int { return cmp.Compare(len(a.Ranks), len(b.Ranks)) })
	return g
}

func (g *Group) call(w collective.Wait) {
	for i := range g.Calls {
		if c := &g.Calls[i]; c.Call == w.Call() && c.Label == w.Label {
			c.Ranks = append(c.Ranks, w.Rank)
			return
		}
	}
	g.Calls = append(g.Calls, Call{w.Call(), w.Label, []int{w.Rank}, w})
}

// waits returns the waits of ranks that have started the operation while others have not.
func (g *Group) waits() []collective.Wait {
	if len(g.Calls) > 1 || g.complete() {
		return nil
	}
	missing := slices.Sorted(slices.Values(slices.Concat(g.Before, g.Absent)))
	for i := range g.in {
		g.in[i].For = missing
	}
	return g.in
}

// complete reports whether all ranks have reached the operation.
func (g *Group) complete() bool { return len(g.Absent) == 0 && (len(g.Done) > 0 || len(g.Before) == 0) }

// describe reports ranks with different calls or, in a stuck operation, missing data.
func (g *Group) describe(stuck bool) (lines []string) {
	most := g.Calls[len(g.Calls)-1]
	for _, c := range g.Calls[:len(g.Calls)-1] {
		label := ""
		if c.Label != "" {
			label = " (" + c.Label + ")"
		}
		lines = append(lines, fmt.Sprintf("%s diverged from the others in %s: there %s %s%s", collective.RankNames(c.Ranks), most.at.Where(), collective.Plural(c.Ranks, "it calls", "they call"), c.Call, label))
	}
	switch {
	case len(g.Calls) > 1 || !stuck || !g.complete():
	case len(g.Done) > 0:
		lines = append(lines, fmt.Sprintf("%s still in %s, but %s past it: data that was sent has not arrived, or the dumps are from different moments", is(g.In), most.at.Where(), is(g.Done)))
	default:
		lines = append(lines, fmt.Sprintf("all ranks are in %s: data that they sent has not arrived", most.at.Where()))
	}
	return lines
}

func is(ranks []int) string {
	return collective.RankNames(ranks) + collective.Plural(ranks, " is", " are")
}

// conclude writes the verdict: which ranks made a different call, and which ranks block all others.
// Without a fault, ranks that have not waited long count as running.
func (r *Report) conclude(dumps map[int]*Dump, fault bool) {
	longest := time.Duration(0)
	var waits []collective.Wait
	for i := range r.Groups {
		longest = max(longest, r.Groups[i].Waited)
		waits = append(waits, r.Groups[i].waits()...)
	}
	blocking := map[int]collective.Operation{}
	for rank, d := range dumps {
		if o, some := collective.Blocking(slices.Values(d.Operations), d.Groups); some {
			blocking[rank] = o
		}
	}
	waits = slices.DeleteFunc(waits, func(w collective.Wait) bool {
		o, some := blocking[w.Rank]
		return some && o.Issued != w.Issued && dumps[w.Rank].Groups[w.Group].Name != collective.Saves.String()
	})
	for _, d := range dumps {
		waits = append(waits, d.last())
	}
	for _, g := range r.Groups {
		r.Verdict = append(r.Verdict, g.describe(fault || g.Waited > moving)...)
	}
	if fault || longest > moving {
		r.Verdict = append(r.Verdict, collective.Stuck(waits, collective.Phrases{Name: collective.RankNames, None: "no dump", Maybe: ": killed, stopped, or on a host that writes its dumps elsewhere", Ago: before})...)
	}
	if r.Diverged = len(r.Verdict) > 0; r.Diverged {
		return
	}
	text, none := "all ranks have executed the same operations", ""
	if r.Absent != nil {
		text, none = "the ranks with a dump have executed the same operations", fmt.Sprintf("; %s %s no dump", collective.RankNames(r.Absent), collective.Plural(r.Absent, "has", "have"))
	}
	if r.Groups != nil {
		text = fmt.Sprintf("the run is making progress: no rank had waited longer than %v for another", longest.Round(time.Millisecond))
	}
	r.Verdict = append(r.Verdict, text+none)
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "%d of %d ranks have a dump", len(r.Dumps), r.World)
	if len(r.Absent) > 0 {
		fmt.Fprintf(w, "; not %s", collective.RankNames(r.Absent))
	}
	fmt.Fprintln(w)
	for _, file := range r.Other {
		fmt.Fprintf(w, "ignored (another start, before the fault, or an earlier request): %s\n", file)
	}
	for _, s := range r.Dumps {
		fmt.Fprintf(w, "rank %d (%s, process %d): %s\n  dumped because: %s\n", s.Rank, s.Host, s.Pid, s.Last, s.Why)
	}
	for _, g := range r.Groups {
		fmt.Fprintf(w, "%s of ranks %s, operation %d:", g.Name, collective.RankSpans(g.Ranks), g.Seq)
		for _, x := range []struct {
			what  string
			ranks []int
		}{{"done", g.Done}, {"in it", g.In}, {"not reached", g.Before}, {"no dump", g.Absent}} {
			if len(x.ranks) > 0 {
				fmt.Fprintf(w, "  %s: %s", x.what, collective.RankSpans(x.ranks))
			}
		}
		fmt.Fprintln(w)
	}
	for _, v := range r.Verdict {
		fmt.Fprintln(w, v)
	}
}
