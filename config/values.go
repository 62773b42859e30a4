package config

import (
	"fmt"
	gopath "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/config/tree"
	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
)

// value is the type of a key. set stores the value of a node and returns "", or stores nothing and
// returns what is wrong. want describes valid values. yaml returns the stored value so that Load
// reads it back unchanged.
type value interface {
	set(n *tree.Node) (wrong string)
	want() string
	yaml() string
}

// count is a whole number in [lo, hi].
type count struct {
	p      *int
	lo, hi int
}

func (v count) set(n *tree.Node) string {
	x, wrong := tree.Whole(n)
	if wrong == "" && (x < int64(v.lo) || x > int64(v.hi)) {
		wrong = outside(x, int64(v.lo), int64(v.hi))
	}
	if wrong == "" {
		*v.p = int(x)
	}
	return wrong
}

func outside(x, lo, hi int64) string {
	switch {
	case x > hi:
		return fmt.Sprintf("%d is more than %d", x, hi)
	case x < 0 && lo >= 0:
		return fmt.Sprintf("%d is negative", x)
	}
	return fmt.Sprintf("%d is less than %d", x, lo)
}

func (v count) want() string { return fmt.Sprintf("a whole number from %d to %d", v.lo, v.hi) }
func (v count) yaml() string { return strconv.Itoa(*v.p) }

// shards is a positive count, or -1 for ranks / replicate.
type shards struct{ p *int }

func (v shards) set(n *tree.Node) string {
	x, wrong := tree.Whole(n)
	if wrong == "" && x != -1 && (x < 1 || x > MostRanks) {
		wrong = outside(x, 1, MostRanks)
	}
	if wrong == "" {
		*v.p = int(x)
	}
	return wrong
}

func (v shards) want() string {
	return "a whole number of at least 1, or -1 for all ranks of a replica"
}
func (v shards) yaml() string { return "-1" } // always ranks / replicate when written

// stage is a ZeRO stage.
type stage struct{ p *int }

func (v stage) set(n *tree.Node) string {
	x, wrong := tree.Whole(n)
	if wrong == "" && (x < 0 || x > 3) {
		wrong = fmt.Sprintf("there is no stage %d", x)
	}
	if wrong == "" {
		*v.p = int(x)
	}
	return wrong
}

func (v stage) want() string {
	return "0 (nothing sharded), 1 (optimizer state), 2 (and gradients) or 3 (and parameters)"
}
func (v stage) yaml() string { return strconv.Itoa(*v.p) }

// seed is any 64-bit number.
type seed struct{ p *uint64 }

func (v seed) set(n *tree.Node) string {
	y, wrong := tree.Whole(n)
	x, err := strconv.ParseUint(n.Text, 10, 64)
	switch {
	case wrong == "" && y < 0:
		return n.String() + " is negative"
	case wrong == "":
		*v.p = uint64(y)
	case err == nil && !n.Quoted && !tree.Octal.MatchString(n.Text): // uses all 64 bits
		*v.p, wrong = x, ""
	}
	return wrong
}

func (v seed) want() string { return "a whole number of at least 0" }
func (v seed) yaml() string { return strconv.FormatUint(*v.p, 10) }

// real is a finite number that ok accepts.
type real struct {
	p    *float64
	ok   func(float64) bool
	what string
}

func (v real) set(n *tree.Node) string {
	x, wrong := tree.Number(n)
	if wrong == "" && !v.ok(x) {
		wrong = n.String() + " is out of range"
	}
	if wrong == "" {
		*v.p = x
	}
	return wrong
}

func (v real) want() string { return v.what }
func (v real) yaml() string { return FormatReal(*v.p) }

// some is a positive real. 0 means unset and is not written.
type some struct{ real }

func (v some) empty() bool { return *v.p == 0 }

// perhaps is a real that may be omitted.
type perhaps struct {
	p    **float64
	ok   func(float64) bool
	what string
}

func (v perhaps) set(n *tree.Node) string {
	x := new(float64)
	wrong := real{x, v.ok, v.what}.set(n)
	if wrong == "" {
		*v.p = x
	}
	return wrong
}

