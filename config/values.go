package config

import (
	"fmt"
	"maps"
	gopath "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/config/tree"
	"zeroth/config/words"
	"zeroth/device"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/nn"
)

// value is where a key is stored, and the type of what it accepts.
type value struct {
	set    func(n *tree.Node) (wrong string) // stores the value of a node, or nothing and returns what is wrong
	yaml   func() string                     // the stored value, which set reads back unchanged
	want   string                            // describes valid values
	schema object                            // of JSON, without null

	empty   func() bool                       // whether it is left out; nil if it may not be
	choices []string                          // the words it accepts; nil if it is not one of a few
	number  bool                              // its default is an example of a number
	like    bool                              // its example is one of a number
	path    bool                              // whether it is a path, or a list of them
	schemes []string                          // of addresses that a path may have
	blame   func(n *tree.Node) tree.Position  // of a rejected part; nil: the whole value
	read    func(string, *tree.Node) Problems // of lists of mappings: like set, with all problems
	items   []field                           // of lists of mappings: the keys of an item
}

// of returns a value that read parses and write prints.
func of[T any](p *T, want string, schema object, read func(n *tree.Node) (T, string), write func(T) string) value {
	set := func(n *tree.Node) string {
		x, wrong := read(n)
		if wrong == "" {
			*p = x
		}
		return wrong
	}
	return value{set: set, yaml: func() string { return write(*p) }, want: want, schema: schema}
}

// omitted returns a value that is left out while it is empty.
func (v value) omitted(empty func() bool) value {
	v.empty = empty
	return v
}

// isEmpty reports whether the value is left out.
func (v value) isEmpty() bool { return v.empty != nil && v.empty() }

// object is a JSON object.
type object = map[string]any

// integer returns the schema of a whole number.
func integer(lo int, hi any) object { return object{"type": "integer", "minimum": lo, "maximum": hi} }

// count is a whole number in [lo, hi].
func count(p *int, lo, hi int) value {
	v := of(p, fmt.Sprintf("a whole number from %d to %d", lo, hi), integer(lo, hi), func(n *tree.Node) (int, string) {
		x, wrong := tree.Whole(n)
		switch {
		case wrong != "":
		case x > int64(hi):
			wrong = fmt.Sprintf("%d is more than %d", x, hi)
		case x < 0 && lo >= 0:
			wrong = fmt.Sprintf("%d is negative", x)
		case x < int64(lo):
			wrong = fmt.Sprintf("%d is less than %d", x, lo)
		}
		return int(x), wrong
	}, strconv.Itoa)
	v.number = true
	return v
}

// orPart is v, a count stored in steps, or a fraction of the run's steps, stored in part. Until the length of the run
// is known, a fraction is MostSteps.
func orPart(v value, steps *int, part *float64) value {
	set, write := v.set, v.yaml
	v.set = func(n *tree.Node) string {
		if x, wrong := tree.Number(n); wrong == "" && x > 0 && x < 1 {
			*steps, *part = MostSteps, x
			return ""
		}
		wrong := set(n)
		if wrong == "" {
			*part = 0
		}
		return wrong
	}
	v.yaml = func() string {
		if *part > 0 {
			return FormatReal(*part)
		}
		return write()
	}
	v.want += ", or a fraction of the run such as 0.03"
	v.schema = maps.Clone(v.schema)
	v.schema["type"] = append(slices.Clone(types(v.schema)), "number")
	v.schema["not"] = object{"type": "number", "exclusiveMinimum": 1, "not": object{"type": "integer"}}
	return v
}

// shards is a positive count, or -1 for ranks / replicate. It is always written as -1.
func shards(p *int) value {
	v := count(p, 1, MostRanks)
	positive := v.set
	v.set = func(n *tree.Node) string {
		if x, wrong := tree.Whole(n); wrong == "" && x == -1 {
			*p = -1
			return ""
		}
		return positive(n)
	}
	v.want, v.number = "a whole number of at least 1, or -1 for all ranks of a replica", false
	v.schema = object{"type": "integer", "minimum": -1, "maximum": MostRanks, "not": object{"const": 0}}
	v.yaml = func() string { return "-1" }
	return v
}

