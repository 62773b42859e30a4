package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/job/hf"
)

// sources are file patterns that may have weights: all of them or none.
type sources struct {
	patterns
	weights *[]float64 // as many as patterns, or none
}

const weighted = `{path: "a.jsonl", weight: 0.7}`

func (v sources) set(n *node) string {
	paths, weights := *n, []float64(nil)
	paths.items = slices.Clone(n.items)
	for i, item := range n.items {
		if item.kind != mapping {
			continue
		}
		path, weight, wrong := weigh(item)
		if wrong != "" {
			return fmt.Sprintf("item %d: %s", i+1, wrong)
		}
		paths.items[i], weights = path, append(weights, weight)
	}
	if n := len(n.items); len(weights) > 0 && len(weights) < n {
		return fmt.Sprintf("%d of the %d items have a weight: the share of the others is unknown", len(weights), n)
	}
	if wrong := v.patterns.set(&paths); wrong != "" {
		return wrong
	}
	*v.weights = weights
	return ""
}

// weigh returns the path and weight of an item.
func weigh(item *node) (path *node, weight float64, wrong string) {
	for _, p := range item.pairs {
		if p.key != "path" && p.key != "weight" {
			return nil, 0, fmt.Sprintf("unknown key %s; want path and weight", p.key)
		}
	}
	of, by := item.find("path"), item.find("weight")
	if of == nil || by == nil || of.value.kind != scalar {
		return nil, 0, "want both path, a text, and weight"
	}
	if wrong = (real{&weight, hf.Positive, "a positive number"}).set(by.value); wrong != "" {
		wrong = "weight: " + wrong
	}
	return of.value, weight, wrong
}

func (v sources) want() string { return v.patterns.want() + ", or with weights [" + weighted + "]" }

func (v sources) yaml() string {
	if len(*v.weights) == 0 {
		return v.patterns.yaml()
	}
	items := make([]string, len(*v.p))
	for i, s := range *v.p {
		items[i] = fmt.Sprintf("{path: %s, weight: %s}", Quote(s), formatReal((*v.weights)[i]))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// schema returns the schema of an item: a text, or an object with both keys.
func (v sources) schema() object {
	item := section("files, or files with their share of the samples")
	item["type"], item["required"] = append(slices.Clone(scalars), "object"), []string{"path", "weight"}
	item["properties"] = object{"path": object{"type": scalars}, "weight": bounded(hf.Positive)}
	return item
}