func (v perhaps) empty() bool  { return *v.p == nil }
func (v perhaps) want() string { return v.what }
func (v perhaps) yaml() string {
	if v.empty() {
		return "null"
	}
	return FormatReal(**v.p)
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

// reals is a list of two numbers.
type reals struct {
	p    *[2]float64
	ok   func(float64) bool
	what string
}

func (v reals) set(n *tree.Node) string {
	if n.Kind != tree.List || len(n.Items) != 2 {
		return fmt.Sprintf("%s is not a list of two numbers", n.Listed())
	}
	var xs [2]float64
	for i, item := range n.Items {
		if wrong := (real{&xs[i], v.ok, v.what}).set(item); wrong != "" {
			return wrong
		}
	}
	*v.p = xs
	return ""
}

// MostGPUs bounds the ordinals of GPUs.
const MostGPUs = 1 << 10

// ordinals is a list of distinct GPUs, or "auto", stored as an empty list.
type ordinals struct{ p *[]int }

func (v ordinals) set(n *tree.Node) string {
	if n.Kind == tree.Scalar && n.Text == "auto" {
		*v.p = nil
		return ""
	}
	if n.Kind != tree.List || len(n.Items) == 0 {
		return fmt.Sprintf("%s is not a list of GPUs", n.Listed())
	}
	out := make([]int, len(n.Items))
	for i, item := range n.Items {
		if wrong := (count{&out[i], 0, MostGPUs}).set(item); wrong != "" {
			return wrong
		}
		if slices.Contains(out[:i], out[i]) {
			return fmt.Sprintf("GPU %d is named twice", out[i])
		}
	}
	*v.p = out
	return ""
}

func (v ordinals) want() string {
	return "a list of the driver's numbers of GPUs, such as [0, 2], or auto"
}
func (v ordinals) yaml() string {
	if len(*v.p) == 0 {
		return "auto"
	}
	return strings.ReplaceAll(fmt.Sprint(*v.p), " ", ", ")
}

// counts is a list of numbers of at least 1; unset if empty.
type counts struct{ p *[]int }

func (v counts) set(n *tree.Node) string {
	if n.Kind != tree.List || len(n.Items) == 0 {
		return fmt.Sprintf("%s is not a list of numbers", n.Listed())
	}
	out := make([]int, len(n.Items))
	for i, item := range n.Items {
		if wrong := (count{&out[i], 1, hf.MostLayers}).set(item); wrong != "" {
			return wrong
		}
	}
	*v.p = out
	return ""
}

func (v counts) empty() bool  { return len(*v.p) == 0 }
func (v counts) want() string { return "a list of whole numbers of at least 1, such as [7, 5]" }
func (v counts) yaml() string { return strings.ReplaceAll(fmt.Sprint(*v.p), " ", ", ") }

func (v reals) want() string { return v.what }
func (v reals) yaml() string {
	return fmt.Sprintf("[%s, %s]", FormatReal(v.p[0]), FormatReal(v.p[1]))
}

// choice is one of a few words.
type choice struct {
	p     *string
	names []string
}

func (v choice) set(n *tree.Node) string {
	if n.Kind != tree.Scalar {
		return n.String() + " is not a name"
	}
	if !slices.Contains(v.names, n.Text) {
		return n.String() + " is not a valid value" + didYouMean(n.Text, v.names)
	}
	*v.p = n.Text
	return ""
}

func didYouMean(word string, names []string) string {
	if near := tree.Nearest(word, names); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

func (v choice) empty() bool  { return *v.p == "" }
func (v choice) want() string { return show.Either(v.names) }
func (v choice) yaml() string { return *v.p }

// dtype is the name of an element type.
type dtype struct {
	p     *device.DType
	types []device.DType
}

func (v dtype) set(n *tree.Node) string {
	var name string
	wrong := choice{&name, v.names()}.set(n)
	for _, t := range v.types {
		if wrong == "" && t.String() == name {
			*v.p = t
		}
	}
	return wrong
}

func (v dtype) names() (names []string) {
	for _, t := range v.types {
		names = append(names, t.String())
	}
	return names
}

func (v dtype) want() string { return show.Either(v.names()) }
func (v dtype) yaml() string { return v.p.String() }

// text is a string, quoted or not.
type text struct{ p *string }

func (v text) set(n *tree.Node) string {
	if n.Kind != tree.Scalar {
		return n.String() + " is not text"
	}
	*v.p = n.Text
	return ""
}

func (v text) empty() bool  { return *v.p == "" }
func (v text) want() string { return "text, in quotes if it has : or # or brackets" }
func (v text) yaml() string { return tree.Quote(*v.p) }

// day is a date.
type day struct{ p *string }

func (v day) set(n *tree.Node) string {
	if _, err := time.Parse(time.DateOnly, n.Text); n.Kind != tree.Scalar || err != nil {
		return n.String() + " is not a date"
	}
	*v.p = n.Text
	return ""
}

func (v day) empty() bool  { return *v.p == "" }
func (v day) want() string { return "a date such as 2026-01-31" }
func (v day) yaml() string { return tree.Quote(*v.p) }

// longestPattern bounds a group's pattern, in bytes.
const longestPattern = 200

// pattern is a pattern of path.Match.
type pattern struct{ p *string }

func (v pattern) set(n *tree.Node) string {
	_, err := gopath.Match(n.Text, "")
	switch {
	case n.Kind != tree.Scalar || n.Text == "" || err != nil:
		return n.String() + " is not a pattern"
	case len(n.Text) > longestPattern:
		return fmt.Sprintf("a pattern of %d bytes, more than %d", len(n.Text), longestPattern)
	}
	*v.p = n.Text
	return ""
}

func (v pattern) want() string { return `a pattern of names, such as "*.bias"` }
func (v pattern) yaml() string { return tree.Quote(*v.p) }

// measure is the name of a metric.
type measure struct{ p *string }

func (v measure) set(n *tree.Node) string {
	if n.Kind != tree.Scalar || !MetricName.MatchString(n.Text) || len(n.Text) > LongestMetric {
		return n.String() + " is not the name of a metric"
	}
	*v.p = n.Text
	return ""
}

func (v measure) want() string { return "val_loss, or a metric of the program's network" }
func (v measure) yaml() string { return *v.p }

// texts is a list of strings.
type texts struct{ p *[]string }

func (v texts) set(n *tree.Node) string {
	if n.Kind == tree.Scalar {
		return fmt.Sprintf("%s is not a list", n)
	}
	if n.Kind != tree.List {
		return n.String() + " is not a list of texts"
	}
	out := make([]string, len(n.Items))
	for i, item := range n.Items {
		if wrong := (text{&out[i]}).set(item); wrong != "" {
			return wrong
		}
	}
	*v.p = out
	return ""
}

func (v texts) empty() bool  { return len(*v.p) == 0 }
func (v texts) want() string { return `a list of texts, such as ["a.txt", "docs/**/*.md"]` }
func (v texts) yaml() string {
	quoted := make([]string, len(*v.p))
	for i, s := range *v.p {
		quoted[i] = tree.Quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// mostPatterns is the maximum number of patterns of layers in a value, and their length in bytes.
const mostPatterns = 256

// perLayer is a mapping of names of layers to numbers, in its order.
type perLayer struct {
	p    *[]nn.Pattern
	ok   func(float64) bool
	what string
}

func (v perLayer) set(n *tree.Node) string {
	if n.Kind != tree.Mapping {
		return n.String() + " is not a mapping"
	}
	if len(n.Pairs) > mostPatterns {
		return fmt.Sprintf("%d names are more than %d", len(n.Pairs), mostPatterns)
	}
	var out []nn.Pattern
	for _, p := range n.Pairs {
		var x float64
		wrong := real{&x, v.ok, v.what}.set(p.Value)
		if wrong == "" && len(p.Key) > mostPatterns {
			wrong = fmt.Sprintf("a name of %d bytes is longer than %d", len(p.Key), mostPatterns)
		}
		pattern, err := nn.NewPattern(p.Key, x)
		if wrong == "" && err != nil {
			wrong = err.Error()
		}
		if wrong != "" {
			return p.Key + ": " + wrong
		}
		out = append(out, pattern)
	}
	*v.p = out
	return ""
}

func (v perLayer) empty() bool  { return len(*v.p) == 0 }
func (v perLayer) want() string { return "a mapping of names of layers, each to " + v.what }
func (v perLayer) yaml() string {
	var pairs []string
	for _, p := range *v.p {
		pairs = append(pairs, tree.Quote(p.Name)+": "+FormatReal(p.Value))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// Longest is the maximum time span, a year.
const Longest = 365 * 24 * time.Hour

// duration is a time span like 30s or 5m.
type duration struct{ p *time.Duration }

func (v duration) set(n *tree.Node) string {
	if n.Kind != tree.Scalar {
		return n.String() + " is not a time span"
	}
	d, err := time.ParseDuration(n.Text)
	if err != nil {
		return n.String() + " is not a time span"
	}
	switch {
	case d <= 0:
		return n.String() + " is not positive"
	case d > Longest:
		return fmt.Sprintf("%s is more than %v", n, Longest)
	}
	*v.p = d
	return ""
}

func (v duration) want() string { return "a number with its unit, such as 30s or 5m" }
func (v duration) yaml() string { return v.p.String() }

// Limits of settings.
const (
	MostRanks  = 1 << 16 // of a job
	MostSteps  = 1_000_000_000
	MostBatch  = 1 << 30 // sequences per step
	MostMemory = 1 << 60 // bytes
)

// metricPattern matches the names of metrics, which TensorBoard, MLflow and Prometheus accept
// unchanged.
const metricPattern = `^[a-z][a-z0-9_]*$`

var MetricName = regexp.MustCompile(metricPattern)

// LongestMetric bounds the name of a metric, in bytes.
const LongestMetric = 64
