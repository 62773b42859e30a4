package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
)

// records is a list of mappings with the same keys. The keys form a table of their own: item(i)
// returns the fields of item i, and setting their values sets the item. Keys have no sections.
type records struct {
	one    string // description of one mapping
	many   string // description of several
	most   int    // maximum length
	resize func(n int)
	item   func(i int) []field
	table  func() []field // fields of a detached item, for documentation
	len    func() int
}

// listOf returns the value of a list of T, with the keys returned by of.
func listOf[T any](p *[]T, one, many string, most int, fieldsOf func(*T) []field) records {
	return records{one: one, many: many, most: most, len: func() int { return len(*p) },
		resize: func(n int) { *p = make([]T, n) },
		item:   func(i int) []field { return fieldsOf(&(*p)[i]) },
		table:  func() []field { return fieldsOf(new(T)) }}
}

// optional reports whether a value may be omitted.
func optional(v value) bool {
	_, may := v.(interface{ empty() bool })
	return may
}

// empty reports whether a value is omitted.
func empty(v value) bool {
	e, may := v.(interface{ empty() bool })
	return may && e.empty()
}

// schema returns the JSON schema of an item.
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

// set stores all items or none. It returns the first problem; read returns all.
func (v records) set(n *tree.Node) string {
	if problems := v.read("", n); len(problems) > 0 {
		return strings.TrimPrefix(problems[0].Key+": ", ": ") + problems[0].Wrong
	}
	return ""
}

// read stores the items, or none if one has a problem. Problems have keys such as
// "optimizer.groups[1].lr".
func (v records) read(key string, n *tree.Node) (ps tree.Problems) {
	v.resize(0)
	switch {
	case n.Kind != tree.List:
		return tree.Problems{tree.NewProblem(n.At, key, n.String()+" is not a list", "want "+v.want())}
	case len(n.Items) > v.most:
		return tree.Problems{tree.NewProblem(n.At, key, fmt.Sprintf("%d items, more than %d", len(n.Items), v.most), "")}
	}
	v.resize(len(n.Items))
	for i, item := range n.Items {
		ps = append(ps, v.readItem(fmt.Sprintf("%s[%d]", key, i), item, v.item(i))...)
	}
	if len(ps) > 0 {
		v.resize(0)
	}
	return ps
}

func (v records) readItem(key string, n *tree.Node, keys []field) (ps tree.Problems) {
	if n.Kind != tree.Mapping {
		return tree.Problems{tree.NewProblem(n.At, key, n.String()+" is not a mapping", "want a "+v.one+", such as "+example(keys))}
	}
	var names []string
	for _, f := range keys {
		names = append(names, f.key)
		p := n.Find(f.key)
		switch {
		case p != nil && p.Value.Kind != tree.Nothing:
			if wrong := f.value.set(p.Value); wrong != "" {
				ps = append(ps, tree.NewProblem(p.Value.At, tree.Join(key, f.key), wrong, "want "+f.value.want()+f.example()))
			}
		case !optional(f.value):
			ps = append(ps, tree.NewProblem(n.At, key, "lacks "+f.key, "want "+example(keys)))
		}
	}
	for _, p := range n.Pairs {
		if slices.Contains(names, p.Key) {
			continue
		}
		advice := "want one of " + strings.Join(names, ", ")
		if near := tree.Nearest(p.Key, names); near != "" {
			advice = "did you mean " + near + "?"
		}
		ps = append(ps, tree.NewProblem(p.At, tree.Join(key, p.Key), "unknown key", advice))
	}
	return ps
}

// example returns a valid item.
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
