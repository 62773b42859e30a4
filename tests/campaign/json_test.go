//go:build campaign && linux

package campaign

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// value is a JSON value that preserves the order of keys and can represent what no encoder
// writes: duplicate keys, numbers of any size, invalid text.
type value struct {
	raw   string   // the text of a scalar, or arbitrary text
	keys  []string // encoded keys of an object, one per item
	items []*value // values of an object or a list; nil for a scalar
	list  bool
}

// parseJSON parses the program's output.
func parseJSON(x *trial, raw []byte) *value {
	x.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := readValue(d)
	x.must(err)
	return v
}

func readValue(d *json.Decoder) (*value, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	open, ok := t.(json.Delim)
	if !ok {
		raw, err := json.Marshal(t)
		return &value{raw: string(raw)}, err
	}
	v := &value{items: []*value{}, list: open == '['}
	for d.More() {
		if !v.list {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v.keys = append(v.keys, quoted(key.(string)))
		}
		item, err := readValue(d)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
	}
	_, err = d.Token()
	return v, err
}

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot fail for text
	}
	return string(raw)
}

func (v *value) String() string {
	var b strings.Builder
	v.write(&b)
	return b.String()
}

func (v *value) write(b *strings.Builder) {
	if v.items == nil {
		b.WriteString(v.raw)
		return
	}
	ends := "{}"
	if v.list {
		ends = "[]"
	}
	b.WriteByte(ends[0])
	for i, item := range v.items {
		if i > 0 {
			b.WriteByte(',')
		}
		if !v.list {
			b.WriteString(v.keys[i] + ":")
		}
		item.write(b)
	}
	b.WriteByte(ends[1])
}

// all returns a value and all values in it.
func (v *value) all() []*value {
	out := []*value{v}
	for _, item := range v.items {
		out = append(out, item.all()...)
	}
	return out
}

// at returns the value of a key, or nil.
func (v *value) at(key string) *value {
	if i := slices.Index(v.keys, quoted(key)); i >= 0 {
		return v.items[i]
	}
	return nil
}

// set replaces a value by a scalar.
func (v *value) set(raw string) { *v = value{raw: raw} }

// absurdJSON lists values to use where another is expected.
var absurdJSON = []string{"-1", "0", "1", "-0", "1.5", "1e308", "1e999", "2147483648", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616",
	"-9223372036854775808", strings.Repeat("9", 5000), "1e-999", "null", "true", "false", `""`, `"x"`, `"0"`, `"\u0000"`, `"\u001b[2J\u001b[31m"`, `"\u202e"`, `"../../outside/thesis.txt"`, `"/etc/passwd"`, `"\ud800"`,
	`"` + strings.Repeat("n", 100_000) + `"`, "[]", "{}", "[[]]", "[-1]", "[0]", "[9223372036854775807, 9223372036854775807]", "[4294967296, 4294967296]", "[1, -1]", `{"a": 1}`,
	strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), strings.Repeat(`{"a":`, 9_000) + "1" + strings.Repeat("}", 9_000), "[" + strings.Repeat("0,", 50_000) + "0]", "NaN", "Infinity", "'x'", "", "\x00", "\xff"}

// forge changes a document in one or two places.
func forge(rng *rand.Rand, v *value) {
	for range 1 + rng.IntN(5)/4 {
		forgeOnce(rng, v)
	}
}

func forgeOnce(rng *rand.Rand, v *value) {
	nodes := v.all()
	n := pick(rng, nodes)
	if rng.IntN(30) == 0 {
		n = v
	}
	inner := pick(rng, nodes)
	for range 20 { // prefer a value that is not empty
		if len(inner.items) > 0 {
			break
		}
		inner = pick(rng, nodes)
	}
	if len(inner.items) == 0 {
		n.set(pick(rng, absurdJSON))
		return
	}
	i, j := rng.IntN(len(inner.items)), rng.IntN(len(inner.items))
	switch rng.IntN(8) {
	case 0: // remove a key
		inner.items = slices.Delete(inner.items, i, i+1)
		if !inner.list {
			inner.keys = slices.Delete(inner.keys, i, i+1)
		}
	case 1: // duplicate it
		inner.items = append(inner.items, inner.items[i])
		if !inner.list {
			inner.keys = append(inner.keys, inner.keys[i])
		}
	case 2: // swap two
		inner.items[i], inner.items[j] = inner.items[j], inner.items[i]
	case 3: // rename it
		if !inner.list {
			inner.keys[i] = pick(rng, []string{`"\u001b[2J"`, `"x"`, `""`, `"` + strings.Repeat("k", 100_000) + `"`, `"__metadata__"`, `"\u202e"`, inner.keys[j], strings.ToUpper(inner.keys[i])})
		}
	case 4, 5: // change a number
		n.set(number(rng, n.raw))
	default:
		n.set(pick(rng, absurdJSON))
	}
}

// number returns a number near raw, or far from it.
func number(rng *rand.Rand, raw string) string {
	x, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return pick(rng, absurdJSON)
	}
	return pick(rng, []string{strconv.FormatInt(x+1, 10), strconv.FormatInt(x-1, 10), strconv.FormatInt(-x, 10), strconv.FormatInt(2*x, 10), strconv.FormatInt(x<<20, 10), strconv.FormatInt(x+1<<32, 10),
		raw + "0", raw + "000000000000", raw + ".0", raw + "e0", strconv.FormatInt(x^1<<62, 10)})
}

// TestJSONIsKept checks that unforged documents are written as they were read.
func TestJSONIsKept(t *testing.T) {
	x := &trial{T: t}
	const doc = `{"a":1,"b":[2.5,"\u001b",null,{"c":{}}],"a":[]}`
	if got := parseJSON(x, []byte(doc)).String(); got != doc {
		t.Errorf("%s, want %s", got, doc)
	}
}
