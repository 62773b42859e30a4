package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/job/hf"
)

// sources are file patterns that may have weights: all of them or none.
type sources struct {
	patterns
	weights *[]float64 // as many as patterns, or none
}

const weighted = `{path: "a.jsonl", weight: 0.7}`

func (v sources) set(n *tree.Node) string {
	paths, weights := *n, []float64(nil)
	paths.Items = slices.Clone(n.Items)
	for i, item := range n.Items {
		if item.Kind != tree.Mapping {
			continue
		}
		path, weight, wrong := weigh(item)
		if wrong != "" {
			return fmt.Sprintf("item %d: %s", i+1, wrong)
		}
		paths.Items[i], weights = path, append(weights, weight)
	}
	if n := len(n.Items); len(weights) > 0 && len(weights) < n {
		return fmt.Sprintf("%d of the %d items have a weight: the share of the others is unknown", len(weights), n)
	}
	if wrong := v.patterns.set(&paths); wrong != "" {
		return wrong
	}
	*v.weights = weights
	return ""
}

// weigh returns the path and weight of an item.
func weigh(item *tree.Node) (path *tree.Node, weight float64, wrong string) {
	for _, p := range item.Pairs {
		if p.Key != "path" && p.Key != "weight" {
			return nil, 0, fmt.Sprintf("unknown key %s; want path and weight", p.Key)
		}
	}
	of, by := item.Find("path"), item.Find("weight")
	if of == nil || by == nil || of.Value.Kind != tree.Scalar {
		return nil, 0, "want both path, a text, and weight"
	}
	if wrong = (real{&weight, hf.Positive, "a positive number"}).set(by.Value); wrong != "" {
		wrong = "weight: " + wrong
	}
	return of.Value, weight, wrong
}

func (v sources) want() string { return v.patterns.want() + ", or with weights [" + weighted + "]" }

func (v sources) yaml() string {
	if len(*v.weights) == 0 {
		return v.patterns.yaml()
	}
	items := make([]string, len(*v.p))
	for i, s := range *v.p {
		items[i] = fmt.Sprintf("{path: %s, weight: %s}", tree.Quote(s), FormatReal((*v.weights)[i]))
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
