// Package jsonread reads untrusted JSON strictly: object keys keep their order and occur
// once, strings are valid UTF-8 without lone surrogates, and only white space surrounds
// the value. Every error gives its line and column.
//
// A Reader is a pull parser: Object, Fields and Array call back for every part, and the
// callback must read that part's value. So a vocabulary of a million tokens goes straight
// into a map. Fill and Strict read into a struct, whose keys must be known. What they read
// can be Checked before the next is read: sixty million bytes of "{}," do not first become
// gigabytes of structs. Value builds a tree.
package jsonread

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits on nesting and on trees. The caller must limit the length of the text before
// loading it.
const (
	MaxDepth  = 64      // nested objects and arrays
	MaxValues = 400_000 // in one tree, whose arrays take up to 140 bytes a value while they grow
)

// Reader reads one text from beginning to end. It must not be used after an error.
type Reader struct {
	text  []byte
	at    int
	token int // start of the token looked at last
	depth int
	made  int      // values in trees so far
	keys  []string // of the enclosing objects, at most fewKeys of each
}

// New returns a reader of text, which must not change while it is read.
func New(text []byte) *Reader { return &Reader{text: text} }

// All reads a text consisting of one value, which the callback reads, and white space.
func All(text []byte, value func(*Reader) error) error {
	r := New(text)
	if err := value(r); err != nil {
		return r.locate(err)
	}
	return r.End()
}

// Fork returns an independent reader of the same text at the current position.
func (r *Reader) Fork() *Reader {
	fork := *r
	fork.keys = slices.Clone(r.keys)
	return &fork
}

// Error is an error in a text, with its position.
type Error struct {
	Line, Column int // from 1; columns are characters
	Offset       int // in bytes
	Err          error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d, column %d: %v", e.Line, e.Column, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// within adds the path of the enclosing values to an error: links[0].ranks.
type within struct {
	path string
	error
}

func (e *within) Error() string { return e.path + ": " + e.error.Error() }
func (e *within) Unwrap() error { return e.error }

// In adds the key to an error about its value.
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
	err = r.locate(err)
	if e := (*Error)(nil); errors.As(err, &e) {
		e.in(name)
	}
	return err
}

// in prefixes the path of an error with the name of the enclosing value.
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

// Wrong returns an error located at the token looked at last.
func (r *Reader) Wrong(format string, args ...any) error {
	return r.locate(fmt.Errorf(format, args...))
}

