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

// Report is what dumps say together.
type Report struct {
	Session string   `json:"session"`
	World   int      `json:"world"`  // ranks
	Dumps   []Source `json:"dumps"`  // by rank
	Absent  []int    `json:"absent"` // ranks without a dump
	Other   []string `json:"other"`  // files left out: of other starts of a world, of before the fault, or of an earlier request
	Parted  bool     `json:"parted"` // ranks have not done the same
	Groups  []Group  `json:"groups"` // where members are not through with the same operations; else empty
	Verdict []string `json:"verdict"`
}

// Source is a dump that the report is made of.
type Source struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	Pid  int    `json:"pid"`
	Why  string `json:"why"`
	File string `json:"file"`
	Last string `json:"last"` // operation, and how far it is
}

// Group is the first operation of a group that not all have done.
type Group struct {
	Name   string        `json:"name"`
	Ranks  []int         `json:"ranks"`
	Seq    int           `json:"seq"`
	Step   int           `json:"step"`
	Calls  []Call        `json:"calls"`  // what ranks call; more than one is where they part. The rarest first
	Done   []int         `json:"done"`   // ranks that are through with it
	In     []int         `json:"in"`     // that have started it, and wait or move data
	Waited time.Duration `json:"waited"` // the longest of these, until its dump, nanoseconds
	Before []int         `json:"before"` // that have a dump and have not reached it
	Absent []int         `json:"absent"` // that have no dump

	in []collective.Wait // of those In
}

// Call is what some ranks call.
type Call struct {
	Call  string `json:"call"`
	Label string `json:"label"`
	Ranks []int  `json:"ranks"`

	at collective.Wait // of the first of these
}

// moving is how long ranks may have waited in an operation when a dump was asked for, and
// together how long before the last its dump may be written. Ranks are asked one after the
// other while they train, so that their dumps are of different moments.
const moving, together = 10 * time.Second, time.Minute

// Merge compares the dumps of the start of a world that wrote the last. Where some
// were written because of a fault, those that somebody has asked for before it say
// nothing of it and are left out, as are those of an earlier request.
func Merge(all []Dump) (*Report, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no dump of a rank")
	}
	last := slices.MaxFunc(all, func(a, b Dump) int { return a.Written.Compare(b.Written) })
	fault := slices.ContainsFunc(all, func(d Dump) bool { return d.Fault && d.Session == last.Session })
	r := &Report{Session: last.Session, World: last.World}
	of := map[int]*Dump{}
	for i := range all {
		d := &all[i]
		switch {
		case d.Session != last.Session || d.World != last.World || fault && !d.Fault, !fault && last.Written.Sub(d.Written) > together:
			r.Other = append(r.Other, d.File)
		case of[d.Rank] != nil:
			return nil, fmt.Errorf("%s and %s are both of rank %d: name the newer alone", of[d.Rank].File, d.File, d.Rank)
		default:
			of[d.Rank] = d
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		d := of[rank]
		r.Dumps = append(r.Dumps, Source{rank, d.Host, d.Pid, d.Why, d.File, d.last().Last(before)})
	}
	for rank := range last.World {
		if of[rank] == nil && len(r.Absent) < mostNamed {
			r.Absent = append(r.Absent, rank)
		}
	}
	for _, m := range members(of) {
		if g, ok := m.part(); ok {
			r.Groups = append(r.Groups, g)
		}
	}
	r.conclude(of, fault)
	return r, nil
}

// mostNamed bounds what is said of ranks without a dump, of which a file can claim
// a million.
const mostNamed = 1 << 16

// before is what the times of operations are told by.
const before = "before its dump"

// last is a rank's last operation.
func (d *Dump) last() collective.Wait {
	if len(d.Operations) == 0 {
		return collective.Wait{Rank: d.Rank}
	}
	o := d.Operations[len(d.Operations)-1]
	return o.Wait(d.Rank, d.Groups[o.Group].Name, d.At)
}

// member is a group as the dumps of its ranks have it.
type member struct {
	collective.RecordedGroup
	name string                         // with its ranks, if they are not all
	ops  map[int][]collective.Operation // by rank: that rank's, in order
	at   map[int]time.Duration          // by rank: when that was
}

// members sorts the operations of all dumps by group.
func members(of map[int]*Dump) (all []member) {
	at := map[string]int{}
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		d := of[rank]
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
			all[mine[i]].ops[rank] = nil // it is a member, with or without operations
		}
		for _, o := range d.Operations {
			ops := all[mine[o.Group]].ops
			ops[rank] = append(ops[rank], o)
		}
	}
	return all
}

