// Package jsonread reads JSON as it is written: objects in their order, each key
// once, strings in UTF-8 without half a surrogate pair, nothing before or behind.
//
// A Reader is pulled: Object, Array and Fields call back for every part, which has
// to read its own value, so that a vocabulary of a million tokens goes into a map
// without a tree between. Value makes the tree where one is wanted.
//
// What never enters: files, and what the JSON means.
package jsonread

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of what is read. The length of the text is its owner's to limit.
const (
	MaxDepth  = 64      // objects and arrays within each other
	MaxValues = 1 << 20 // of one tree
)

// Reader reads one text from its beginning to its end.
type Reader struct {
	text  []byte
	at    int
	depth int
	made  int // values of trees
}

// New is a reader of a text, which must not change while it is read.
func New(text []byte) *Reader { return &Reader{text: text} }

// Fork is a reader of the same text that goes on from here, apart from this one.
func (r *Reader) Fork() *Reader {
	again := *r
	return &again
}

// Error is what is wrong with a text, and where.
type Error struct {
	Line   int // from 1
	Offset int // in bytes
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Wrong is an error at the place that was read last.
func (r *Reader) Wrong(format string, args ...any) error {
	return r.place(fmt.Errorf(format, args...))
}

// place says where an error is, if it does not say so itself.
func (r *Reader) place(err error) error {
	if e := (*Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	at := min(r.at, len(r.text))
	return &Error{1 + bytes.Count(r.text[:at], []byte("\n")), at, err}
}

// Kind is the kind of a value.
type Kind byte

// The kinds, by the byte that begins them.
const (
	Null   Kind = 'n'
	Bool   Kind = 't'
	Number Kind = '0'
	String Kind = '"'
	Array  Kind = '['
	Object Kind = '{'
	None   Kind = 0 // the end of the text, or no JSON
)

var names = map[Kind]string{Null: "null", Bool: "true or false", Number: "a number", String: "a string", Array: "an array", Object: "an object", None: "no JSON"}

func (k Kind) String() string { return names[k] }

// Next is the kind of the value that comes next.
func (r *Reader) Next() Kind {
	switch c := r.peek(); {
	case c == 'n' || c == '"' || c == '[' || c == '{':
		return Kind(c)
	case c == 't' || c == 'f':
		return Bool
	case c == '-' || c >= '0' && c <= '9':
		return Number
	}
	return None
}

// peek is the next byte that is not white space; 0 at the end.
func (r *Reader) peek() byte {
	for ; r.at < len(r.text); r.at++ {
		if c := r.text[r.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// want refuses a value of another kind.
func (r *Reader) want(k Kind) error {
	if is := r.Next(); is != k {
		return r.Wrong("%v where %v is wanted", is, k)
	}
	return nil
}

// take reads one byte, if it is the next.
func (r *Reader) take(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.at++
	return true
}

// End refuses anything but white space behind what was read.
func (r *Reader) End() error {
	if r.peek(); r.at < len(r.text) {
		return r.Wrong("something follows the value: %.20q", r.text[r.at:])
	}
	return nil
}

// Object calls field for every key, which reads the value. Keys may repeat.
func (r *Reader) Object(field func(key string) error) error {
	if err := r.want(Object); err != nil {
		return err
	}
	return r.list('}', func(int) error {
		key, err := r.String()
		if err != nil {
			return err
		}
		if !r.take(':') {
			return r.Wrong("no : after the key %.40q", key)
		}
		return field(key)
	})
}

// Fields reads an object that has no keys but those of a map, none twice. A nil
// function passes over the value.
func (r *Reader) Fields(known map[string]func() error) error {
	seen := map[string]bool{}
	return r.Object(func(key string) error {
		read, ok := known[key]
		switch {
		case !ok:
			return r.Wrong("the key %.40q is not known", key)
		case seen[key]:
			return r.Wrong("the key %.40q is there twice", key)
		}
		seen[key] = true
		if read == nil {
			_, err := r.Raw()
			return err
		}
		return read()
	})
}

// Array calls item for every item, which reads it.
func (r *Reader) Array(item func(i int) error) error {
	if err := r.want(Array); err != nil {
		return err
	}
	return r.list(']', item)
}

// list reads what is between the bracket that comes next and its end.
func (r *Reader) list(end byte, item func(i int) error) error {
	r.at++
	if r.depth++; r.depth > MaxDepth {
		return r.Wrong("more than %d objects and arrays within each other", MaxDepth)
	}
	defer func() { r.depth-- }()
	if r.take(end) {
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return r.place(err)
		}
		if r.take(end) {
			return nil
		}
		if !r.take(',') {
			return r.Wrong("no , and no %c after item %d", end, i+1)
		}
	}
}

// Bool reads true or false.
func (r *Reader) Bool() (bool, error) {
	if err := r.want(Bool); err != nil {
		return false, err
	}
	if r.literal("true") {
		return true, nil
	}
	if r.literal("false") {
		return false, nil
	}
	return false, r.Wrong("no JSON: %.10q", r.text[r.at:])
}

// Null reads null, if it comes next.
func (r *Reader) Null() bool { return r.Next() == Null && r.literal("null") }

func (r *Reader) literal(s string) bool {
	if !bytes.HasPrefix(r.text[r.at:], []byte(s)) {
		return false
	}
	r.at += len(s)
	return true
}

// Number reads a number as it is written.
func (r *Reader) Number() (string, error) {
	if err := r.want(Number); err != nil {
		return "", err
	}
	from := r.at
	r.literal("-")
	if !r.literal("0") && !r.digits() || r.literal(".") && !r.digits() {
		return "", r.Wrong("no number: %.20q", r.text[from:])
	}
	if r.literal("e") || r.literal("E") {
		if !r.literal("-") {
			r.literal("+")
		}
		if !r.digits() {
			return "", r.Wrong("no number: %.20q", r.text[from:])
		}
	}
	return string(r.text[from:r.at]), nil
}

// digits reads at least one.
func (r *Reader) digits() bool {
	from := r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
		r.at++
	}
	return r.at > from
}

// Int reads a whole number from 0 to most.
func (r *Reader) Int(most int) (int, error) {
	s, err := r.Number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, r.Wrong("%.20s where a number from 0 to %d is wanted", s, most)
	}
	return n, nil
}

// String reads a string.
func (r *Reader) String() (string, error) {
	if err := r.want(String); err != nil {
		return "", err
	}
	r.at++
	from := r.at
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c == '"':
			s := r.text[from:r.at]
			if !utf8.Valid(s) {
				return "", r.Wrong("a string that is not UTF-8: %.40q", s)
			}
			r.at++
			return string(s), nil
		case c == '\\':
			return r.escaped(from)
		case c < ' ':
			return "", r.Wrong("the character %q in a string; it is written as an escape", c)
		}
		r.at++
	}
	return "", r.Wrong("a string without an end")
}

