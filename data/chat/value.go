package chat

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"zeroth/internal/input/jsonread"
)

// Value is a nil (none), bool, int64, float64, string, *List, *Dict or undefined, or a value
// created by a template: *iterator, *space, *macro, function.
type Value = any

// List is a list. Templates never change one; a list they create belongs to one rendering.
type List struct {
	Items []Value
	kind  sequence
	size
}

// sequence is the type of a List in Python, which affects how it prints and the operations it
// supports.
type sequence byte

const (
	list sequence = iota
	tuple
	span // a range
	view // of a map's keys, values or items
)

// iterator is the result of some filters: it is true even if empty, and can be iterated once.
type iterator struct {
	items []Value
	used  bool
}

// size is the cached size of a list or map with everything in it; 0 until measured.
type size struct{ weight, depth int } // approximate bytes; levels

// mostWeight caps weights, because shared parts may count many times.
const mostWeight = 1 << 40

// measure returns the size of a value, using the cached sizes of its parts.
func measure(v Value) size {
	parts := func(cache *size, each func(add func(Value))) size {
		if cache.weight == 0 {
			s := size{1, 1}
			each(func(v Value) {
				p := measure(v)
				s.weight, s.depth = min(s.weight+p.weight, mostWeight), max(s.depth, p.depth+1)
			})
			*cache = s
		}
		return *cache
	}
	switch v := v.(type) {
	case string:
		return size{1 + len(v), 0}
	case *List:
		return parts(&v.size, func(add func(Value)) {
			for _, x := range v.Items {
				add(x)
			}
		})
	case *Dict:
		return parts(&v.size, func(add func(Value)) {
			for _, k := range v.keys {
				add(k)
				add(v.at(k))
			}
		})
	}
	return size{24, 0} // the digits of a number
}

// Dict is a map that keeps the order of its keys.
type Dict struct {
	keys   []Value
	values map[Value]Value
	size
}

// Set sets the value of a key, which must be a string or a number.
func (d *Dict) Set(key, value Value) {
	if d.values == nil {
		d.values = map[Value]Value{}
	}
	h := hashed(key)
	if _, ok := d.values[h]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[h] = value
}

// hashed returns the same value for equal keys: in Python, 1, 1.0 and True are one.
func hashed(key Value) Value {
	f, n, whole, ok := number(key)
	switch {
	case ok && whole:
		return n
	case ok && f == math.Trunc(f) && math.Abs(f) <= maxNumber:
		return int64(f)
	}
	return key
}

// at returns the value of one of the keys.
func (d *Dict) at(key Value) Value { return d.values[hashed(key)] }

// Get returns the value of a key.
func (d *Dict) Get(key Value) (Value, bool) {
	switch key.(type) {
	case string, int64, bool, nil, float64:
		v, ok := d.values[hashed(key)]
		return v, ok
	}
	return nil, false
}

// All iterates over the keys that are strings, and their values.
func (d *Dict) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for _, k := range d.keys {
			if s, ok := k.(string); ok && !yield(s, d.at(k)) {
				return
			}
		}
	}
}

// undefined is a missing value; what is its name in errors.
type undefined struct{ what string }

// space is a namespace, whose parts can be set from within a loop.
type space struct{ Dict }

// FromJSON converts a JSON value.
func FromJSON(v jsonread.Value) (Value, error) {
	switch v.Kind {
	case jsonread.String:
		return v.Text, nil
	case jsonread.Bool:
		return v.True, nil
	case jsonread.Number:
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			return n, nil
		}
		f, err := strconv.ParseFloat(v.Text, 64)
		if err != nil || !strings.ContainsAny(v.Text, ".eE") {
			return nil, fmt.Errorf("the number %.40s is too large", v.Text)
		}
		return f, nil
	case jsonread.Array:
		l := &List{}
		for _, item := range v.Items {
			x, err := FromJSON(item)
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items, x)
		}
		return l, nil
	case jsonread.Object:
		d := &Dict{}
		for _, p := range v.Pairs {
			x, err := FromJSON(p.Value)
			if err != nil {
				return nil, err
			}
			d.Set(p.Key, x)
		}
		return d, nil
	}
	return nil, nil
}

// truth reports whether a value is true in Python.
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// number returns a value as a number; whole is false for a float.
func number(v Value) (f float64, n int64, whole, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			n = 1
		}
		return float64(n), n, true, true
	case int64:
		return float64(v), v, true, true
	case float64:
		return v, 0, false, true
	}
	return 0, 0, false, false
}

// equal implements Python's ==.
func equal(a, b Value) bool {
	if x, n, whole, ok := number(a); ok {
		y, m, whole2, ok := number(b)
		if whole && whole2 { // a float64 is not exact above 2^53
			return ok && n == m
		}
		return ok && x == y
	}
	switch a := a.(type) {
	case *List:
		b, ok := b.(*List)
		return ok && a.kind == b.kind && slices.EqualFunc(a.Items, b.Items, equal)
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, k := range a.keys {
			if y, ok := b.Get(k); !ok || !equal(a.at(k), y) {
				return false
			}
		}
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string, nil:
		return a == b
	}
	return false
}

