package jsonread_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"zeroth/data/jsonread"
)

// plain is a value as encoding/json has it.
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
	``, ` `, `nul`, `tru`, `01`, `-`, `1.`, `1e`, `+1`, `.5`, `"`, `"a`, `"\`, `"\x"`, `"\u12"`, `[`, `[1`, `[1,`, `[1,]`, `[,]`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`, `{1:1}`,
	`1 2`, `[] x`, "\"\t\"", "\xef\xbb\xbf{}", `{"a":1 "b":2}`, `[1 2]`, `'a'`, `NaN`, `"a" "b"`, "\"\\u00zz\"",
}

// FuzzAsStandard: what is read is what encoding/json reads, apart from what is
// refused on purpose: keys that are there twice, half surrogates, depth.
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
				t.Fatalf("%q is read, and encoding/json says %v", text, wrong)
			}
		case err != nil && wrong == nil:
			for _, purpose := range []string{"twice", "half a character", "within each other", "not UTF-8"} {
				if strings.Contains(err.Error(), purpose) {
					return
				}
			}
			t.Fatalf("%q: %v", text, err)
		case err == nil:
			if got, want := fmt.Sprint(plain(v)), fmt.Sprint(want); got != want {
				t.Fatalf("%q is %s, want %s", text, got, want)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{\"a\": 1,\n\"a\": 2}": `line 2: the key "a" is there twice`,
		`{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,"10":10,"9":1}`: `the key "9" is there twice`,
		`"\ud83d x"`:                             `\ud83d is half a character`,
		`"\ude00"`:                               `\ude00 is half a character`,
		"\"\xff\"":                               "not UTF-8",
		"\"\\n\xff\"":                            "not UTF-8",
		strings.Repeat("[", 100):                 "more than 64 objects and arrays within each other",
		strings.Repeat(`{"a":`, 100):             "more than 64 objects and arrays within each other",
		"[" + strings.Repeat("0,", 1<<20) + "0]": "more than 1048576 values",
		"[1,\n2,\n\n]":                           "line 4: no JSON",
		"\n\n":                                   "line 3: no JSON",
		"[1] [2]":                                "something follows the value",
	} {
		if _, err := jsonread.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %s", text, err, want)
		}
	}
}

// Order is kept, and fields are known or refused.
func TestFields(t *testing.T) {
	v, err := jsonread.Parse([]byte(`{"z": 1, "a": {"y": 2, "b": 3}}`))
	if err != nil || v.Pairs[0].Key != "z" || v.Get("a").Pairs[1].Key != "b" || v.Get("b").Kind != jsonread.None {
		t.Errorf("%v, %v", v, err)
	}
	for text, want := range map[string]string{
		`{"a": 5, "skipped": {"x": [1]}}`: "",
		`{"a": 5, "b": 1}`:                `line 1: the key "b" is not known`,
		`{"a": 5, "a": 1}`:                `line 1: the key "a" is there twice`,
		`{"a": "5"}`:                      "line 1: a string where a number is wanted",
		`{"a": 11}`:                       "line 1: 11 where a number from 0 to 10 is wanted",
		`{"a": 1.5}`:                      "line 1: 1.5 where a number from 0 to 10 is wanted",
		`[]`:                              "line 1: an array where an object is wanted",
	} {
		a := 0
		r := jsonread.New([]byte(text))
		err := r.Fields(map[string]func() error{"skipped": nil, "a": func() (err error) { a, err = r.Int(10); return err }})
		if want == "" && (err != nil || a != 5) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %d, %v, want %s", text, a, err, want)
		}
	}
}
