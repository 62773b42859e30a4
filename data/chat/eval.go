package chat

import (
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"zeroth/internal/input"
)

// maxNumber is the largest integer; larger ones would not always be exact.
const maxNumber = 1 << 53

// Text is the result of a rendering: the text, and the byte ranges of its generation blocks,
// which a model is to write.
type Text struct {
	Text      string
	Generated [][2]int // [from, to) in order
}

// Render renders the template with the given variables. In addition a template can use
// raise_exception, namespace, range and dict.
func (t *Template) Render(variables map[string]Value) (out Text, err error) {
	r := &run{text: t.text, out: &strings.Builder{}}
	defer input.Catch(func(e *Error) { out, err = Text{}, e })
	s := &scope{values: maps.Clone(functions)}
	maps.Copy(s.values, variables)
	do(t.body, r, s.inner())
	return Text{r.out.String(), r.generated}, nil
}

// run is one rendering.
type run struct {
	text      string // the template, for errors
	out       *strings.Builder
	generated [][2]int
	captures  int    // enclosing set blocks and macros, whose text is captured
	leave     string // pending break or continue
	work      int
	held      int // bytes of values made
	depth     int // of calls
}

// fail ends the rendering with an error.
func (r *run) fail(at int, format string, args ...any) {
	panic(wrong(r.text, at, format, args...).(*Error))
}

func (r *run) step() { r.spend(0, stepWork) }

// spend adds n to the work done, and fails at the limit.
func (r *run) spend(at, n int) {
	if r.work += n; r.work > maxWork {
		r.fail(at, "the template exceeds the limit of %d steps, or equivalent work on long texts", maxWork/stepWork)
	}
}

// hold counts n bytes of a value to be made, and the work of making it, and fails at the limit.
func (r *run) hold(at, n int) {
	r.spend(at, n)
	if r.held += n; r.held > maxMade {
		r.fail(at, "the values that the template makes need more than %d bytes", maxMade)
	}
}

// look counts the work of reading a whole value.
func (r *run) look(at int, v Value) { r.spend(at, measure(v).weight) }

// made measures a list or map, and fails if it is nested too deeply.
func (r *run) made(at int, v Value) Value {
	switch v.(type) {
	case *List, *Dict:
		if measure(v).depth > maxDepth {
			r.fail(at, "more than %d nested lists and maps", maxDepth)
		}
	}
	return v
}

func (r *run) write(at int, s string) {
	r.spend(at, len(s))
	if r.captures > 0 {
		r.hold(at, len(s))
	}
	if r.out.Len()+len(s) > MaxOutput {
		r.fail(at, "the text is longer than %d bytes", MaxOutput)
	}
	r.out.WriteString(s)
}

// long counts a string of n bytes to be made, and fails if it is too long.
func (r *run) long(at int, n int) {
	if n > MaxOutput {
		r.fail(at, "a value of more than %d bytes", MaxOutput)
	}
	r.hold(at, n)
}

// capture runs statements and returns their output.
func (r *run) capture(body []stmt, s *scope) string {
	out := r.out
	r.out = &strings.Builder{}
	r.captures++
	do(body, r, s)
	text := r.out.String()
	r.captures--
	r.out = out
	return text
}

// scope has the variables of a block, and the enclosing scope.
type scope struct {
	values map[string]Value
	around *scope
}

func (s *scope) inner() *scope { return &scope{map[string]Value{}, s} }

func (s *scope) get(name string) Value {
	for in := s; in != nil; in = in.around {
		if v, ok := in.values[name]; ok {
			return v
		}
	}
	return undefined{name}
}

// assign assigns a value, or its items, to names.
func (r *run) assign(at int, s *scope, names []string, v Value) {
	if len(names) == 1 {
		s.values[names[0]] = v
		return
	}
	parts := r.iterate(at, v)
	if len(parts) != len(names) {
		r.fail(at, "%d values for %d names", len(parts), len(names))
	}
	for i, name := range names {
		s.values[name] = parts[i]
	}
}

// iterate returns the items of a value for a loop.
func (r *run) iterate(at int, v Value) []Value {
	switch v := v.(type) {
	case *List:
		r.spend(at, len(v.Items))
		return v.Items
	case *iterator:
		if v.used {
			r.fail(at, "an iterator is used twice; make it a list")
		}
		v.used = true
		return v.items
	case *Dict:
		return v.keys
	case string:
		n := utf8.RuneCountInString(v)
		r.hold(at, itemSize*n)
		all := make([]Value, 0, n)
		for _, c := range v {
			all = append(all, string(c))
		}
		return all
	case undefined:
		return nil
	}
	r.fail(at, "%s cannot be iterated", describe(v))
	return nil
}

// loop is a for statement.
type loop struct {
	at     int
	names  []string
	over   expr
	filter expr // may be nil
	body   []stmt
	empty  []stmt // the else branch
}

