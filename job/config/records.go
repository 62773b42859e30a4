package config

import (
	"fmt"
	"slices"
	"strings"
)

// records is a list of mappings that all have the same keys, which are a table of
// their own: item(i) is that of item i, whose values set it. Keys have no sections.
type records struct {
	one    string // such a mapping, in words
	many   string // several
	most   int    // of them
	resize func(n int)
	item   func(i int) []field
	table  func() []field // item of no list, to describe them
	len    func() int
}

// listOf is a list of T, whose keys of says.
func listOf[T any](p *[]T, one, many string, most int, of func(*T) []field) records {
	return records{one: one, many: many, most: most, len: func() int { return len(*p) },
		resize: func(n int) { *p = make([]T, n) },
		item:   func(i int) []field { return of(&(*p)[i]) },
		table:  func() []field { return of(new(T)) }}
}

// optional is a value that may be left out.
func optional(v value) bool {
	_, may := v.(interface{ empty() bool })
	return may
}

// empty says whether a value is left out.
func empty(v value) bool {
	e, may := v.(interface{ empty() bool })
	return may && e.empty()
}

// schema is that of an item.
func (v records) schema() object {
	s, required := section(v.one), []string{}
	for _, f := range v.table() {
		s["properties"].(object)[f.key] = f.schema()
		if !optional(f.value) {
			required = append(required, f.key)
		}
	}
	s["type"], s["required"] = "object", required
	return s
}

// set takes all items, or none: read says all that is wrong with them.
func (v records) set(n *node) string {
	if problems := v.read("", n); len(problems) > 0 {
		return strings.TrimPrefix(problems[0].Key+": ", ": ") + problems[0].Wrong
	}
	return ""
}

// read sets the items, or none if anything is wrong with one of them; the
// problems are of keys such as "optimizer.groups[1].lr".
func (v records) read(key string, n *node) (ps Problems) {
	v.resize(0)
	switch {
	case n.kind != list:
		return Problems{newProblem(n.at, key, n.String()+" is not a list", "want "+v.want())}
	case len(n.items) > v.most:
		return Problems{newProblem(n.at, key, fmt.Sprintf("a list of %d, of at most %d", len(n.items), v.most), "")}
	}
	v.resize(len(n.items))
	for i, item := range n.items {
		ps = append(ps, v.readItem(fmt.Sprintf("%s[%d]", key, i), item, v.item(i))...)
	}
	if len(ps) > 0 {
		v.resize(0)
	}
	return ps
}

func (v records) readItem(key string, n *node, keys []field) (ps Problems) {
	if n.kind != mapping {
		return Problems{newProblem(n.at, key, n.String()+" is not a mapping", "want a "+v.one+", such as "+example(keys))}
	}
	var names []string
	for _, f := range keys {
		names = append(names, f.key)
		p := n.find(f.key)
		switch {
		case p != nil && p.value.kind != nothing:
			if wrong := f.value.set(p.value); wrong != "" {
				ps = append(ps, newProblem(p.value.at, join(key, f.key), wrong, "want "+f.value.want()+f.example()))
			}
		case !optional(f.value):
			ps = append(ps, newProblem(n.at, key, "lacks "+f.key, "want "+example(keys)))
		}
	}
	for _, p := range n.pairs {
		if slices.Contains(names, p.key) {
			continue
		}
		advice := "want one of " + strings.Join(names, ", ")
		if near := Nearest(p.key, names); near != "" {
			advice = "did you mean " + near + "?"
		}
		ps = append(ps, newProblem(p.at, join(key, p.key), "unknown key", advice))
	}
	return ps
}

// example is an item that would do.
func example(keys []field) string {
	var pairs []string
	for _, f := range keys {
		if f.sample() != "" {
			pairs = append(pairs, f.key+": "+f.sample())
		}
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

func (v records) want() string {
	return "a list of " + v.many + ", such as [" + example(v.table()) + "]"
}
func (v records) empty() bool { return v.len() == 0 }

func (v records) yaml() string {
	var items []string
	for i := range v.len() {
		var pairs []string
		for _, f := range v.item(i) {
			if !empty(f.value) {
				pairs = append(pairs, f.key+": "+f.value.yaml())
			}
		}
		items = append(items, "{"+strings.Join(pairs, ", ")+"}")
	}
	return "[" + strings.Join(items, ", ") + "]"
}
