package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/internal/input"
	"zeroth/job/hf"
)

// Path replaces a leading ~ by the home folder, and refuses addresses except those with one of the schemes.
// A shell replaces ~ only at the beginning of a word, not after --out= or --set.
func Path(path string, schemes ...string) (string, error) {
	rest, home := strings.CutPrefix(path, "~")
	switch {
	case !home:
		return path, input.CheckPath(path, schemes...)
	case rest != "" && !os.IsPathSeparator(rest[0]):
		name, _, _ := strings.Cut(path, "/")
		return "", fmt.Errorf("%q: the home folders of other users are not looked up; write the full path, or ./%s for a file with that name", path, name)
	}
	folder, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%q: %w", path, err)
	}
	return filepath.Join(folder, rest), nil
}

// The schemes of addresses that keys accept.
const (
	objects = "s3://"
	models  = "hf://"
)

// path is the name of a file or folder, with ~ for the home folder, or an address with one of the schemes.
func path(p *string, schemes ...string) value {
	v := of(p, "a path, in quotes if it has : or # or brackets", object{"type": "string"}, func(n *tree.Node) (string, string) {
		if n.Kind != tree.Scalar {
			return "", n.String() + " is not text"
		}
		full, err := Path(n.Text, schemes...)
		switch {
		case err != nil && slices.Contains(schemes, models) && strings.Contains(n.Text, "://huggingface.co/"):
			return "", err.Error() + ": " + hf.Download(n.Text)
		case err != nil:
			return "", err.Error()
		}
		return full, ""
	}, tree.Quote).omitted(func() bool { return *p == "" })
	v.path, v.schemes = true, schemes
	return v
}

// patterns are texts that match file names. A leading ~ becomes a variable, so that characters of
// the home folder's path are not wildcards. Addresses have one of the schemes.
func patterns(p *[]string, schemes ...string) value {
	v, all := texts(p), []string(nil)
	v.set = func(n *tree.Node) string {
		if wrong := texts(&all).set(n); wrong != "" {
			return wrong
		}
		for i, s := range all {
			if _, err := Path(s, schemes...); err != nil {
				return err.Error()
			}
			if rest, home := strings.CutPrefix(s, "~"); home {
				all[i] = "${HOME}" + rest
			}
		}
		*p = all
		return ""
	}
	v.path, v.schemes = true, schemes
	return v
}

// sources are patterns of files that may have weights: as many as patterns, or none.
func sources(p *[]string, weights *[]float64, schemes ...string) value {
	v := patterns(p, schemes...)
	plain := v
	v.set = func(n *tree.Node) string {
		paths, shares := *n, []float64(nil)
		paths.Items = slices.Clone(n.Items)
		for i, item := range n.Items {
			if item.Kind != tree.Mapping {
				continue
			}
			path, weight, wrong := weigh(item)
			if wrong != "" {
				return fmt.Sprintf("item %d: %s", i+1, wrong)
			}
			paths.Items[i], shares = path, append(shares, weight)
		}
		if n := len(n.Items); len(shares) > 0 && len(shares) < n {
			return fmt.Sprintf("%d of the %d items have a weight: the share of the others is unknown", len(shares), n)
		}
		wrong := plain.set(&paths)
		if wrong == "" {
			*weights = shares
		}
		return wrong
	}
	v.want += `, or with weights [{path: "a.jsonl", weight: 0.7}]`
	v.yaml = func() string {
		if len(*weights) == 0 {
			return plain.yaml()
		}
		items := make([]string, len(*p))
		for i, s := range *p {
			items[i] = fmt.Sprintf("{path: %s, weight: %s}", tree.Quote(s), FormatReal((*weights)[i]))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	item := section("files, or files with their share of the samples")
	item["type"], item["required"] = append(slices.Clone(scalars), "object"), []string{"path", "weight"}
	item["properties"] = object{"path": object{"type": scalars}, "weight": numeric(hf.Positive)}
	v.schema = object{"type": "array", "items": item}
	return v
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
	if wrong = positive(&weight).set(by.Value); wrong != "" {
		wrong = "weight: " + wrong
	}
	return of.Value, weight, wrong
}
