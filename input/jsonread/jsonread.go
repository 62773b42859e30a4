// Package jsonread reads JSON that may come from anybody: objects in their order, each
// key once, strings in UTF-8 without half a surrogate pair, nothing before or behind.
// Every error says where it is.
//
// A Reader is pulled: Object, Members, Fields and Array call back for every part, which
// has to read its own value. So a vocabulary of a million tokens goes into a map without
// a tree between, and a caller checks each item of a list before the next is looked at:
// sixty million bytes of "{}," do not become gigabytes of structs first. Fill reads into
// a struct, whose keys must be known; Value makes a tree.
//
// What never enters: files, and what the JSON means.
package jsonread

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of what is read. The length of the text is its owner's to limit, before it is
// in memory.
const (
	MaxDepth  = 64      // objects and arrays within each other
	MaxValues = 1 << 20 // of one tree
)

// Reader reads one text from its beginning to its end. After an error it is of no
// further use.
type Reader struct {
	text  []byte
	at    int
	token int // where the token begins that was looked at last
	depth int
	made  int      // values of trees
	keys  []string // of the objects around, fewKeys of each at most
}

// New is a reader of a text, which must not change while it is read.
func New(text []byte) *Reader { return &Reader{text: text} }

// All reads a text that is one value, read by value, with only white space around it.
func All(text []byte, value func(*Reader) error) error {
	r := New(text)
	if err := value(r); err != nil {
		return r.place(err)
	}
	return r.End()
}

// Fork is a reader of the same text that goes on from here, apart from this one.
func (r *Reader) Fork() *Reader {
	again := *r
	again.keys = slices.Clone(r.keys)
	return &again
}

// Error is what is wrong with a text, and where.
type Error struct {
	Line, Column int // from 1; columns are characters
	Offset       int // in bytes
	Err          error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d, column %d: %v", e.Line, e.Column, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// within is an error of a value within others: links[0].ranks.
type within struct {
	path string
	error
}

func (e *within) Error() string { return e.path + ": " + e.error.Error() }
func (e *within) Unwrap() error { return e.error }

// In adds to an error the key whose value it is about.
func (r *Reader) In(key string, err error) error {
	if err == nil {
		return nil
	}
	return r.in(fmt.Sprintf("%.80q", key), err)
}

func (r *Reader) in(name string, err error) error {
	if err == nil {
		return nil
	}
	err = r.place(err)
	if e := (*Error)(nil); errors.As(err, &e) {
		e.in(name)
	}
	return err
}

// in adds what the value of an error is in.
func (e *Error) in(name string) {
	in, ok := e.Err.(*within)
	switch {
	case !ok:
		e.Err = &within{name, e.Err}
	case in.path[0] == '[':
		in.path = name + in.path
	default:
		in.path = name + "." + in.path
	}
}

// Wrong is an error at the token that was looked at last.
func (r *Reader) Wrong(format string, args ...any) error {
	return r.place(fmt.Errorf(format, args...))
}

// place says where an error is, if it does not say so itself.
func (r *Reader) place(err error) error {
	if e := (*Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	before := r.text[:r.token]
	line := before[1+bytes.LastIndexByte(before, '\n'):]
	return &Error{1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(line), r.token, err}
}

// no is the error of a text that is no JSON where it was looked at last.
func (r *Reader) no(want string) error {
	switch rest := r.text[r.token:]; {
	case len(rest) == 0:
		return r.Wrong("it ends where %s should be", want)
	case r.token == 0 && bytes.HasPrefix(rest, []byte("\xef\xbb\xbf")):
		return r.Wrong("it begins with a byte order mark, which JSON has none of: save it as plain UTF-8")
	default:
		return r.Wrong("%.20q where %s should be", rest[:min(len(rest), 20)], want)
	}
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
			r.token = r.at
			return c
		}
	}
	r.token = r.at
	return 0
}

// want refuses a value of another kind.
func (r *Reader) want(k Kind) error {
	switch is := r.Next(); is {
	case k:
		return nil
	case None:
		return r.no(k.String())
	default:
		return r.Wrong("%v where %v is wanted", is, k)
	}
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
		return r.Wrong("something follows the value: %.20q", r.text[r.at:min(len(r.text), r.at+20)])
	}
	return nil
}

// fewKeys is up to how many keys of an object are compared with each other one by one.
const fewKeys = 8

// Object calls field for every key, which reads the value. No key comes twice.
func (r *Reader) Object(field func(key string) error) error { return r.object(nil, field) }

// object is Object, which makes no string of a key that is among names.
func (r *Reader) object(names []string, field func(key string) error) error {
	if err := r.want(Object); err != nil {
		return err
	}
	from := len(r.keys)
	var many map[string]bool
	err := r.list('}', func(int) error {
		chars, err := r.chars(math.MaxInt)
		if err != nil {
			return err
		}
		var key string
		if i := slices.IndexFunc(names, func(name string) bool { return name == string(chars) }); i >= 0 {
			key = names[i]
		} else {
			key = string(chars)
		}
		if many[key] || slices.Contains(r.keys[from:], key) {
			return r.Wrong("the key %.40q is there twice", key)
		}
		switch {
		case many != nil:
			many[key] = true
		case len(r.keys)-from < fewKeys:
			r.keys = append(r.keys, key)
		default:
			many = map[string]bool{key: true}
		}
		at := r.token
		if !r.take(':') {
			return r.no("the : behind a key")
		}
		r.token = at
		return field(key)
	})
	r.keys = r.keys[:from]
	return err
}

