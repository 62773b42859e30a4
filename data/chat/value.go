package chat

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"zeroth/input/jsonread"
)

// Value is one of: nil (none), bool, int64, float64, string, *List, *Dict, undefined,
// and what a template makes: *iterator, *space, *macro, method.
type Value = any

// List is a list; templates change none. One that was made is of one rendering.
type List struct {
	Items []Value
	kind  sequence
	size
}

// sequence is what a List is in Python, where some differ in how they print and in
// what may be done with them.
type sequence byte

const (
	list sequence = iota
	tuple
	span // a range
	view // of a map's keys, values or items
)

// iterator is what some filters make of a list: it counts as true even if it is
// empty, and it can be gone through once.
type iterator struct {
	items []Value
	used  bool
}

// size is what a list or map is with all that is in it, once it was measured.
type size struct{ weight, depth int } // bytes, about; levels

// mostWeight is where weights stop: parts may be there many times over.
const mostWeight = 1 << 40

// measure is the size of a value, of whose parts the sizes are known or small.
func measure(v Value) size {
	parts := func(own *size, each func(add func(Value))) size {
		if own.weight == 0 {
			s := size{1, 1}
			each(func(v Value) {
				p := measure(v)
				s.weight, s.depth = min(s.weight+p.weight, mostWeight), max(s.depth, p.depth+1)
			})
			*own = s
		}
		return *own
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
				add(v.values[k])
			}
		})
	}
	return size{1, 0}
}

// Dict is a map in the order of its keys.
type Dict struct {
	keys   []Value
	values map[Value]Value
	size
}

// Set sets a key, a string or a number.
func (d *Dict) Set(key, value Value) {
	if d.values == nil {
		d.values = map[Value]Value{}
	}
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
}

// Get is the value of a key.
func (d *Dict) Get(key Value) (Value, bool) {
	switch key.(type) {
	case string, int64, bool, nil, float64:
		v, ok := d.values[key]
		return v, ok
	}
	return nil, false
}

// undefined is what has no value; what is its name.
type undefined struct{ what string }

// space is a namespace: set changes its parts from within a loop.
type space struct{ Dict }

// FromJSON is a value of JSON.
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

// truth is whether a value counts as true.
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

// number is a value as one; whole where it is not a float.
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

// equal is Python's ==.
func equal(a, b Value) bool {
	if x, _, _, ok := number(a); ok {
		y, _, _, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case *List:
		b, ok := b.(*List)
		if !ok || a.kind != b.kind || len(a.Items) != len(b.Items) {
			return false
		}
		for i := range a.Items {
			if !equal(a.Items[i], b.Items[i]) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, k := range a.keys {
			if y, ok := b.Get(k); !ok || !equal(a.values[k], y) {
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

// strange tells whether a value, or a part of one, is printed by the reference in a
// way that is no text of a chat: by its address, most of them.
func strange(v Value) bool {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, undefined:
		return false
	case *List:
		return v.kind == span || v.kind == view || slices.ContainsFunc(v.Items, strange)
	case *Dict:
		return slices.ContainsFunc(v.keys, func(k Value) bool { return strange(v.values[k]) })
	}
	return true
}

// printed is str(v) of a value that is not strange.
func (r *run) printed(at int, v Value) string {
	r.look(at, v)
	if strange(v) {
		r.fail(at, "%s is printed, or has such a part; make it a list", describe(v))
	}
	return printed(v)
}

// printed is str(v).
func printed(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	return repr(v)
}

// repr is repr(v).
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
			parts[i] = repr(k) + ": " + repr(v.values[k])
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

// toJSON writes a value as json.dumps does with ensure_ascii=False; indent is the
// spaces of a level, -1: all in one line.
func toJSON(b *strings.Builder, v Value, indent, level int) error {
	comma, line := ", ", func(int) {}
	if indent >= 0 {
		comma = ","
		line = func(level int) { b.WriteString("\n" + strings.Repeat(" ", indent*level)) }
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
			return fmt.Errorf("%s is no JSON", describe(v))
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
		return fmt.Errorf("a namespace is no JSON")
	default:
		return fmt.Errorf("%s is no JSON", describe(v))
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
			return fmt.Errorf("the key %s of an object is no string", repr(k))
		}
		jsonString(b, key)
		b.WriteString(": ")
		if err := toJSON(b, d.values[k], indent, level+1); err != nil {
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

// describe is a value's kind, for errors.
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