func (l *loop) run(r *run, s *scope) {
	items := r.iterate(l.at, l.over(r, s))
	if l.filter != nil {
		var some []Value
		for _, item := range items {
			r.step()
			in := s.inner()
			if r.assign(l.at, in, l.names, item); truth(l.filter(r, in)) {
				some = append(some, item)
			}
		}
		items = some
	}
	ended := false // whether an iteration completed; as in the reference, else runs if all were left early
	for i := range items {
		r.hold(l.at, stepWork)
		in := s.inner()
		in.values["loop"] = &position{items, i}
		r.assign(l.at, in, l.names, items[i])
		do(l.body, r, in)
		leave := r.leave
		r.leave = ""
		if leave == "break" {
			break
		}
		ended = ended || leave == ""
	}
	if !ended {
		do(l.empty, r, s)
	}
}

// position is the variable loop.
type position struct {
	items []Value
	i     int
}

// get returns one of its attributes.
func (p *position) get(name string) Value {
	i, n := int64(p.i), int64(len(p.items))
	switch name {
	case "index":
		return i + 1
	case "index0":
		return i
	case "revindex":
		return n - i
	case "revindex0":
		return n - i - 1
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return n
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		if i > 0 {
			return p.items[i-1]
		}
	case "nextitem":
		if i+1 < n {
			return p.items[i+1]
		}
	}
	return undefined{name}
}

// macro is a function defined in a template.
type macro struct {
	name    string
	params  []string
	initial []expr // defaults; nil if none
	body    []stmt
	in      *scope
}

func (r *run) callMacro(at int, m *macro, g given) Value {
	if len(g.values) > len(m.params) {
		r.fail(at, "%s takes %d arguments, not %d", m.name, len(m.params), len(g.values))
	}
	in := m.in.inner()
	for i, name := range m.params {
		v, named := g.named.Get(name)
		switch {
		case i < len(g.values):
			v = g.values[i]
		case named:
		case m.initial[i] != nil:
			v = m.initial[i](r, in)
		default:
			v = undefined{name}
		}
		in.values[name] = v
	}
	for _, k := range g.named.keys {
		if !slices.Contains(m.params, k.(string)) {
			r.fail(at, "%s has no parameter %s", m.name, k)
		}
	}
	return r.capture(m.body, in)
}

// function is a built-in that a template can call.
type function func(c *caller, g given) Value

// caller identifies a call of a function, a filter or a test.
type caller struct {
	r    *run
	at   int
	name string
}

func (c *caller) fail(format string, args ...any) { c.r.fail(c.at, c.name+": "+format, args...) }

func (r *run) call(at int, f Value, g given) Value {
	r.step()
	if r.depth++; r.depth > maxDepth {
		r.fail(at, "more than %d nested calls", maxDepth)
	}
	defer func() { r.depth-- }()
	switch f := f.(type) {
	case *macro:
		return r.callMacro(at, f, g)
	case function:
		r.lookAll(at, g)
		return r.made(at, f(&caller{r, at, "the call"}, g))
	case Function:
		var values []Value
		values = append(values, g.values...)
		v, err := f(values...)
		if err != nil {
			r.fail(at, "%v", err)
		}
		return v
	}
	r.fail(at, "%s cannot be called", describe(f))
	return nil
}

// lookAll counts the work of reading all arguments.
func (r *run) lookAll(at int, g given) {
	for _, v := range g.values {
		r.look(at, v)
	}
	for _, k := range g.named.keys {
		r.look(at, g.named.at(k))
	}
}

// Function is a variable that a template can call.
type Function func(arguments ...Value) (Value, error)

// functions are available to every template.
var functions = map[string]Value{
	"raise_exception": function(func(c *caller, g given) Value {
		text := "the template raised an exception"
		if len(g.values) > 0 {
			text = quoted(g.values[0])
		}
		c.r.fail(c.at, "the template raised: %.1000s", text)
		return nil
	}),
	"namespace": function(func(c *caller, g given) Value {
		s := &space{}
		c.r.hold(c.at, entrySize*(1+len(g.named.keys)))
		for _, k := range g.named.keys {
			s.Set(k, g.named.at(k))
		}
		if len(g.values) > 0 {
			c.fail("a namespace takes only named arguments")
		}
		return s
	}),
	"dict": function(func(c *caller, g given) Value {
		if len(g.values) > 0 {
			c.fail("a dict takes only named arguments")
		}
		c.r.hold(c.at, entrySize*(1+len(g.named.keys)))
		return &g.named
	}),
	"range": function(func(c *caller, g given) Value {
		from, to, by := int64(0), int64(0), int64(1)
		var n []int64
		for _, v := range g.values {
			x, ok := v.(int64)
			if !ok {
				c.fail("a range of %s", describe(v))
			}
			n = append(n, x)
		}
		switch len(n) {
		case 1:
			to = n[0]
		case 2:
			from, to = n[0], n[1]
		case 3:
			from, to, by = n[0], n[1], n[2]
		default:
			c.fail("a range of %d numbers", len(n))
		}
		l := &List{kind: span}
		for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
			c.r.hold(c.at, itemSize)
			l.Items = append(l.Items, i)
		}
		return l
	}),
}