// locate adds the position of the token looked at last to an error that has none.
func (r *Reader) locate(err error) error {
	if e := (*Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	before := r.text[:r.token]
	line := before[1+bytes.LastIndexByte(before, '\n'):]
	return &Error{1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(line), r.token, err}
}

// syntax returns the error of a text that is not JSON at the token looked at last.
func (r *Reader) syntax(want string) error {
	switch rest := r.text[r.token:]; {
	case len(rest) == 0:
		return r.Wrong("the text ends where %s should be", want)
	case r.token == 0 && bytes.HasPrefix(rest, []byte("\xef\xbb\xbf")):
		return r.Wrong("the text begins with a byte order mark, which JSON does not allow: save it as plain UTF-8")
	case rest[0] == '\'':
		return r.Wrong("%.20q where %s should be: JSON has double quotes", rest[:min(len(rest), 20)], want)
	case (rest[0] == '}' || rest[0] == ']') && bytes.HasSuffix(bytes.TrimSpace(r.text[:r.token]), []byte(",")):
		return r.Wrong("a comma before %q, which JSON does not allow", rest[0])
	default:
		return r.Wrong("%.20q where %s should be", rest[:min(len(rest), 20)], want)
	}
}

// Kind is the kind of a value.
type Kind byte

// The kinds, named by the byte that begins them.
const (
	Null   Kind = 'n'
	Bool   Kind = 't'
	Number Kind = '0'
	String Kind = '"'
	Array  Kind = '['
	Object Kind = '{'
	None   Kind = 0 // the end of the text, or not JSON
)

var names = map[Kind]string{Null: "null", Bool: "true or false", Number: "a number", String: "a string", Array: "an array", Object: "an object", None: "not JSON"}

func (k Kind) String() string { return names[k] }

// Next returns the kind of the next value without reading it.
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

// peek returns the next byte that is not white space, or 0 at the end.
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

// want returns an error unless the next value is of kind k.
func (r *Reader) want(k Kind) error {
	switch got := r.Next(); got {
	case k:
		return nil
	case None:
		return r.syntax(k.String())
	default:
		return r.Wrong("%v where %v is expected", got, k)
	}
}

// accept reads c if it is the next byte, and reports whether it was.
func (r *Reader) accept(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.at++
	return true
}

// End returns an error if anything but white space follows.
func (r *Reader) End() error {
	if r.peek(); r.at < len(r.text) {
		return r.Wrong("unexpected text after the value: %.20q", r.text[r.at:min(len(r.text), r.at+20)])
	}
	return nil
}

// seed is of the hashes of keys: unknown to those who write texts, so that two keys never have the same.
var seed = maphash.MakeSeed()

// fewKeys is the number of keys of an object up to which duplicates are found by
// comparing with each; beyond it a map is used.
const fewKeys = 8

// Object calls field for every key; field must read the value. Duplicate keys are errors.
func (r *Reader) Object(field func(key string) error) error { return r.object(nil, field) }

// object is like Object, without allocating strings for keys that are among names.
func (r *Reader) object(names []string, field func(key string) error) error {
	if err := r.want(Object); err != nil {
		return err
	}
	from := len(r.keys)
	var many map[uint64]bool // hashes, which take less memory than keys
	err := r.list('}', func(int) error {
		chars, err := r.chars()
		if err != nil {
			return err
		}
		var key string
		if i := slices.IndexFunc(names, func(name string) bool { return name == string(chars) }); i >= 0 {
			key = names[i]
		} else {
			key = string(chars)
		}
		hash := maphash.String(seed, key)
		if many[hash] || slices.Contains(r.keys[from:], key) {
			return r.Wrong("duplicate key %.40q", key)
		}
		switch {
		case many != nil:
			many[hash] = true
		case len(r.keys)-from < fewKeys:
			r.keys = append(r.keys, key)
		default:
			many = map[uint64]bool{hash: true}
		}
		at := r.token
		if !r.accept(':') {
			return r.syntax("the : after a key")
		}
		r.token = at
		return field(key)
	})
	r.keys = r.keys[:from]
	return err
}

// unknown returns the error of a key that is not among names.
func unknown(key string, names []string) error {
	want := "want " + strings.Join(names, ", ")
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(key, name) }); i >= 0 {
		want = fmt.Sprintf("did you mean %q?", names[i])
	}
	return &within{fmt.Sprintf("%.40q", key), errors.New("unknown key; " + want)}
}

// Fields reads an object whose keys must be those of known, and calls their functions to
// read the values. A nil function skips the value. Errors name their key.
func (r *Reader) Fields(known map[string]func() error) error {
	names := slices.Sorted(maps.Keys(known))
	return r.object(names, func(key string) error {
		read, ok := known[key]
		switch {
		case !ok:
			return r.locate(unknown(key, names))
		case read == nil:
			return r.in(key, r.skip())
		}
		return r.in(key, read())
	})
}

// Array calls item for every item; item must read it.
func (r *Reader) Array(item func(i int) error) error {
	if err := r.want(Array); err != nil {
		return err
	}
	return r.list(']', item)
}

