package jsonread_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"zeroth/internal/input/jsonread"
)

// plain converts a value to the form encoding/json decodes into an any.
func plain(v jsonread.Value) any {
	switch v.Kind {
	case jsonread.String:
		return v.Text
	case jsonread.Number:
		var f float64
		if err := json.Unmarshal([]byte(v.Text), &f); err != nil {
			panic(err)
		}
		return f
	case jsonread.Bool:
		return v.True
	case jsonread.Array:
		all := []any{}
		for _, item := range v.Items {
			all = append(all, plain(item))
		}
		return all
	case jsonread.Object:
		all := map[string]any{}
		for _, p := range v.Pairs {
			all[p.Key] = plain(p.Value)
		}
		return all
	}
	return nil
}

var cases = []string{
	`null`, ` true `, `false`, `0`, `-0.5e+10`, `1E5`, `""`, `"a\n\"\\\/\u00e9\ud83d\ude00é"`, `[]`, `{}`, `[1, [2, {"a": null}], "x"]`, "{\"b\": 1,\n\"a\": {\"c\": []}}",
	`{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,"10":10}`,
	` { "a" : [ 1 , -2, 0 ] , "b\u00e9\n" : {"c": "\ud83d\ude00\ud800"} } `, `-0`, `9223372036854775808`, `{,}`, "\"\x01\"", "\x00", "[\x00]", `}`, `]`, `[}`, `{"a":[}`, "\"\xff\"", `truefalse`, `[tru:e]`,
	``, ` `, `nul`, `tru`, `01`, `-`, `1.`, `1e`, `+1`, `.5`, `"`, `"a`, `"\`, `"\x"`, `"\u12"`, `[`, `[1`, `[1,`, `[1,]`, `[,]`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`, `{1:1}`,
	`1 2`, `[] x`, "\"\t\"", "\xef\xbb\xbf{}", `{"a":1 "b":2}`, `[1 2]`, `'a'`, `NaN`, `"a" "b"`, "\"\\u00zz\"",
}

// FuzzAsStandard checks that values decode as with encoding/json, except for the inputs
// refused on purpose: duplicate keys, lone surrogates, deep nesting.
func FuzzAsStandard(f *testing.F) {
	for _, c := range cases {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := jsonread.Parse([]byte(text))
		var want any
		wrong := json.Unmarshal([]byte(text), &want)
		switch {
		case err == nil && wrong != nil:
			if !strings.Contains(wrong.Error(), "cannot unmarshal number") {
				t.Fatalf("%q is accepted, but encoding/json fails: %v", text, wrong)
			}
		case err != nil && wrong == nil:
			for _, purpose := range []string{"duplicate", "half of a surrogate pair", "nested", "invalid UTF-8"} {
				if strings.Contains(err.Error(), purpose) {
					return
				}
			}
			t.Fatalf("%q: %v", text, err)
		case err == nil:
			if got, want := fmt.Sprint(plain(v)), fmt.Sprint(want); got != want {
				t.Fatalf("%q decodes to %s, want %s", text, got, want)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	for _, text := range []string{
		"{\"a\": 1,\n\"a\": 2}",
		`{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,"10":10,"9":1}`,
		`"\ud83d x"`,
		`"\ude00"`,
		"\"\xff\"",
		"\"\\n\xff\"",
		strings.Repeat("[", 100),
		strings.Repeat(`{"a":`, 100),
		"[" + strings.Repeat("0,", jsonread.MaxValues) + "0]",
		"[1,\n2,\n\n]",
		"\n\n",
		"[1] [2]",
	} {
		_, err := jsonread.Parse([]byte(text))
		said.Same(t, text, err)
	}
}

// TestFields checks that objects keep their order and that unknown fields are refused.
func TestFields(t *testing.T) {
	v, err := jsonread.Parse([]byte(`{"z": 1, "a": {"y": 2, "b": 3}}`))
	if err != nil || v.Pairs[0].Key != "z" || v.Get("a").Pairs[1].Key != "b" || v.Get("b").Kind != jsonread.None {
		t.Errorf("%v, %v", v, err)
	}
	for text, fails := range map[string]bool{
		`{"a": 5, "skipped": {"x": [1]}}`: false,
		`{"a": 5, "b": 1}`:                true,
		`{"a": 5, "a": 1}`:                true,
		`{"a": "5"}`:                      true,
		`{"a": 11}`:                       true,
		`{"a": 1.5}`:                      true,
		`[]`:                              true,
	} {
		a := 0
		r := jsonread.New([]byte(text))
		err := r.Fields(map[string]func() error{"skipped": nil, "a": func() (err error) { a, err = r.Int(10); return err }})
		if said.Fails(t, text, err, fails); !fails && a != 5 {
			t.Errorf("%s: %d", text, a)
		}
	}
}

// made is the struct that Fill reads into.
type made struct {
	Yes   bool               `json:"yes"`
	Text  string             `json:"text"`
	Count int                `json:"count"`
	Small int32              `json:"small"`
	Rate  float64            `json:"rate"`
	Time  time.Time          `json:"time"`
	Wait  time.Duration      `json:"wait"`
	Names []string           `json:"names"`
	Rates map[string]float64 `json:"rates"`
	Parts []inner            `json:"parts"`
	inner
	Here string `json:"-"`
}

type inner struct {
	Deep *made `json:"-"`
	N    int64 `json:"n"`
}

// FuzzFill checks that Fill either fails or reads the same as encoding/json.
func FuzzFill(f *testing.F) {
	for _, c := range append(cases, whole, `{"names": null, "text": null, "parts": [{}, {"n": 1}]}`, `{"names": [null]}`, `{"time": "x"}`, `{"rate": 1e999}`, `{"small": 3000000000}`) {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got, want made
		if err := jsonread.Into([]byte(text), &got); err != nil {
			if len(err.Error()) > 1<<13 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
			return
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%q is accepted, but encoding/json fails: %v", text, err)
		}
		if diff := cmp.Diff(got, want, cmp.AllowUnexported(made{}, inner{})); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	})
}

const whole = `{"yes": true, "text": "a", "count": -5, "small": 7, "rate": 1.5e3, "time": "2026-11-22T13:40:00Z", "wait": 60, "names": ["x", "y"], "rates": {"a": 1}, "parts": [{"n": 1}, {"n": 2}], "n": 3}`

func TestFill(t *testing.T) {
	var m made
	if err := jsonread.Into([]byte(whole), &m); err != nil || !m.Yes || m.Count != -5 || m.Parts[1].N != 2 || m.N != 3 || m.Rates["a"] != 1 || m.Time.Year() != 2026 {
		t.Errorf("%+v, %v", m, err)
	}
	for text, want := range map[string]string{
		`null`:                      "line 1, column 1: null where an object is expected",
		`{"Yes": true}`:             `line 1, column 2: "Yes": unknown key; did you mean "yes"?`,
		`{"parts": [{}, {"m": 1}]}`: `line 1, column 17: parts[1]."m": unknown key; want n`,
		`{"Here": ""}`:              `line 1, column 2: "Here": unknown key; want yes, text, count, small, rate, time, wait, names, rates, parts, n`,
		`{"count": 1.0}`:            "line 1, column 11: count: 1.0 where a whole number is expected",
		`{"small": 3000000000}`:     "line 1, column 11: small: 3000000000 is out of range",
		`{"rate": 1e999}`:           "line 1, column 10: rate: 1e999 is out of range",
		`{"time": "x"}`:             "line 1, column 10: time: x where a time.Time is expected: parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
		`{"rates": {"\u001b": ""}}`: `line 1, column 22: rates."\x1b": a string where a number is expected`,
		"{\"yes\": 1,\n\"names\": [\"é\", 5],\n\"more\": {\"yes\": {}}, \"n\": 2": "line 1, column 9: yes: a number where true or false is expected\nline 2, column 16: names[1]: a number where a string is expected\n" +
			"line 3, column 1: \"more\": unknown key; want yes, text, count, small, rate, time, wait, names, rates, parts, n\nline 3, column 28: the text ends where the next item or } should be",
	} {
		if err := jsonread.Into([]byte(text), &made{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
	many := "[" + strings.Repeat("1,", 1000) + "1]"
	if err := jsonread.Into([]byte(many), new([]string)); err == nil || !strings.HasSuffix(err.Error(), "[15]: a number where a string is expected\nand 985 more") {
		t.Errorf("%v", err)
	}
}

func BenchmarkParse(b *testing.B) {
	record := `{"text": "` + strings.Repeat(`Once upon a time there was a little fox, who said \"hello\".\n`, 30) + `", "id": 7, "meta": {"tags": ["a", "b"]}}`
	vocabulary := make(map[string]int)
	for i := range 50_000 {
		vocabulary[fmt.Sprintf("Ġtok%d", i)] = i
	}
	large, err := json.Marshal(vocabulary)
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string][]byte{"record": []byte(record), "plain": []byte(strings.NewReplacer(`\n`, " ", `\"`, "").Replace(record)), "vocabulary": large} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jsonread.Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// pair is a struct that Strict reads and checks.
type pair struct {
	At   [2]int `json:"at"`
	Next *pair  `json:"next"`
	All  []pair `json:"all"`
}

func (p *pair) Check() error {
	if p.At[1] < p.At[0] {
		return fmt.Errorf("%v is not in order", p.At)
	}
	return nil
}

// TestStrict checks that reading ends at the first error, which has its path, and that values are checked.
func TestStrict(t *testing.T) {
	var p pair
	if err := jsonread.Strict([]byte(`{"at": [1, 2], "next": {"at": [3, 4]}, "all": [{}, {"at": [5, 6]}]}`), &p); err != nil || p.Next.At != [2]int{3, 4} || p.All[1].At[1] != 6 {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{
		`{"all": null, "more": 1}`:                  "line 1, column 9: all: null where an array is expected",
		`{"next": null}`:                            "line 1, column 10: next: null where an object is expected",
		`{"at": [1]}`:                               "line 1, column 10: at: 1 items where 2 are expected",
		`{"at": [1, 2, 3]}`:                         "at: more than 2 items",
		`{"at": ["", 2, 3]}`:                        "line 1, column 9: at[0]: a string where a whole number is expected",
		`{"all": [{}, {"all": [{"at": [2, 1]}]}, 5`: "all[1].all[0]: [2 1] is not in order",
	} {
		if err := jsonread.Strict([]byte(text), &pair{}); err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}