// strange reports whether the reference prints a value, or a part of it, in a form that does not
// belong in a chat, mostly with an address.
func strange(v Value) bool {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, undefined:
		return false
	case *List:
		return v.kind == span || v.kind == view || slices.ContainsFunc(v.Items, strange)
	case *Dict:
		return slices.ContainsFunc(v.keys, func(k Value) bool { return strange(v.at(k)) })
	}
	return true
}

// brief fails if the text of a value may be much longer than MaxOutput.
func (r *run) brief(at int, v Value) {
	if _, whole := v.(string); !whole && measure(v).weight > MaxOutput/4 {
		r.fail(at, "printing a value of more than %d bytes", MaxOutput/4)
	}
}

// printed returns str(v), or fails if v is strange.
func (r *run) printed(at int, v Value) string {
	r.look(at, v)
	r.brief(at, v)
	if strange(v) {
		r.fail(at, "cannot print %s that is or contains a range, an iterator, a part of a map or a function; make it a list", describe(v))
	}
	text := printed(v)
	if _, whole := v.(string); !whole {
		r.long(at, len(text))
	}
	return text
}

// printed returns str(v).
func printed(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	return repr(v)
}

// repr returns Python's repr(v).
func repr(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return reprFloat(v)
	case string:
		return reprString(v)
	case *List:
		parts := make([]string, len(v.Items))
		for i, x := range v.Items {
			parts[i] = repr(x)
		}
		switch all := strings.Join(parts, ", "); {
		case v.kind != tuple:
			return "[" + all + "]"
		case len(parts) == 1:
			return "(" + all + ",)"
		default:
			return "(" + all + ")"
		}
	case *Dict:
		parts := make([]string, len(v.keys))
		for i, k := range v.keys {
			parts[i] = repr(k) + ": " + repr(v.at(k))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case undefined:
		return "Undefined"
	}
	return fmt.Sprintf("<%T>", v)
}

func reprFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f != f:
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		s := strconv.FormatFloat(f, 'e', -1, 64)
		return s
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func reprString(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

// toJSON writes a value like json.dumps with ensure_ascii=False; indent is the number of spaces
// per level, or -1 for a single line.
func toJSON(b *strings.Builder, v Value, indent, level int) error {
	comma, line := ", ", func(int) {}
	if indent >= 0 {
		comma = ","
		line = func(level int) { b.WriteString("\n" + strings.Repeat(" ", indent*level)) }
	}
	if b.Len() > MaxOutput {
		return fmt.Errorf("its text has more than %d bytes", MaxOutput)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(strings.NewReplacer("inf", "Infinity", "nan", "NaN").Replace(reprFloat(v)))
	case string:
		jsonString(b, v)
	case *List:
		if v.kind == span || v.kind == view {
			return fmt.Errorf("%s is not valid in JSON", describe(v))
		}
		if len(v.Items) == 0 {
			b.WriteString("[]")
			return nil
		}
		b.WriteByte('[')
		for i, x := range v.Items {
			if i > 0 {
				b.WriteString(comma)
			}
			line(level + 1)
			if err := toJSON(b, x, indent, level+1); err != nil {
				return err
			}
		}
		line(level)
		b.WriteByte(']')
	case *Dict:
		return dictJSON(b, v, indent, level, comma, line)
	case *space:
		return fmt.Errorf("a namespace is not valid in JSON")
	default:
		return fmt.Errorf("%s is not valid in JSON", describe(v))
	}
	return nil
}

func dictJSON(b *strings.Builder, d *Dict, indent, level int, comma string, line func(int)) error {
	if len(d.keys) == 0 {
		b.WriteString("{}")
		return nil
	}
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(comma)
		}
		line(level + 1)
		key, ok := k.(string)
		if !ok {
			return fmt.Errorf("the key %s of an object is not a string", repr(k))
		}
		jsonString(b, key)
		b.WriteString(": ")
		if err := toJSON(b, d.at(k), indent, level+1); err != nil {
			return err
		}
	}
	line(level)
	b.WriteByte('}')
	return nil
}

func jsonString(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch i := strings.IndexRune("\"\\\n\r\t\b\f", r); {
		case i >= 0:
			b.WriteByte('\\')
			b.WriteByte(`"\nrtbf`[i])
		case r < ' ':
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// describe names the kind of a value, for errors.
func describe(v Value) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case string:
		return "a string"
	case *List:
		return [...]string{list: "a list", tuple: "a tuple", span: "a range", view: "a part of a map"}[v.kind]
	case *iterator:
		return "an iterator"
	case *Dict:
		return "a map"
	case undefined:
		return v.what + ", which is not defined,"
	}
	return "a function"
}

// quoted returns str(v) for a message, or a description of a value that may be large.
func quoted(v Value) string {
	const most = 1000 // bytes
	if s, ok := v.(string); ok && len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	} else if !ok && measure(v).weight > most {
		return describe(v)
	}
	return printed(v)
}