// stage is a ZeRO stage.
func stage(p *int) value {
	v := of(p, "0 (nothing sharded), 1 (optimizer state), 2 (and gradients) or 3 (and parameters)", integer(0, 3), func(n *tree.Node) (int, string) {
		x, wrong := tree.Whole(n)
		if wrong == "" && (x < 0 || x > 3) {
			wrong = fmt.Sprintf("there is no stage %d", x)
		}
		return int(x), wrong
	}, strconv.Itoa)
	v.choices = []string{"0", "1", "2", "3"}
	return v
}

// seed is any 64-bit number.
func seed(p *uint64) value {
	return of(p, "a whole number of at least 0", integer(0, uint64(1<<64-1)), func(n *tree.Node) (uint64, string) {
		y, wrong := tree.Whole(n)
		x, err := strconv.ParseUint(n.Text, 10, 64)
		switch {
		case wrong == "" && y < 0:
			return 0, n.String() + " is negative"
		case err == nil && !n.Quoted && !tree.Octal.MatchString(n.Text): // uses all 64 bits
			return x, ""
		}
		return uint64(y), wrong
	}, func(x uint64) string { return strconv.FormatUint(x, 10) })
}

// real is a finite number that ok accepts.
func real(p *float64, ok func(float64) bool, want string) value {
	v := of(p, want, numeric(ok), func(n *tree.Node) (float64, string) {
		x, wrong := tree.Number(n)
		if wrong == "" && !ok(x) {
			wrong = n.String() + " is out of range"
		}
		return x, wrong
	}, FormatReal)
	v.number = true
	return v
}

// positive is a number above 0.
func positive(p *float64) value { return real(p, hf.Positive, "a positive number") }

// least0 is a number of at least 0.
func least0(p *float64) value { return real(p, atLeast0, "a number of at least 0") }

// decays is a rate of at least 0 and below 1.
func decays(p *float64) value { return real(p, within(0, 1), "a number of at least 0 and below 1") }

// dropped is a dropout probability.
func dropped(p *float64) value {
	return real(p, device.Droppable, "0, or a number from 1/65536 to below 1")
}

// some is a positive number. 0 means unset and is not written.
func some(p *float64) value {
	v := positive(p).omitted(func() bool { return *p == 0 })
	v.like = true
	return v
}

// perhaps is a number of some kind that may be omitted.
func perhaps(p **float64, kind func(*float64) value) value {
	v := kind(new(float64)).omitted(func() bool { return *p == nil })
	v.like = true
	v.set = func(n *tree.Node) string {
		x := new(float64)
		wrong := kind(x).set(n)
		if wrong == "" {
			*p = x
		}
		return wrong
	}
	v.yaml = func() string {
		if *p == nil {
			return "null"
		}
		return FormatReal(**p)
	}
	return v
}

// FormatReal returns the shortest text that parses as x: 6e-4, but 0.01.
func FormatReal(x float64) string {
	g := strings.Replace(strconv.FormatFloat(x, 'g', -1, 64), "e-0", "e-", 1)
	e := strings.Replace(strconv.FormatFloat(x, 'e', -1, 64), "e-0", "e-", 1)
	if len(e) < len(g) && !strings.Contains(e, "+") {
		return e
	}
	return g
}

// betas is a list of two rates.
func betas(p *[2]float64) value {
	items := object{"type": "array", "items": numeric(within(0, 1)), "minItems": 2, "maxItems": 2}
	v := of(p, "two numbers of at least 0 and below 1", items, func(n *tree.Node) (xs [2]float64, wrong string) {
		if n.Kind != tree.List || len(n.Items) != 2 {
			return xs, fmt.Sprintf("%s is not a list of two numbers", n.Listed())
		}
		for i, item := range n.Items {
			if wrong = decays(&xs[i]).set(item); wrong != "" {
				break
			}
		}
		return xs, wrong
	}, func(xs [2]float64) string { return fmt.Sprintf("[%s, %s]", FormatReal(xs[0]), FormatReal(xs[1])) })
	v.number = true
	return v
}