// unknown lists Python's methods that methods lacks, by kind of value. Even without a call,
// templates resolve them before keys.
var unknown = map[string][]string{
	"a map":    strings.Fields("clear copy fromkeys pop popitem setdefault update"),
	"a list":   strings.Fields("append clear copy count extend index insert pop remove reverse sort"),
	"a tuple":  strings.Fields("count index"),
	"a range":  strings.Fields("count index start step stop"),
	"a string": strings.Fields("capitalize casefold center count encode expandtabs format format_map index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans partition removeprefix removesuffix rfind rindex rjust rpartition rsplit splitlines swapcase title translate zfill"),
	"a number": strings.Fields("as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator real to_bytes"),
}

// attribute evaluates v.name: first a method, then a key.
func (r *run) attribute(at int, v Value, name string) Value {
	if slices.Contains(unknown[describe(v)], name) {
		r.fail(at, "%s of %s, a method in Python, is not supported; a key is read with brackets", name, describe(v))
	}
	if m, ok := methods[name]; ok && m.applies(v) {
		return function(func(c *caller, g given) Value {
			c.name = name
			c.r.look(c.at, v)
			return m.do(c, v, g)
		})
	}
	switch v := v.(type) {
	case *Dict:
		if x, ok := v.Get(name); ok {
			return x
		}
	case *space:
		if x, ok := v.Get(name); ok {
			return x
		}
	case *position:
		return v.get(name)
	case undefined:
		r.fail(at, "%s is not defined, so it has no %s", v.what, name)
	}
	return undefined{name}
}

// item evaluates v[key].
func (r *run) item(at int, v, key Value) Value {
	r.step()
	r.look(at, key)
	switch v := v.(type) {
	case *List, string:
		l, isList := v.(*List)
		if isList && l.kind == view {
			break
		}
		_, i, whole, _ := number(key)
		if !whole {
			if s, ok := key.(string); ok {
				return r.attribute(at, v, s)
			}
			return undefined{quoted(key)}
		}
		size := r.size(at, v)
		if i < 0 {
			i += size
		}
		switch {
		case i < 0 || i >= size:
			return undefined{"item " + quoted(key)}
		case isList:
			return l.Items[i]
		}
		return r.characters(at, v.(string), i, i+1)
	case *Dict:
		if x, ok := v.Get(key); ok {
			return x
		}
		if s, ok := key.(string); ok {
			return r.attribute(at, v, s)
		}
	case *space:
		if x, ok := v.Get(key); ok {
			return x
		}
	case *position:
		if s, ok := key.(string); ok {
			return v.get(s)
		}
	case undefined:
		r.fail(at, "%s is not defined, so it has no item %s", v.what, quoted(key))
	}
	return undefined{"item " + quoted(key)}
}

// size returns the number of items or characters of a list or string.
func (r *run) size(at int, v Value) int64 {
	if l, ok := v.(*List); ok {
		return int64(len(l.Items))
	}
	r.spend(at, len(v.(string)))
	return int64(utf8.RuneCountInString(v.(string)))
}

// characters returns characters [from, to) of s.
func (r *run) characters(at int, s string, from, to int64) string {
	r.spend(at, len(s))
	begin, end, n := len(s), len(s), int64(0)
	for i := range s {
		if n == from {
			begin = i
		}
		if n == to {
			end = i
			break
		}
		n++
	}
	return s[min(begin, end):end]
}

// slice evaluates v[a:b:c].
func (r *run) slice(at int, v Value, bounds [3]Value) Value {
	var n [3]int64
	for i, b := range bounds {
		x, ok := b.(int64)
		if !ok && b != nil {
			r.fail(at, "a slice by %s", describe(b))
		}
		n[i] = x
	}
	text, isString := v.(string)
	l, isList := v.(*List)
	if !isString && (!isList || l.kind == view) {
		r.fail(at, "a slice of %s", describe(v))
	}
	size, by := r.size(at, v), n[2]
	if bounds[2] == nil {
		by = 1
	}
	if by == 0 {
		r.fail(at, "a slice by steps of 0")
	}
	low, high := int64(0), size // bounds of indices as in Python
	if by < 0 {
		low, high = -1, size-1
	}
	clamp := func(i int, initial int64) int64 {
		if bounds[i] == nil {
			return initial
		}
		x := n[i]
		if x < 0 {
			x += size
		}
		return max(low, min(x, high))
	}
	from, to := low, high
	if by < 0 {
		from, to = high, low
	}
	from, to = clamp(0, from), clamp(1, to)
	if isString && by == 1 {
		return r.characters(at, text, from, max(from, to))
	}
	items := r.iterate(at, v)
	var some []Value
	for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
		r.hold(at, itemSize)
		some = append(some, items[i])
		if i > math.MaxInt64-max(by, 0) || i < math.MinInt64-min(by, 0) {
			break
		}
	}
	if !isString {
		return &List{Items: some, kind: l.kind}
	}
	var b strings.Builder
	for _, c := range some {
		b.WriteString(c.(string))
	}
	return b.String()
}
