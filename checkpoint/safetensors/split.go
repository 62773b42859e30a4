package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// split groups tensors greedily in order, with at most limit bytes per group unless it is a
// single tensor. There is always at least one group.
func split(specs []Spec, limit int64) [][]Spec {
	var groups [][]Spec
	var cur []Spec
	var have int64
	for _, s := range specs {
		n, _ := byteLen(s.DType, s.Shape)
		if len(cur) > 0 && have+n > limit {
			groups, cur, have = append(groups, cur), nil, 0
		}
		cur, have = append(cur, s), have+n
	}
	return append(groups, cur)
}

// partNames returns the file names of n parts.
func partNames(n int) []string {
	if n == 1 {
		return []string{single}
	}
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
	}
	return out
}

// renderIndex returns the index of a folder, with sorted keys as in other implementations.
func renderIndex(names []string, groups [][]Spec) []byte {
	var index struct {
		Metadata struct {
			TotalSize int64 `json:"total_size"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	index.WeightMap = map[string]string{}
	for i, g := range groups {
		for _, s := range g {
			n, _ := byteLen(s.DType, s.Shape)
			index.Metadata.TotalSize += n
			index.WeightMap[s.Name] = names[i]
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(index); err != nil {
		panic("safetensors: " + err.Error()) // strings and numbers always marshal
	}
	return b.Bytes()
}
