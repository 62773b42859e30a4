// Package scan reads JSON that may come from anybody: in order, value by value,
// so that the caller checks each before the next is looked at. It takes no
// memory but for what it hands out, sees keys that are there twice, and knows
// which keys are expected. Package encoding/json does none of these: a list of
// sixty million bytes of "{}," becomes gigabytes of structs before anybody can
// say that one of them is wrong.
package scan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Reader is a place in a JSON text. After an error it is of no further use.
type Reader struct {
	b  []byte
	at int
}

// All reads a text that is one value, read by value, with only white space
// around it. Errors say near which byte they are.
func All(b []byte, value func(*Reader) error) error {
	r := &Reader{b: b}
	err := errors.New("not UTF-8")
	if utf8.Valid(b) {
		err = value(r)
	}
	if err == nil && r.peek() != 0 {
		err = errors.New("something follows the JSON value")
	}
	if err != nil {
		return fmt.Errorf("near byte %d: %w", r.at, err)
	}
	return nil
}

// peek is the next byte that is no white space, 0 at the end.
func (r *Reader) peek() byte {
	for ; r.at < len(r.b); r.at++ {
		switch c := r.b[r.at]; c {
		case ' ', '\t', '\n', '\r':
		case 0:
			return 1 // never right, and not the end
		default:
			return c
		}
	}
	return 0
}

// next passes a byte if it comes next.
func (r *Reader) next(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.at++
	return true
}

// want passes a byte that must come next.
func (r *Reader) want(what string) error {
	if !r.next(what[0]) {
		return r.not(fmt.Sprintf("%q", what[0]))
	}
	return nil
}

// not is the error of something where something else should be.
func (r *Reader) not(want string) error {
	if r.peek() == 0 {
		return fmt.Errorf("the text ends where %s should be", want)
	}
	end := r.at + 1
	for end < len(r.b) && end < r.at+20 && r.b[end] > ' ' && r.b[end] != ',' && r.b[end] != ']' && r.b[end] != '}' {
		end++
	}
	return fmt.Errorf("%q where %s should be", r.b[r.at:end], want)
}

// Object reads an object. The key is valid during the call, which must read
// the value.
func (r *Reader) Object(member func(key []byte) error) error {
	if err := r.want("{"); err != nil {
		return err
	}
	if r.next('}') {
		return nil
	}
	for {
		key, err := r.Text()
		if err == nil {
			err = r.want(":")
		}
		if err == nil {
			err = member(key)
		}
		if err != nil || r.next('}') {
			return err
		}
		if err := r.want(","); err != nil {
			return err
		}
	}
}

// Members reads an object whose keys are among at most 64 names, each at most
// once. The call, which must read the value, gets the name itself.
func (r *Reader) Members(names []string, member func(name string) error) error {
	seen := uint64(0)
	return r.Object(func(key []byte) error {
		for i, name := range names {
			if name != string(key) {
				continue
			}
			if seen&(1<<i) != 0 {
				return fmt.Errorf("key %q twice", name)
			}
			seen |= 1 << i
			if err := member(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
		return fmt.Errorf("unknown key %.40q", key)
	})
}

// Array reads an array. The call must read the element.
func (r *Reader) Array(element func(i int) error) error {
	if err := r.want("["); err != nil {
		return err
	}
	if r.next(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil || r.next(']') {
			return err
		}
		if err := r.want(","); err != nil {
			return err
		}
	}
}

// Text reads a string. What it returns is not to be changed.
func (r *Reader) Text() ([]byte, error) {
	if r.peek() != '"' {
		return nil, r.not("a string")
	}
	escaped := false
	for end := r.at + 1; end < len(r.b); end++ {
		switch c := r.b[end]; {
		case c == '"' && !escaped:
			s := r.b[r.at+1 : end]
			r.at = end + 1
			return s, nil
		case c == '"':
			var s string
			err := json.Unmarshal(r.b[r.at:end+1], &s)
			r.at = end + 1
			return []byte(s), err
		case c < ' ':
			r.at = end
			return nil, fmt.Errorf("%q in a string", c)
		case c == '\\':
			escaped = true
			end++
		}
	}
	return nil, errors.New("the text ends in a string")
}

// Number reads a whole number, without exponent or fraction, that fits into.
func Number[T ~int | ~int32 | ~int64](r *Reader, into *T) error {
	c, start := r.peek(), r.at
	end := start
	for end < len(r.b) && (r.b[end] == '-' || r.b[end] == '+' || r.b[end] == '.' || r.b[end] == 'e' || r.b[end] == 'E' || '0' <= r.b[end] && r.b[end] <= '9') {
		end++
	}
	x, err := strconv.ParseInt(string(r.b[start:min(end, start+32)]), 10, 64)
	if err != nil || c == '+' || end-start > 1 && c == '0' || c == '-' && (r.b[start+1] == '0') || int64(T(x)) != x {
		return r.not("a whole number that fits")
	}
	*into, r.at = T(x), end
	return nil
}

// Raw reads a value of any kind, which is valid JSON of at most limit bytes.
func (r *Reader) Raw(limit int) ([]byte, error) {
	r.peek()
	start, depth := r.at, 0
	for {
		switch c := r.peek(); c {
		case 0:
			return nil, r.not("a value")
		case '"':
			if _, err := r.Text(); err != nil {
				return nil, err
			}
		case '{', '[':
			depth++
			r.at++
		case '}', ']':
			depth--
			r.at++
		case ',', ':':
			if depth == 0 {
				return nil, r.not("a value")
			}
			r.at++
			continue
		default:
			for r.at++; r.at < len(r.b) && r.b[r.at] > ' ' && r.b[r.at] != ',' && r.b[r.at] != '}' && r.b[r.at] != ']'; r.at++ {
			}
		}
		if r.at-start > limit {
			return nil, fmt.Errorf("a value of more than %d bytes", limit)
		}
		if depth <= 0 {
			break
		}
	}
	if raw := r.b[start:r.at]; json.Valid(raw) {
		return raw, nil
	}
	return nil, errors.New("no JSON value")
}
