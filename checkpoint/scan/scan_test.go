package scan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// any reads any value as encoding/json does, by the means of a Reader.
func (r *Reader) any(depth int) (v any, err error) {
	switch c := r.peek(); {
	case depth > 500:
		return nil, fmt.Errorf("deep")
	case c == '{':
		m := map[string]any{}
		err = r.Object(func(key []byte) error {
			k := string(key)
			if _, twice := m[k]; twice {
				return fmt.Errorf("key %q twice", key)
			}
			m[k], err = r.any(depth + 1)
			return err
		})
		return m, err
	case c == '[':
		a := []any{}
		err = r.Array(func(i int) error {
			x, err := r.any(depth + 1)
			a = append(a, x)
			return err
		})
		return a, err
	case c == '"':
		s, err := r.Text()
		return string(s), err
	case c == '-' || c >= '0' && c <= '9':
		at := r.at
		n := 0
		if Number(r, &n) == nil {
			return float64(n), nil
		}
		r.at = at
	}
	raw, err := r.Raw(1 << 20)
	if err != nil {
		return nil, err
	}
	return v, json.Unmarshal(raw, &v)
}

func agrees(t *testing.T, b []byte) {
	var got, want any
	err := All(b, func(r *Reader) (err error) { got, err = r.any(0); return err })
	wrong := json.Unmarshal(b, &want)
	if err != nil {
		if wrong == nil && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "UTF-8") && !strings.Contains(err.Error(), "deep") {
			t.Fatalf("%q: %v, encoding/json takes it", b, err)
		}
		return
	}
	if wrong != nil {
		t.Fatalf("%q was taken, encoding/json says %v", b, wrong)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %#v, encoding/json has %#v", b, got, want)
	}
}

var texts = []string{
	`{}`, `[]`, ` { "a" : [ 1 , -2, 0 ] , "b\u00e9\n" : {"c": "\ud83d\ude00\ud800"} } `, `""`, `5`, `-0`, `01`, `+1`, `1.5e3`, `-`, `9223372036854775808`, `null`, `nul`,
	`{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a"}`, `{"a":}`, `[1 2]`, `{"a":1 "b":2}`, `{"a":1,"a":2}`, "[1]x", "\"\x01\"", `"\x"`, `"`, `"\`, `{"a`, "\x00", "[\x00]", `}`, `]`, `[}`, `{"a":[}`, "\"\xff\"", `truefalse`, `[tru:e]`, ``, ` `,
}

// What a Reader takes is what encoding/json takes and has the same value,
// except that it sees keys twice.
func TestAsEncodingJSON(t *testing.T) {
	for _, s := range texts {
		agrees(t, []byte(s))
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(agrees)
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"b":1}`:            `near byte 5: unknown key "b"`,
		`{"a":1,"a":1}`:      `near byte 11: key "a" twice`,
		`{"a":300}`:          "", // it fits
		`{"a":3000000000}`:   `near byte 5: a: "3000000000" where a whole number that fits`,
		`{"a":1.0}`:          `"1.0" where`,
		`{"a":"x"}`:          `"\"x\"" where`,
		`{"a":`:              "the text ends where",
		`{"a":1`:             "the text ends where ',' should be",
		`[1]`:                `"[1" where '{' should be`,
		`{"a":1} {}`:         "something follows",
		"{\"a\":\x1b[31m}":   `"\x1b[31m" where`,
		"{\"\x80\":1}":       "not UTF-8",
		`{"c":[1,2]}`:        "",
		`{"c":[1,2,3,4,5]}`:  "c: a value of more than 7 bytes",
		`{"c":[[[[[[[[[[[[[`: "c: a value of more than 7 bytes",
		`{"c":tru}`:          "c: no JSON value",
		"{\"c\":[\x00]}":     "c: no JSON value",
	} {
		err := All([]byte(text), func(r *Reader) error {
			return r.Members([]string{"a", "c"}, func(name string) error {
				var n int32
				if name == "a" {
					return Number(r, &n)
				}
				_, err := r.Raw(7)
				return err
			})
		})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