// part finds the first operation that not all members with a dump are through
// with, or call differently, if somebody waits in it.
func (m member) part() (g Group, ok bool) {
	from, to := 0, -1
	for _, ops := range m.ops {
		if len(ops) > 0 {
			from, to = max(from, ops[0].Seq), max(to, ops[len(ops)-1].Seq)
		}
	}
	for seq := from; seq <= to; seq++ {
		if g = m.look(seq); len(g.Calls) > 1 || len(g.In)+len(g.Before) > 0 {
			return g, len(g.Calls) > 1 || len(g.In) > 0
		}
	}
	return g, false
}

// look is how far the members are with an operation.
func (m member) look(seq int) Group {
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

// waits is where the ranks are that wait in the operation for those that have not come.
func (g *Group) waits() []collective.Wait {
	if len(g.Calls) > 1 || g.come() {
		return nil
	}
	missing := slices.Sorted(slices.Values(slices.Concat(g.Before, g.Absent)))
	for i := range g.in {
		g.in[i].For = missing
	}
	return g.in
}

// come is whether all ranks have come: some are through with it, or nobody is missing.
func (g *Group) come() bool { return len(g.Absent) == 0 && (len(g.Done) > 0 || len(g.Before) == 0) }

// tell says who calls something else, or, in an operation that is stuck, that what was sent
// has not arrived.
func (g *Group) tell(stuck bool) (said []string) {
	most := g.Calls[len(g.Calls)-1]
	for _, c := range g.Calls[:len(g.Calls)-1] {
		label := ""
		if c.Label != "" {
			label = " (" + c.Label + ")"
		}
		said = append(said, fmt.Sprintf("%s parted from the others in %s: there %s %s%s", collective.RankNames(c.Ranks), most.at.Where(), collective.Plural(c.Ranks, "it calls", "they call"), c.Call, label))
	}
	switch {
	case len(g.Calls) > 1 || !stuck || !g.come():
	case len(g.Done) > 0:
		said = append(said, fmt.Sprintf("%s still in %s, with which %s through: what was sent has not arrived, or the dumps are of different moments", is(g.In), most.at.Where(), is(g.Done)))
	default:
		said = append(said, fmt.Sprintf("all ranks are in %s: what they sent has not arrived", most.at.Where()))
	}
	return said
}

func is(ranks []int) string {
	return collective.RankNames(ranks) + collective.Plural(ranks, " is", " are")
}

// conclude says who is to be looked at: ranks that call something else, and those whom the
// others wait for in the end. Without a fault, ranks that have not waited long are in
// motion.
func (r *Report) conclude(of map[int]*Dump, fault bool) {
	longest := time.Duration(0)
	var waits []collective.Wait
	for i := range r.Groups {
		longest = max(longest, r.Groups[i].Waited)
		waits = append(waits, r.Groups[i].waits()...)
	}
	held := map[int]collective.Operation{}
	for rank, d := range of {
		if o, some := collective.Held(slices.Values(d.Operations), d.Groups); some {
			held[rank] = o
		}
	}
	waits = slices.DeleteFunc(waits, func(w collective.Wait) bool {
		o, some := held[w.Rank]
		return some && o.Issued != w.Issued && of[w.Rank].Groups[w.Group].Name != collective.Saves.String()
	})
	for _, d := range of {
		waits = append(waits, d.last())
	}
	for _, g := range r.Groups {
		r.Verdict = append(r.Verdict, g.tell(fault || g.Waited > moving)...)
	}
	if fault || longest > moving {
		r.Verdict = append(r.Verdict, collective.Stuck(waits, collective.Words{Name: collective.RankNames, None: "no dump", Maybe: ": killed, stopped, or on a host that writes its dumps elsewhere", Ago: before})...)
	}
	if r.Parted = len(r.Verdict) > 0; r.Parted {
		return
	}
	said, none := "all ranks have done the same operations", ""
	if r.Absent != nil {
		said, none = "the ranks with a dump have done the same operations", fmt.Sprintf("; %s %s no dump", collective.RankNames(r.Absent), collective.Plural(r.Absent, "has", "have"))
	}
	if r.Groups != nil {
		said = fmt.Sprintf("the run is in motion: when they were dumped, no rank had waited longer than %v for another", longest.Round(time.Millisecond))
	}
	r.Verdict = append(r.Verdict, said+none)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "%d of %d ranks have a dump", len(r.Dumps), r.World)
	if len(r.Absent) > 0 {
		fmt.Fprintf(w, "; not %s", collective.RankNames(r.Absent))
	}
	fmt.Fprintln(w)
	for _, file := range r.Other {
		fmt.Fprintf(w, "left out, of another start, of before the fault or of an earlier request: %s\n", file)
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
