package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"zeroth/internal/input/jsonread"
	"zeroth/internal/show"
)

const maxJSON = 2 << 20 // bytes of a JSON file of a model folder

// lfsPointer begins the file that Git leaves in place of one stored in Git LFS.
const lfsPointer = "version https://git-lfs.github.com/spec/"

var errPointer = errors.New("it is a Git LFS pointer, not the file itself: fetch the file with `git lfs pull`")

// object is a JSON object that is read key by key: names must match exactly, duplicate keys
// are errors, and keys that were not read can be listed.
type object struct {
	in     string // prefix of keys in messages, such as "rope_scaling."
	values map[string]json.RawMessage
	asked  map[string]bool
	wrong  *[]string // problems of all objects in a file
	notes  []string  // remarks about the file
}

// readObject parses a file that consists of one object.
func readObject(raw []byte) (o *object, err error) {
	if bytes.HasPrefix(raw, []byte(lfsPointer)) {
		return nil, errPointer
	}
	o = &object{asked: map[string]bool{}, wrong: new([]string)}
	o.values, err = members(raw)
	return o, err
}

// members returns the keys of an object with the texts of their values.
func members(raw []byte) (map[string]json.RawMessage, error) {
	values := map[string]json.RawMessage{}
	return values, jsonread.All(raw, func(r *jsonread.Reader) error {
		return r.Object(func(key string) (err error) {
			values[key], err = r.Raw()
			return err
		})
	})
}

// refuse records a problem.
func (o *object) refuse(format string, args ...any) {
	*o.wrong = append(*o.wrong, fmt.Sprintf(format, args...))
}

// note adds a remark.
func (o *object) note(format string, args ...any) {
	o.notes = append(o.notes, fmt.Sprintf(format, args...))
}

// err returns all problems as one error, or nil.
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

// raw returns a key's value, or nil if it is missing.
func (o *object) raw(key string) json.RawMessage {
	o.asked[key] = true
	return o.values[key]
}

// null reports whether a key is missing or null.
func (o *object) null(key string) bool {
	raw := o.raw(key)
	return raw == nil || string(raw) == "null"
}

// rest returns the keys that were not read, sorted.
func (o *object) rest() (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(o.values)) {
		if !o.asked[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// wanted describes the type of x, for errors.
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

// get returns a key's value, or otherwise if it is missing. null is refused.
func get[T any](o *object, key string, otherwise T) T {
	raw := o.raw(key)
	if raw == nil {
		return otherwise
	}
	var x T
	if string(raw) == "null" || jsonread.Into(raw, &x) != nil {
		o.refuse("%s%s %s is not %s", o.in, key, shown(raw), wanted(x))
		return otherwise
	}
	return x
}

// maybe is get for a key that may be null, which counts as missing.
func maybe[T any](o *object, key string, otherwise T) T {
	if o.null(key) {
		return otherwise
	}
	return get(o, key, otherwise)
}

// count reads the number of something in a model: at least 1, at most Most. alias is another
// name of the key, which must agree.
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
		o.refuse("%s %d is out of range; want 1 to %d", key, n, Most)
		return otherwise
	}
	return n
}

// number reads a number that ok accepts.
func (o *object) number(key string, otherwise float64, ok func(float64) bool) float64 {
	x := get(o, key, otherwise)
	if !ok(x) {
		o.refuse("%s%s %v is out of range", o.in, key, x)
		return otherwise
	}
	return x
}

// object returns a key's value if it is an object, or nil if it is missing, null or empty.
func (o *object) object(key string) *object {
	if o.null(key) {
		return nil
	}
	values, err := members(o.raw(key))
	if err != nil {
		o.refuse("%s%s %s is not an object", o.in, key, shown(o.raw(key)))
	}
	if err != nil || len(values) == 0 {
		return nil
	}
	return &object{in: o.in + key + ".", values: values, asked: map[string]bool{}, wrong: o.wrong}
}

// sameJSON reports whether two JSON texts represent the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// shown returns JSON from a file for a message: short, and safe for a terminal.
func shown(raw []byte) string {
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil {
		line.Write(raw)
	}
	return show.Brief(line.String())
}