// listed reads a list of items, by the value of each.
func listed[T any](n *tree.Node, what string, item func(*T) value) (out []T, wrong string) {
	if n.Kind != tree.List || len(n.Items) == 0 {
		return nil, fmt.Sprintf("%s is not a list of %s", n.Listed(), what)
	}
	out = make([]T, len(n.Items))
	for i := range out {
		if wrong := item(&out[i]).set(n.Items[i]); wrong != "" {
			return nil, wrong
		}
	}
	return out, ""
}

// inBrackets returns numbers as YAML.
func inBrackets(xs []int) string { return strings.ReplaceAll(fmt.Sprint(xs), " ", ", ") }

// MostGPUs bounds the ordinals of GPUs.
const MostGPUs = 1 << 10

// ordinals is a list of distinct GPUs, or "auto", stored as an empty list.
func ordinals(p *[]int) value {
	schema := object{"type": []string{"array", "string"}, "pattern": "^auto$", "minItems": 1, "items": integer(0, MostGPUs)}
	return of(p, "a list of the driver's numbers of GPUs, such as [0, 2], or auto", schema, func(n *tree.Node) ([]int, string) {
		if n.Kind == tree.Scalar && n.Text == "auto" {
			return nil, ""
		}
		out, wrong := listed(n, "GPUs", func(p *int) value { return count(p, 0, MostGPUs) })
		for i, gpu := range out {
			if slices.Contains(out[:i], gpu) {
				wrong = fmt.Sprintf("GPU %d is named twice", gpu)
			}
		}
		return out, wrong
	}, func(gpus []int) string {
		if len(gpus) == 0 {
			return "auto"
		}
		return inBrackets(gpus)
	})
}

// counts is a list of numbers of at least 1; unset if empty.
func counts(p *[]int) value {
	schema := object{"type": "array", "minItems": 1, "items": integer(1, hf.MostLayers)}
	return of(p, "a list of whole numbers of at least 1, such as [7, 5]", schema, func(n *tree.Node) ([]int, string) {
		return listed(n, "numbers", func(p *int) value { return count(p, 1, hf.MostLayers) })
	}, inBrackets).omitted(func() bool { return len(*p) == 0 })
}

// choice is one of a few words.
func choice(p *string, names []string) value {
	v := of(p, show.Either(names), object{"enum": names}, func(n *tree.Node) (string, string) {
		switch {
		case n.Kind != tree.Scalar:
			return "", n.String() + " is not a name"
		case slices.Contains(names, n.Text):
			return n.Text, ""
		}
		wrong := n.String() + " is not a valid value"
		if near := words.Nearest(n.Text, names); near != "" {
			wrong += "; did you mean " + near + "?"
		}
		return "", wrong
	}, func(s string) string { return s }).omitted(func() bool { return *p == "" })
	v.choices = names
	return v
}

// dtype is the name of an element type.
func dtype(p *device.DType, types []device.DType) value {
	var names []string
	for _, t := range types {
		names = append(names, t.String())
	}
	name := p.String()
	v := choice(&name, names)
	word := v.set
	v.set = func(n *tree.Node) string {
		wrong := word(n)
		if wrong == "" {
			*p = types[slices.Index(names, name)]
		}
		return wrong
	}
	v.yaml, v.empty = func() string { return p.String() }, nil
	return v
}

// flag is a boolean.
func flag(p *bool) value {
	v := of(p, "true or false", object{"type": "boolean"}, func(n *tree.Node) (is bool, wrong string) {
		if n.Kind != tree.Scalar || n.Quoted || n.Text != "true" && n.Text != "false" {
			wrong = n.String() + " is neither true nor false"
		}
		return n.Text == "true", wrong
	}, strconv.FormatBool)
	v.choices = []string{"true", "false"}
	return v
}