// Members reads an object that has no keys but these. Errors say of which key they are.
func (r *Reader) Members(names []string, member func(name string) error) error {
	return r.object(names, func(key string) error {
		if !slices.Contains(names, key) {
			return r.place(unknown(key, names))
		}
		return r.in(key, member(key))
	})
}

// unknown is the error of a key that is not among these.
func unknown(key string, names []string) error {
	want := "want " + strings.Join(names, ", ")
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(key, name) }); i >= 0 {
		want = fmt.Sprintf("did you mean %q?", names[i])
	}
	return &within{fmt.Sprintf("%.40q", key), errors.New("unknown key; " + want)}
}

// Fields is Members of a map's keys, by the functions that read their values. A nil
// function passes over the value.
func (r *Reader) Fields(known map[string]func() error) error {
	return r.Members(slices.Sorted(maps.Keys(known)), func(name string) error {
		if read := known[name]; read != nil {
			return read()
		}
		return r.skip()
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
	for i := 0; !r.take(end); i++ {
		if i > 0 && !r.take(',') {
			return r.no(fmt.Sprintf("the next item or %c", end))
		}
		if err := item(i); err != nil {
			return r.place(err)
		}
	}
	r.depth--
	return nil
}

// Bool reads true or false.
func (r *Reader) Bool() (bool, error) {
	err := r.want(Bool)
	if err != nil || r.literal("true") {
		return true, err
	}
	if r.literal("false") {
		return false, nil
	}
	return false, r.no("true or false")
}

// Null reads null, if it comes next.
func (r *Reader) Null() bool { return r.Next() == Null && r.literal("null") }

func (r *Reader) literal(s string) bool {
	if len(r.text)-r.at < len(s) || string(r.text[r.at:r.at+len(s)]) != s {
		return false
	}
	r.at += len(s)
	return true
}

// Number reads a number as it is written.
func (r *Reader) Number() (string, error) {
	n, err := r.number()
	return string(n), err
}

func (r *Reader) number() ([]byte, error) {
	if err := r.want(Number); err != nil {
		return nil, err
	}
	r.literal("-")
	if !r.literal("0") && !r.digits() || r.literal(".") && !r.digits() {
		return nil, r.no("a number")
	}
	if r.literal("e") || r.literal("E") {
		if !r.literal("-") {
			r.literal("+")
		}
		if !r.digits() {
			return nil, r.no("a number")
		}
	}
	return r.text[r.token:r.at], nil
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
	s, err := r.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(s))
	if err != nil || n < 0 || n > most {
		return 0, r.Wrong("%s where a number from 0 to %d is wanted", s[:min(len(s), 20)], most)
	}
	return n, nil
}

// Whole reads a whole number, without exponent or fraction, that fits into.
func Whole[T ~int | ~int32 | ~int64](r *Reader, into *T) error {
	s, err := r.number()
	if err != nil {
		return err
	}
	x, err := strconv.ParseInt(string(s), 10, 64)
	if *into = T(x); err != nil || int64(*into) != x {
		return r.Wrong("%s where a whole number that fits is wanted", s[:min(len(s), 20)])
	}
	return nil
}

// String reads a string.
func (r *Reader) String() (string, error) { return r.Text(math.MaxInt) }

// Text reads a string of at most limit bytes.
func (r *Reader) Text(limit int) (string, error) {
	s, err := r.chars(limit)
	return string(s), err
}

// chars reads a string, and returns bytes of the text if there is no escape in it.
func (r *Reader) chars(limit int) (b []byte, err error) {
	if err := r.want(String); err != nil {
		return nil, err
	}
	r.at++
	for from := r.at; r.at < len(r.text); {
		c := r.text[r.at]
		if c >= ' ' && c != '"' && c != '\\' {
			r.at++
			continue
		}
		run := r.text[from:r.at] // whole characters: what ends it is one
		switch {
		case !utf8.Valid(run):
			return nil, r.Wrong("a string that is not UTF-8: %.40q", run[:min(len(run), 160)])
		case len(run) > limit-len(b):
			return nil, r.Wrong("%.40q…: a string of more than %d bytes", run[:min(len(run), 160)], limit)
		case c == '"' && b == nil:
			r.at++
			return run, nil
		case c == '"':
			r.at++
			return append(b, run...), nil
		case c < ' ':
			return nil, r.Wrong("the character %q in a string; it is written as an escape", c)
		}
		r.at++
		if b, err = r.escape(append(b, run...)); err != nil {
			return nil, err
		}
		from = r.at
	}
	return nil, r.Wrong("a string without an end")
}

// escape adds the character of an escape, behind its backslash.
func (r *Reader) escape(b []byte) ([]byte, error) {
	if r.at == len(r.text) {
		return nil, r.Wrong("a string without an end")
	}
	c := r.text[r.at]
	r.at++
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		return append(b, "\"\\/\b\f\n\r\t"[i]), nil
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
	err := r.skip()
	return r.text[from:r.at], err
}

// skip passes over a value.
func (r *Reader) skip() (err error) {
	switch r.Next() {
	case Object:
		return r.Object(func(string) error { return r.skip() })
	case Array:
		return r.Array(func(int) error { return r.skip() })
	case String:
		_, err = r.chars(math.MaxInt)
	case Number:
		_, err = r.number()
	case Bool:
		_, err = r.Bool()
	default:
		if !r.Null() {
			err = r.no("a value")
		}
	}
	return err
}
