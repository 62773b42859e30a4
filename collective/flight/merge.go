package flight

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
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
}

// Call is what some ranks call.
type Call struct {
	Call  string `json:"call"`
	Label string `json:"label"`
	Ranks []int  `json:"ranks"`
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
		r.Dumps = append(r.Dumps, Source{rank, d.Host, d.Pid, d.Why, d.File, d.last()})
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

// last tells a rank's last operation.
func (d *Dump) last() string {
	if len(d.Operations) == 0 {
		return "no operation"
	}
	o := d.Operations[len(d.Operations)-1]
	return fmt.Sprintf("operation %d of %s (%s), %s", o.Seq, d.Groups[o.Group].Name, about(o), d.ago(o))
}

// about is what an operation is, with its unit and step.
func about(o collective.Operation) string {
	s := o.Call()
	if o.Label != "" {
		s += ", " + o.Label
	}
	return s + ", step " + strconv.Itoa(o.Step)
}

// ago tells how far an operation is, and since when.
func (d *Dump) ago(o collective.Operation) string {
	since := o.Issued
	switch o.State {
	case "started":
		since = o.Started
	case "launched", "done":
		since = o.Done
	}
	return fmt.Sprintf("%s %v before its dump", o.State, max(0, d.At-since).Round(time.Millisecond))
}

// member is a group as the dumps of its ranks have it.
type member struct {
	collective.RecordedGroup
	ops map[int][]collective.Operation // by rank: that rank's, in order
	at  map[int]time.Duration          // by rank: when that was
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
				all = append(all, member{g, map[int][]collective.Operation{}, map[int]time.Duration{}})
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
		o := ops[at]
		g.Step = o.Step
		g.call(o, rank)
		switch {
		case progress(o) >= progress(collective.Operation{State: "launched"}):
			g.Done = append(g.Done, rank)
		case o.State == "started":
			g.In = append(g.In, rank)
			g.Waited = max(g.Waited, m.at[rank]-o.Started)
		default:
			g.Before = append(g.Before, rank)
		}
	}
	slices.SortStableFunc(g.Calls, func(a, b Call) int { return cmp.Compare(len(a.Ranks), len(b.Ranks)) })
	return g
}

func (g *Group) call(o collective.Operation, rank int) {
	for i := range g.Calls {
		if c := &g.Calls[i]; c.Call == o.Call() && c.Label == o.Label {
			c.Ranks = append(c.Ranks, rank)
			return
		}
	}
	g.Calls = append(g.Calls, Call{o.Call(), o.Label, []int{rank}})
}

// conclude says who is to be looked at: ranks that call something else; ranks for
// which others wait and that wait for nobody themselves; ranks without a dump. Without
// a fault, ranks that have not waited long are in motion.
func (r *Report) conclude(of map[int]*Dump, fault bool) {
	waits := map[int]bool{}
	longest := time.Duration(0)
	for _, g := range r.Groups {
		for _, rank := range g.In {
			waits[rank] = true
		}
	}
	for _, g := range r.Groups {
		if longest = max(longest, g.Waited); fault || g.Waited > moving || len(g.Calls) > 1 {
			r.concludeFor(g, waits, of)
		}
	}
	if len(r.Verdict) > 0 {
		return
	}
	said, none := "all ranks have done the same operations", ""
	if r.Absent != nil {
		said, none = "the ranks with a dump have done the same operations", fmt.Sprintf("; %s no dump", has(r.Absent))
	}
	if r.Groups != nil {
		said = fmt.Sprintf("the run is in motion: when they were dumped, no rank had waited longer than %v for another", longest.Round(time.Millisecond))
	}
	r.Verdict = append(r.Verdict, said+none)
}