// scalars lists the JSON types that the job file accepts as text.
var scalars = []string{"string", "number", "boolean"}

// text is a string, quoted or not.
func text(p *string) value {
	return of(p, "text, in quotes if it has : or # or brackets", object{"type": scalars}, func(n *tree.Node) (string, string) {
		if n.Kind != tree.Scalar {
			return "", n.String() + " is not text"
		}
		return n.Text, ""
	}, tree.Quote).omitted(func() bool { return *p == "" })
}

// checked is a text that wrong does not reject.
func checked(p *string, want string, schema object, wrong func(n *tree.Node) string) value {
	return of(p, want, schema, func(n *tree.Node) (string, string) { return n.Text, wrong(n) }, tree.Quote)
}

// day is a date.
func day(p *string) value {
	return checked(p, "a date such as 2026-01-31", object{"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}, func(n *tree.Node) string {
		if _, err := time.Parse(time.DateOnly, n.Text); n.Kind != tree.Scalar || err != nil {
			return n.String() + " is not a date"
		}
		return ""
	}).omitted(func() bool { return *p == "" })
}

// longestPattern bounds a group's pattern, in bytes.
const longestPattern = 200

// pattern is a pattern of path.Match.
func pattern(p *string) value {
	return checked(p, `a pattern of names, such as "*.bias"`, object{"type": scalars, "minLength": 1, "maxLength": longestPattern}, func(n *tree.Node) string {
		_, err := gopath.Match(n.Text, "")
		switch {
		case n.Kind != tree.Scalar || n.Text == "" || err != nil:
			return n.String() + " is not a pattern"
		case len(n.Text) > longestPattern:
			return fmt.Sprintf("a pattern of %d bytes, more than %d", len(n.Text), longestPattern)
		}
		return ""
	})
}

// metricPattern matches the names of metrics, which TensorBoard, MLflow and Prometheus accept
// unchanged.
const metricPattern = `^[a-z][a-z0-9_]*$`

// MetricName matches the names of metrics.
var MetricName = regexp.MustCompile(metricPattern)

// LongestMetric bounds the name of a metric, in bytes.
const LongestMetric = 64

// measure is the name of a metric.
func measure(p *string) value {
	schema := object{"type": []string{"string", "boolean"}, "pattern": metricPattern, "maxLength": LongestMetric}
	v := checked(p, "val_loss, or a metric of the program's network", schema, func(n *tree.Node) string {
		if n.Kind != tree.Scalar || !MetricName.MatchString(n.Text) || len(n.Text) > LongestMetric {
			return n.String() + " is not the name of a metric"
		}
		return ""
	})
	v.yaml = func() string { return *p }
	return v
}