// escaped goes on with a string that began at from, at its first backslash.
func (r *Reader) escaped(from int) (string, error) {
	b := append([]byte(nil), r.text[from:r.at]...)
	for r.at < len(r.text) {
		c := r.text[r.at]
		switch {
		case c == '"':
			if !utf8.Valid(b) {
				return "", r.Wrong("a string that is not UTF-8: %.40q", b)
			}
			r.at++
			return string(b), nil
		case c < ' ':
			return "", r.Wrong("the character %q in a string; it is written as an escape", c)
		case c != '\\':
			b = append(b, c)
			r.at++
			continue
		}
		r.at++
		var err error
		if b, err = r.escape(b); err != nil {
			return "", err
		}
	}
	return "", r.Wrong("a string without an end")
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape adds the character of an escape, behind its backslash.
func (r *Reader) escape(b []byte) ([]byte, error) {
	if r.at == len(r.text) {
		return nil, r.Wrong("a string without an end")
	}
	c := r.text[r.at]
	r.at++
	if plain, ok := escapes[c]; ok {
		return append(b, plain), nil
	}
	if c != 'u' {
		return nil, r.Wrong(`no escape: \%c`, c)
	}
	first, err := r.hex()
	if err != nil || !utf16.IsSurrogate(first) {
		return utf8.AppendRune(b, first), err
	}
	if r.literal(`\u`) {
		second, err := r.hex()
		if err != nil {
			return nil, err
		}
		if both := utf16.DecodeRune(first, second); both != utf8.RuneError {
			return utf8.AppendRune(b, both), nil
		}
	}
	return nil, r.Wrong(`\u%04x is half a character; its other half is missing`, first)
}

// hex reads four hexadecimal digits.
func (r *Reader) hex() (rune, error) {
	if r.at+4 > len(r.text) {
		return 0, r.Wrong("a string without an end")
	}
	x, err := strconv.ParseUint(string(r.text[r.at:r.at+4]), 16, 16)
	if err != nil {
		return 0, r.Wrong(`no escape: \u%q`, r.text[r.at:r.at+4])
	}
	r.at += 4
	return rune(x), nil
}

// Raw reads a value and is the text of it.
func (r *Reader) Raw() ([]byte, error) {
	r.peek()
	from := r.at
	if err := r.skip(); err != nil {
		return nil, err
	}
	return r.text[from:r.at], nil
}

func (r *Reader) skip() (err error) {
	switch k := r.Next(); k {
	case Object:
		return r.Object(func(string) error { return r.skip() })
	case Array:
		return r.Array(func(int) error { return r.skip() })
	case String:
		_, err = r.String()
	case Number:
		_, err = r.Number()
	case Bool:
		_, err = r.Bool()
	default:
		if !r.Null() {
			err = r.Wrong("no JSON: %.10q", r.text[r.at:])
		}
	}
	return err
}