func (r *Report) concludeFor(g Group, waits map[int]bool, of map[int]*Dump) {
	where := fmt.Sprintf("operation %d of %s", g.Seq, g.Name)
	if len(g.Ranks) < r.World {
		where += fmt.Sprintf(" of ranks %s", list(g.Ranks))
	}
	what := g.Calls[len(g.Calls)-1]
	it := strings.TrimSuffix(fmt.Sprintf("%s, %s", what.Call, what.Label), ", ")
	where = fmt.Sprintf("%s (%s, step %d)", where, it, g.Step)
	say := func(format string, args ...any) {
		r.Parted = true
		r.Verdict = append(r.Verdict, fmt.Sprintf(format, args...))
	}
	for _, c := range g.Calls[:len(g.Calls)-1] {
		say("%s parted from the others in %s: there %s %s%s", name(c.Ranks), where, they(c.Ranks), c.Call, labelled(c.Label))
	}
	if len(g.Calls) > 1 {
		return
	}
	if len(g.Done) > 0 && len(g.Absent) == 0 { // then all had come
		say("%s still in %s, with which %s through: what was sent has not arrived, or the dumps are of different moments", is(g.In), where, is(g.Done))
		return
	}
	late := slices.DeleteFunc(slices.Clone(g.Before), func(rank int) bool { return waits[rank] })
	either := ""
	if len(g.Absent) > 0 {
		say("%s no dump, and %s for %s in %s: killed, stopped, or on a host that writes its dumps elsewhere", has(g.Absent), wait(g.In), them(g.Absent), where)
		either = " either"
	}
	for _, rank := range late[:min(len(late), 8)] {
		say("rank %d has not reached %s%s, in which %s: its last was %s", rank, where, either, wait(g.In), of[rank].last())
	}
	if len(late) > 8 {
		say("nor have %d more: %s", len(late)-8, list(late[8:]))
	}
	if len(g.Absent)+len(g.Before) == 0 {
		say("all ranks are in %s: what they sent has not arrived", where)
	}
}

func labelled(label string) string {
	if label == "" {
		return ""
	}
	return " (" + label + ")"
}

func list(ranks []int) string { return collective.RankSpans(ranks) }

// name is "rank 3" or "ranks 0-2,5"; the others are with their verbs.
func name(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + list(ranks)
	}
	return "ranks " + list(ranks)
}

func verb(ranks []int, one, more string) string {
	if len(ranks) == 1 {
		return one
	}
	return more
}

func has(ranks []int) string  { return name(ranks) + verb(ranks, " has", " have") }
func is(ranks []int) string   { return name(ranks) + verb(ranks, " is", " are") }
func wait(ranks []int) string { return name(ranks) + verb(ranks, " waits", " wait") }
func them(ranks []int) string { return verb(ranks, "it", "them") }
func they(ranks []int) string { return verb(ranks, "it calls", "they call") }

// Text writes the report for people.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "%d of %d ranks have a dump", len(r.Dumps), r.World)
	if len(r.Absent) > 0 {
		fmt.Fprintf(w, "; not %s", name(r.Absent))
	}
	fmt.Fprintln(w)
	for _, file := range r.Other {
		fmt.Fprintf(w, "left out, of another start, of before the fault or of an earlier request: %s\n", file)
	}
	for _, s := range r.Dumps {
		fmt.Fprintf(w, "rank %d (%s, process %d): %s\n  dumped because: %s\n", s.Rank, s.Host, s.Pid, s.Last, s.Why)
	}
	for _, g := range r.Groups {
		fmt.Fprintf(w, "%s of ranks %s, operation %d:", g.Name, list(g.Ranks), g.Seq)
		for _, x := range []struct {
			what  string
			ranks []int
		}{{"done", g.Done}, {"in it", g.In}, {"not reached", g.Before}, {"no dump", g.Absent}} {
			if len(x.ranks) > 0 {
				fmt.Fprintf(w, "  %s: %s", x.what, list(x.ranks))
			}
		}
		fmt.Fprintln(w)
	}
	for _, v := range r.Verdict {
		fmt.Fprintln(w, v)
	}
}