// list reads the items between the bracket that comes next and end.
func (r *Reader) list(end byte, item func(i int) error) error {
	r.at++
	if r.depth++; r.depth > MaxDepth {
		return r.Wrong("more than %d nested objects and arrays", MaxDepth)
	}
	for i := 0; !r.accept(end); i++ {
		if i > 0 && !r.accept(',') {
			return r.syntax(fmt.Sprintf("the next item or %c", end))
		}
		if err := item(i); err != nil {
			return r.locate(err)
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
	return false, r.syntax("true or false")
}

// Null reads null if it comes next, and reports whether it did.
func (r *Reader) Null() bool { return r.Next() == Null && r.literal("null") }

func (r *Reader) literal(s string) bool {
	if len(r.text)-r.at < len(s) || string(r.text[r.at:r.at+len(s)]) != s {
		return false
	}
	r.at += len(s)
	return true
}

// Number reads a number and returns its text.
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
		return nil, r.syntax("a number")
	}
	if r.literal("e") || r.literal("E") {
		if !r.literal("-") {
			r.literal("+")
		}
		if !r.digits() {
			return nil, r.syntax("a number")
		}
	}
	return r.text[r.token:r.at], nil
}

// digits reads a run of digits and reports whether there was at least one.
func (r *Reader) digits() bool {
	from := r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
		r.at++
	}
	return r.at > from
}

// Int reads an integer from 0 to most.
func (r *Reader) Int(most int) (int, error) {
	s, err := r.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(s))
	if err != nil || n < 0 || n > most {
		return 0, r.Wrong("%s where a number from 0 to %d is expected", s[:min(len(s), 20)], most)
	}
	return n, nil
}

// String reads a string.
func (r *Reader) String() (string, error) {
	s, err := r.chars()
	return string(s), err
}

// chars reads a string. If it has no escapes, the result is a slice of the text.
func (r *Reader) chars() (b []byte, err error) {
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
		run := r.text[from:r.at] // whole characters: an ASCII byte ends it
		switch {
		case !utf8.Valid(run):
			return nil, r.Wrong("invalid UTF-8 in a string: %.40q", run[:min(len(run), 160)])
		case c == '"' && b == nil:
			r.at++
			return run, nil
		case c == '"':
			r.at++
			return append(b, run...), nil
		case c < ' ':
			return nil, r.Wrong("the character %q in a string must be escaped", c)
		}
		r.at++
		if b, err = r.escape(append(b, run...)); err != nil {
			return nil, err
		}
		from = r.at
	}
	return nil, r.Wrong("unterminated string")
}

// escape reads an escape, after its backslash, and appends its character to b.
func (r *Reader) escape(b []byte) ([]byte, error) {
	if r.at == len(r.text) {
		return nil, r.Wrong("unterminated string")
	}
	c := r.text[r.at]
	r.at++
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		return append(b, "\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return nil, r.Wrong(`unknown escape \%c`, c)
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
	return nil, r.Wrong(`\u%04x is half of a surrogate pair; the other half is missing`, first)
}

// hex reads four hexadecimal digits.
func (r *Reader) hex() (rune, error) {
	if r.at+4 > len(r.text) {
		return 0, r.Wrong("unterminated string")
	}
	x, err := strconv.ParseUint(string(r.text[r.at:r.at+4]), 16, 16)
	if err != nil {
		return 0, r.Wrong(`unknown escape \u%q`, r.text[r.at:r.at+4])
	}
	r.at += 4
	return rune(x), nil
}

// Raw reads a value and returns its text.
func (r *Reader) Raw() ([]byte, error) {
	r.peek()
	from := r.at
	err := r.skip()
	return r.text[from:r.at], err
}

// skip reads a value and discards it.
func (r *Reader) skip() (err error) {
	switch r.Next() {
	case Object:
		return r.Object(func(string) error { return r.skip() })
	case Array:
		return r.Array(func(int) error { return r.skip() })
	case String:
		_, err = r.chars()
	case Number:
		_, err = r.number()
	case Bool:
		_, err = r.Bool()
	default:
		if !r.Null() {
			err = r.syntax("a value")
		}
	}
	return err
}
