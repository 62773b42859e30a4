package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"zeroth/job/show"
)

// What is read of a model folder's JSON files: bytes of a file, and how deep its
// arrays and objects may be in each other.
const (
	maxJSON  = 2 << 20
	maxDepth = 64
)

// lfsPointer begins the file that Git leaves in place of one that Git LFS keeps.
const lfsPointer = "version https://git-lfs.github.com/spec/"

var errPointer = errors.New("it is a Git LFS pointer, not the file itself: fetch that with `git lfs pull`")

// object is a JSON object that is read key by key: names are matched exactly, a
// key that is there twice is an error, and what nobody has asked for is known.
type object struct {
	in     string // what messages say before a key: "rope_scaling."
	values map[string]json.RawMessage
	asked  map[string]bool
	wrong  *[]string // what is wrong with values, for all objects of a file
}

// CheckObject is an error unless a file is one object that has each key once.
func CheckObject(raw []byte) error {
	_, err := readObject(raw)
	return err
}

// readObject reads a file that is one object.
func readObject(raw []byte) (*object, error) {
	switch {
	case bytes.HasPrefix(raw, []byte(lfsPointer)):
		return nil, errPointer
	case bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")):
		return nil, errors.New("it begins with a byte order mark, which JSON has none of: save it as plain UTF-8")
	case !utf8.Valid(raw):
		return nil, errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err := distinct(d, 0)
	o := &object{asked: map[string]bool{}, wrong: new([]string)}
	if err == nil {
		err = json.Unmarshal(raw, &o.values) // also what follows the object
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		before := raw[:min(syntax.Offset, int64(len(raw)))]
		err = fmt.Errorf("line %d: %w", 1+bytes.Count(before, []byte("\n")), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it ends before its object does")
	case err == nil && o.values == nil, errors.As(err, new(*json.UnmarshalTypeError)):
		err = fmt.Errorf("%s where an object should be", shown(raw))
	}
	return o, err
}

// distinct reads a value and checks that no object in it has a key twice.
func distinct(d *json.Decoder, depth int) error {
	t, err := d.Token()
	open, nested := t.(json.Delim)
	if err != nil || !nested {
		return err
	}
	if depth++; depth > maxDepth {
		return fmt.Errorf("more than %d arrays and objects in each other", maxDepth)
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			if name, _ := key.(string); seen[name] {
				return fmt.Errorf("key %q is there twice", name)
			} else {
				seen[name] = true
			}
		}
		if err := distinct(d, depth); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// refuse notes what is wrong.
func (o *object) refuse(format string, args ...any) {
	*o.wrong = append(*o.wrong, fmt.Sprintf(format, args...))
}

// err is all that was refused.
func (o *object) err() error {
	wrong := *o.wrong
	if len(wrong) == 0 {
		return nil
	}
	if more := len(wrong) - shownAtOnce; more > 0 {
		wrong = append(wrong[:shownAtOnce:shownAtOnce], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(wrong, "; "))
}

// raw is a key's value; nil if it is not there.
func (o *object) raw(key string) json.RawMessage {
	o.asked[key] = true
	return o.values[key]
}

// null tells whether a key has no value: it is not there, or null.
func (o *object) null(key string) bool {
	raw := o.raw(key)
	return raw == nil || string(raw) == "null"
}

// rest are the keys that nobody has asked for, sorted.
func (o *object) rest() (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(o.values)) {
		if !o.asked[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// wanted is what a value of a type is called.
func wanted(x any) string {
	switch x.(type) {
	case int:
		return "a whole number"
	case float64:
		return "a number"
	case bool:
		return "true or false"
	case string:
		return "a string"
	case []string:
		return "a list of strings"
	case []int:
		return "a list of whole numbers"
	case []float64:
		return "a list of numbers"
	}
	panic(fmt.Sprintf("hf: JSON of %T", x))
}

// get is a key's value, or otherwise if it is not there. null is no value of
// its type.
func get[T any](o *object, key string, otherwise T) T {
	raw := o.raw(key)
	if raw == nil {
		return otherwise
	}
	var x T
	if string(raw) == "null" || json.Unmarshal(raw, &x) != nil {
		o.refuse("%s%s %s is not %s", o.in, key, shown(raw), wanted(x))
		return otherwise
	}
	return x
}

// maybe is get for a key that may also be null, which is as if it were not there.
func maybe[T any](o *object, key string, otherwise T) T {
	if o.null(key) {
		return otherwise
	}
	return get(o, key, otherwise)
}

// count is a number of things that a model has: at least 1, and no more than
// any model has. An alias is another name of the key, which must say the same.
func (o *object) count(key, alias string, otherwise int) int {
	n := get(o, key, otherwise)
	if alias != "" && o.raw(alias) != nil {
		was := n
		if n = get(o, alias, n); n != was && o.raw(key) != nil {
			o.refuse("%s %d and %s %d differ: keep the one that the model was trained with", key, was, alias, n)
		}
		key = alias
	}
	if n < 1 || n > Most {
		o.refuse("%s %d is out of range", key, n)
		return otherwise
	}
	return n
}

// number is one that ok accepts.
func (o *object) number(key string, otherwise float64, ok func(float64) bool) float64 {
	x := get(o, key, otherwise)
	if !ok(x) {
		o.refuse("%s%s %v is out of range", o.in, key, x)
		return otherwise
	}
	return x
}

// object is a key's value that is itself an object; nil if it is not there, null
// or has no keys.
func (o *object) object(key string) *object {
	in := &object{in: o.in + key + ".", asked: map[string]bool{}, wrong: o.wrong}
	if o.null(key) {
		return nil
	}
	if raw := o.raw(key); json.Unmarshal(raw, &in.values) != nil {
		o.refuse("%s%s %s is not an object", o.in, key, shown(raw))
	}
	if len(in.values) == 0 {
		return nil
	}
	return in
}

// alike tells whether two JSON texts mean the same value.
func alike(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// shown is JSON of a file in a message: short, and harmless on a terminal.
func shown(raw []byte) string {
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil {
		line.Write(raw)
	}
	return show.Brief(line.String())
}
