package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/config/words"
)

// listOf is a list of mappings with the same keys. The keys form a table of their own, without sections.
func listOf[T any](p *[]T, one, many string, most int, fieldsOf func(*T) []field) value {
	items := fieldsOf(new(T))
	v := value{items: items, want: "a list of " + many, schema: object{"type": "array", "maxItems": most, "items": itemSchema(one, items)},
		empty: func() bool { return len(*p) == 0 }}
	v.read = func(key string, n *tree.Node) (ps Problems) {
		*p = nil
		switch {
		case n.Kind != tree.List:
			return Problems{tree.NewProblem(n.At, key, n.String()+" is not a list", "want "+v.want+", such as ["+example(items)+"]")}
		case len(n.Items) > most:
			return Problems{tree.NewProblem(n.At, key, fmt.Sprintf("%d items, more than %d", len(n.Items), most), "")}
		}
		all := make([]T, len(n.Items))
		for i, item := range n.Items {
			ps = append(ps, readItem(fmt.Sprintf("%s[%d]", key, i), one, item, fieldsOf(&all[i]))...)
		}
		if len(ps) == 0 {
			*p = all
		}
		return ps
	}
	v.set = func(n *tree.Node) string {
		if problems := v.read("", n); len(problems) > 0 {
			return strings.TrimPrefix(problems[0].Key+": ", ": ") + problems[0].Wrong
		}
		return ""
	}
	v.yaml = func() string {
		var all []string
		for i := range *p {
			var pairs []string
			for _, f := range fieldsOf(&(*p)[i]) {
				if !f.value.isEmpty() {
					pairs = append(pairs, f.key+": "+f.value.yaml())
				}
			}
			all = append(all, "{"+strings.Join(pairs, ", ")+"}")
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	return v
}

// itemSchema returns the JSON schema of an item.
func itemSchema(one string, items []field) object {
	s, required := section(one), []string{}
	for _, f := range items {
		s["properties"].(object)[f.key] = f.schema(f.value.empty != nil)
		if f.value.empty == nil {
			required = append(required, f.key)
		}
	}
	s["type"], s["required"] = "object", required
	return s
}

// readItem stores an item. Problems have keys such as "optimizer.groups[1].lr".
func readItem(key, one string, n *tree.Node, keys []field) (ps Problems) {
	if n.Kind != tree.Mapping {
		return Problems{tree.NewProblem(n.At, key, n.String()+" is not a mapping", "want a "+one+", such as "+example(keys))}
	}
	var names []string
	for _, f := range keys {
		names = append(names, f.key)
		p := n.Find(f.key)
		switch {
		case p != nil && p.Value.Kind != tree.Nothing:
			if wrong := f.value.set(p.Value); wrong != "" {
				ps = append(ps, tree.NewProblem(p.Value.At, tree.Join(key, f.key), wrong, "want "+f.value.want+f.example()))
			}
		case f.value.empty == nil:
			ps = append(ps, tree.NewProblem(n.At, key, "lacks "+f.key, "want "+example(keys)))
		}
	}
	for _, p := range n.Pairs {
		if slices.Contains(names, p.Key) {
			continue
		}
		advice := "want one of " + strings.Join(names, ", ")
		if near := words.Nearest(p.Key, names); near != "" {
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