// texts is a list of strings.
func texts(p *[]string) value {
	schema := object{"type": "array", "items": object{"type": scalars}}
	return of(p, `a list of texts, such as ["a.txt", "docs/**/*.md"]`, schema, func(n *tree.Node) ([]string, string) {
		if n.Kind == tree.Scalar {
			return nil, fmt.Sprintf("%s is not a list: write [%[1]s]", n)
		}
		if n.Kind == tree.List && len(n.Items) == 0 {
			return []string{}, ""
		}
		return listed(n, "texts", text)
	}, func(all []string) string {
		quoted := make([]string, len(all))
		for i, s := range all {
			quoted[i] = tree.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}).omitted(func() bool { return len(*p) == 0 })
}

// mostPatterns is the maximum number of patterns of layers in a value, and their length in bytes.
const mostPatterns = 256

// perLayer is a mapping of names of layers to numbers, in its order.
func perLayer(p *[]nn.Pattern, number func(*float64) value) value {
	schema := object{"type": "object", "maxProperties": mostPatterns, "additionalProperties": object{"type": "number", "exclusiveMinimum": 0}}
	return of(p, "a mapping of names of layers, each to "+number(new(float64)).want, schema, func(n *tree.Node) (out []nn.Pattern, wrong string) {
		if n.Kind != tree.Mapping {
			return nil, n.String() + " is not a mapping"
		}
		if len(n.Pairs) > mostPatterns {
			return nil, fmt.Sprintf("%d names are more than %d", len(n.Pairs), mostPatterns)
		}
		for _, p := range n.Pairs {
			var x float64
			wrong := number(&x).set(p.Value)
			if wrong == "" && len(p.Key) > mostPatterns {
				wrong = fmt.Sprintf("a name of %d bytes is longer than %d", len(p.Key), mostPatterns)
			}
			pattern, err := nn.NewPattern(p.Key, x)
			if wrong == "" && err != nil {
				wrong = err.Error()
			}
			if wrong != "" {
				return nil, p.Key + ": " + wrong
			}
			out = append(out, pattern)
		}
		return out, ""
	}, func(patterns []nn.Pattern) string {
		var pairs []string
		for _, p := range patterns {
			pairs = append(pairs, tree.Quote(p.Name)+": "+FormatReal(p.Value))
		}
		return "{" + strings.Join(pairs, ", ") + "}"
	}).omitted(func() bool { return len(*p) == 0 })
}

// Longest is the maximum time span, a year.
const Longest = 365 * 24 * time.Hour

// duration is a time span like 30s or 5m.
func duration(p *time.Duration) value {
	schema := object{"type": "string", "pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`}
	return of(p, "a number with its unit, such as 30s or 5m", schema, func(n *tree.Node) (time.Duration, string) {
		d, err := time.ParseDuration(n.Text)
		switch {
		case n.Kind != tree.Scalar || err != nil:
			return 0, n.String() + " is not a time span"
		case d <= 0:
			return 0, n.String() + " is not positive"
		case d > Longest:
			return 0, fmt.Sprintf("%s is more than %v", n, Longest)
		}
		return d, ""
	}, time.Duration.String)
}

// Limits of settings.
const (
	MostRanks  = 1 << 16 // of a job
	MostSteps  = 1_000_000_000
	MostBatch  = 1 << 30 // sequences per step
	MostMemory = 1 << 60 // bytes
)

// memoryUnits lists the units of memory. A bare G is rejected as ambiguous.
var memoryUnits = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// ParseSize reads a number of bytes with its unit, such as 80GiB or 80GB.
func ParseSize(s string) (int64, error) {
	for _, u := range memoryUnits {
		at := len(s) - len(u.name)
		if at < 0 || !strings.EqualFold(s[at:], u.name) {
			continue
		}
		x, wrong := tree.Number(&tree.Node{Kind: tree.Scalar, Text: strings.TrimSpace(s[:at])})
		if b := x * u.bytes; wrong == "" && b >= 1 && b <= MostMemory {
			return int64(b), nil
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size; want a number with its unit, such as 80GiB (2^30 bytes) or 80GB (10^9)", s)
}

// bound is a number of bytes with its unit, or auto, stored as 0.
func bound(p *int64) value {
	schema := object{"type": "string", "pattern": `^(auto|[0-9.eE+-]+ *(B|kB|[MGT]B|[KMGT]iB))$`}
	return of(p, "auto, or a number with its unit, such as 512MiB or 4GB", schema, func(n *tree.Node) (int64, string) {
		if n.Kind == tree.Scalar && n.Text == "auto" {
			return 0, ""
		}
		b, err := ParseSize(n.Text)
		if n.Kind != tree.Scalar || err != nil {
			return 0, n.String() + " is not a number of bytes"
		}
		return b, ""
	}, func(b int64) string {
		for _, u := range memoryUnits {
			if one := int64(u.bytes); b > 0 && b%one == 0 {
				return fmt.Sprintf("%d%s", b/one, u.name)
			}
		}
		return "auto"
	})
}
