package config

import (
	"encoding/json"
	"errors"
	"fmt"
	gopath "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/device"
	"zeroth/job/hf"
	"zeroth/job/show"
	"zeroth/nn"
)

// value is the type of a key. set stores the value of a node and returns "", or stores nothing and
// returns what is wrong. want describes valid values. yaml returns the stored value so that Load
// reads it back unchanged.
type value interface {
	set(n *node) (wrong string)
	want() string
	yaml() string
}

// count is a whole number in [lo, hi].
type count struct {
	p      *int
	lo, hi int
}

func (v count) set(n *node) string {
	x, wrong := whole(n)
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

// octal matches digits that some parsers read as octal, others as decimal.
var octal = regexp.MustCompile(`^[-+]?0[0-9]`)

// whole parses an integer.
func whole(n *node) (x int64, wrong string) {
	switch {
	case n.kind != scalar || n.quoted:
		return 0, n.String() + " is not a whole number"
	case octal.MatchString(n.text):
		return 0, n.String() + " begins with a 0, which may mean octal"
	}
	x, err := strconv.ParseInt(n.text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, n.String() + " is too large"
	case err != nil:
		return 0, n.String() + " is not a whole number"
	}
	return x, ""
}

// shards is a positive count, or -1 for ranks / replicate.
type shards struct{ p *int }

func (v shards) set(n *node) string {
	x, wrong := whole(n)
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

func (v stage) set(n *node) string {
	x, wrong := whole(n)
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

func (v seed) set(n *node) string {
	y, wrong := whole(n)
	x, err := strconv.ParseUint(n.text, 10, 64)
	switch {
	case wrong == "" && y < 0:
		return n.String() + " is negative"
	case wrong == "":
		*v.p = uint64(y)
	case err == nil && !n.quoted && !octal.MatchString(n.text): // uses all 64 bits
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

func (v real) set(n *node) string {
	x, wrong := number(n)
	if wrong == "" && !v.ok(x) {
		wrong = n.String() + " is out of range"
	}
	if wrong == "" {
		*v.p = x
	}
	return wrong
}

func (v real) want() string { return v.what }
func (v real) yaml() string { return formatReal(*v.p) }

// some is a positive real. 0 means unset and is not written.
type some struct{ real }

func (v some) empty() bool { return *v.p == 0 }

// perhaps is a real that may be omitted.
type perhaps struct {
	p    **float64
	ok   func(float64) bool
	what string
}

func (v perhaps) set(n *node) string {
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
	return formatReal(**v.p)
}

// formatReal returns the shortest text that parses as x: 6e-4, but 0.01.
func formatReal(x float64) string {
	g := strings.Replace(strconv.FormatFloat(x, 'g', -1, 64), "e-0", "e-", 1)
	e := strings.Replace(strconv.FormatFloat(x, 'e', -1, 64), "e-0", "e-", 1)
	if len(e) < len(g) && !strings.Contains(e, "+") {
		return e
	}
	return g
}

// decimal matches numbers without hexadecimal digits and underscores.
var decimal = regexp.MustCompile(`^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$`)

// number parses a finite float.
func number(n *node) (x float64, wrong string) {
	if n.kind != scalar || n.quoted {
		return 0, n.String() + " is not a number"
	}
	switch strings.ToLower(strings.TrimLeft(n.text, "+-.")) {
	case "nan":
		return 0, n.text + " is not a usable number"
	case "inf", "infinity":
		return 0, n.text + " is not finite"
	}
	x, err := strconv.ParseFloat(n.text, 64)
	mantissa, _, _ := strings.Cut(strings.ToLower(n.text), "e")
	switch {
	case !decimal.MatchString(n.text):
		return 0, n.String() + " is not a number"
	case octal.MatchString(n.text):
		return 0, n.String() + " begins with a 0, which may mean octal"
	case err != nil:
		return 0, n.String() + " is too large"
	case x == 0 && strings.ContainsAny(mantissa, "123456789"):
		return 0, n.String() + " is too small"
	}
	return x, ""
}

// reals is a list of two numbers.
type reals struct {
	p    *[2]float64
	ok   func(float64) bool
	what string
}

func (v reals) set(n *node) string {
	if n.kind != list || len(n.items) != 2 {
		return fmt.Sprintf("%s is not a list of two numbers", n.listed())
	}
	var xs [2]float64
	for i, item := range n.items {
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

func (v ordinals) set(n *node) string {
	if n.kind == scalar && n.text == "auto" {
		*v.p = nil
		return ""
	}
	if n.kind != list || len(n.items) == 0 {
		return fmt.Sprintf("%s is not a list of GPUs", n.listed())
	}
	out := make([]int, len(n.items))
	for i, item := range n.items {
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

func (v counts) set(n *node) string {
	if n.kind != list || len(n.items) == 0 {
		return fmt.Sprintf("%s is not a list of numbers", n.listed())
	}
	out := make([]int, len(n.items))
	for i, item := range n.items {
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

// listed returns String, or for a list its length.
func (n *node) listed() string {
	if n.kind == list {
		return fmt.Sprintf("a list of %d items", len(n.items))
	}
	return n.String()
}

func (v reals) want() string { return v.what }
func (v reals) yaml() string {
	return fmt.Sprintf("[%s, %s]", formatReal(v.p[0]), formatReal(v.p[1]))
}

// choice is one of a few words.
type choice struct {
	p     *string
	names []string
}

func (v choice) set(n *node) string {
	if n.kind != scalar {
		return n.String() + " is not a name"
	}
	if !slices.Contains(v.names, n.text) {
		return n.String() + " is not a valid value" + didYouMean(n.text, v.names)
	}
	*v.p = n.text
	return ""
}

func didYouMean(word string, names []string) string {
	if near := Nearest(word, names); near != "" {
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

func (v dtype) set(n *node) string {
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

func (v text) set(n *node) string {
	if n.kind != scalar {
		return n.String() + " is not text"
	}
	*v.p = n.text
	return ""
}

func (v text) empty() bool  { return *v.p == "" }
func (v text) want() string { return "text, in quotes if it has : or # or brackets" }
func (v text) yaml() string { return Quote(*v.p) }

// day is a date.
type day struct{ p *string }

func (v day) set(n *node) string {
	if _, err := time.Parse(time.DateOnly, n.text); n.kind != scalar || err != nil {
		return n.String() + " is not a date"
	}
	*v.p = n.text
	return ""
}

func (v day) empty() bool  { return *v.p == "" }
func (v day) want() string { return "a date such as 2026-01-31" }
func (v day) yaml() string { return Quote(*v.p) }

// Quote writes a double-quoted YAML string: JSON's is one.
func Quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("config: quoting %q: %v", s, err)) // a string always encodes
	}
	return visible(strings.TrimSuffix(b.String(), "\n"))
}

// visible returns YAML with invisible characters escaped. All texts must be double-quoted.
func visible(yaml string) string {
	var b strings.Builder
	for _, r := range yaml {
		if invisible(r) {
			b.WriteString(escape(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// longestPattern bounds a group's pattern, in bytes.
const longestPattern = 200

// pattern is a pattern of path.Match.
type pattern struct{ p *string }

func (v pattern) set(n *node) string {
	_, err := gopath.Match(n.text, "")
	switch {
	case n.kind != scalar || n.text == "" || err != nil:
		return n.String() + " is not a pattern"
	case len(n.text) > longestPattern:
		return fmt.Sprintf("a pattern of %d bytes, more than %d", len(n.text), longestPattern)
	}
	*v.p = n.text
	return ""
}

func (v pattern) want() string { return `a pattern of names, such as "*.bias"` }
func (v pattern) yaml() string { return Quote(*v.p) }

// measure is the name of a metric.
type measure struct{ p *string }

func (v measure) set(n *node) string {
	if n.kind != scalar || !metricName.MatchString(n.text) || len(n.text) > longestMetric {
		return n.String() + " is not the name of a metric"
	}
	*v.p = n.text
	return ""
}

func (v measure) want() string { return "val_loss, or a metric of the program's network" }
func (v measure) yaml() string { return *v.p }

// texts is a list of strings.
type texts struct{ p *[]string }

func (v texts) set(n *node) string {
	if n.kind == scalar {
		return fmt.Sprintf("%s is not a list", n)
	}
	if n.kind != list {
		return n.String() + " is not a list of texts"
	}
	out := make([]string, len(n.items))
	for i, item := range n.items {
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
		quoted[i] = Quote(s)
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

func (v perLayer) set(n *node) string {
	if n.kind != mapping {
		return n.String() + " is not a mapping"
	}
	if len(n.pairs) > mostPatterns {
		return fmt.Sprintf("%d names are more than %d", len(n.pairs), mostPatterns)
	}
	var out []nn.Pattern
	for _, p := range n.pairs {
		var x float64
		wrong := real{&x, v.ok, v.what}.set(p.value)
		if wrong == "" && len(p.key) > mostPatterns {
			wrong = fmt.Sprintf("a name of %d bytes is longer than %d", len(p.key), mostPatterns)
		}
		pattern, err := nn.NewPattern(p.key, x)
		if wrong == "" && err != nil {
			wrong = err.Error()
		}
		if wrong != "" {
			return p.key + ": " + wrong
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
		pairs = append(pairs, Quote(p.Name)+": "+formatReal(p.Value))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// Longest is the maximum time span, a year.
const Longest = 365 * 24 * time.Hour

// duration is a time span like 30s or 5m.
type duration struct{ p *time.Duration }

func (v duration) set(n *node) string {
	if n.kind != scalar {
		return n.String() + " is not a time span"
	}
	d, err := time.ParseDuration(n.text)
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
