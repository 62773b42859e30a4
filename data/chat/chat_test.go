package chat

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"zeroth/data/jsonread"
)

// recorded is what testdata/reference.py has written.
func recorded(t testing.TB) jsonread.Value {
	t.Helper()
	f, err := os.Open("testdata/templates.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonread.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// variables are those of one rendering, as transformers gives them.
func variables(t testing.TB, template, conversation jsonread.Value) map[string]Value {
	t.Helper()
	messages, err := FromJSON(conversation.Get("messages"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]Value{
		"messages": messages, "tools": nil, "documents": nil, "add_generation_prompt": conversation.Get("gen").True,
		"bos_token": template.Get("bos").Text, "eos_token": template.Get("eos").Text,
		"strftime_now": At(time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)),
	}
}

// TestReference: the templates of the families, and templates for each construct,
// make of 32 conversations what the reference makes; where it fails, so does this.
func TestReference(t *testing.T) {
	all := recorded(t)
	talks, rendered := all.Get("conversations").Items, 0
	for _, p := range all.Get("templates").Pairs {
		tmpl, err := Parse(p.Value.Get("t").Text)
		if err != nil {
			t.Errorf("%s: %v", p.Key, err)
			continue
		}
		for i, want := range all.Get("rendered").Get(p.Key).Items {
			got, err := tmpl.Render(variables(t, p.Value, talks[i]))
			rendered++
			switch {
			case want.Kind == jsonread.Array && err == nil:
				t.Errorf("%s, conversation %d: %q, and the reference has %s", p.Key, i, got.Text, want.Items[0].Text)
			case want.Kind == jsonread.String && (err != nil || got.Text != want.Text):
				t.Errorf("%s, conversation %d: %v\n got %q\nwant %q", p.Key, i, err, got.Text, want.Text)
			}
		}
	}
	if rendered < 1000 {
		t.Errorf("only %d renderings", rendered)
	}
}

// TestGenerated: what is within generation blocks is known by its bytes.
func TestGenerated(t *testing.T) {
	tmpl, err := Parse("{% for x in ['a', 'éé', ''] %}[{% generation %}{{ x }}!{% endgeneration %}]{% endfor %}{% set y %}{% generation %}z{% endgeneration %}{% endset %}{{ y }}")
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render(nil)
	if err != nil || got.Text != "[a!][éé!][!]z" {
		t.Fatalf("%q, %v", got.Text, err)
	}
	var parts []string
	for _, g := range got.Generated {
		parts = append(parts, got.Text[g[0]:g[1]])
	}
	if strings.Join(parts, "|") != "a!|éé!|!" {
		t.Errorf("%q", parts)
	}
}

// TestRefused: what is not known is named with its place when the template is read.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a\n  {% include 'x' %}":                 "line 2, column 6: the statement include is not done here",
		"{% call f() %}{% endcall %}":            "line 1, column 4: the statement call is not done here",
		"{% raw %}{% endraw %}":                  "the statement raw is not done here",
		"{{ x | pprint }}":                       "line 1, column 8: the filter pprint is not done here",
		"{{ x is divisibleby 3 }}":               "line 1, column 9: the test divisibleby is not done here",
		"{{ 'a'.zfill(3) }}":                     "the method zfill is not done here",
		"{{ 2 ** 3 }}":                           "the operator ** is not done here",
		"{{ f(*x) }}":                            "arguments by * are not done here",
		"{% for a in b recursive %}{% endfor %}": "a recursive loop is not done here",
		"{% if a %}x":                            "the template ends, and elif or else or endif is missing",
		"{% endif %}":                            "endif does not belong here",
		"{% for a in b %}{% endif %}":            "endif does not belong here",
		"{% break %}":                            "break outside of a loop",
		"{{ 'a }}":                               `"'a }}" is not known`,
		"{{ a":                                   "a tag without an end",
		"{# a":                                   "a comment without an end",
		"{{ }}":                                  "where a value is wanted",
		"{{ a b }}":                              `"b" where the tag should end`,
		"{{ 9999999999999999999 }}":              "the number 9999999999999999999 is too large",
		`{{ '\q' }}`:                             `the escape \q is not known`,
		"{{ " + strings.Repeat("(", 300) + strings.Repeat(")", 300) + "}}": "more than 200 things within each other",
		strings.Repeat("{% if a %}", 300):                                  "more than 200 things within each other",
		"{{ " + strings.Repeat("not ", 300) + "a }}":                       "more than 200 things within each other",
		strings.Repeat("x", MaxTemplate+1):                                 "a template has at most 1048576",
		"{% set x | upper %}{% endset %}":                                  "a set block with a filter is not done here",
		"{{ a.0 }}":                                                        "a number behind a dot is not done here",
	} {
		_, err := Parse(text)
		if e := (*Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
	}
}

// TestFails: a rendering ends with an error that has its place, and with limits.
func TestFails(t *testing.T) {
	for text, want := range map[string]string{
		"\n{{ raise_exception('no') }}":                      "line 2, column 19: the template refuses: no",
		"{{ nope() }}":                                       "nope, which is not defined, cannot be called",
		"{{ 1 // 0 }}":                                       "a division by 0",
		"{{ 'a' < 1 }}":                                      "a string < a number",
		"{{ [] | tojson(default=1) }}":                       "the argument default=1 is not done here",
		"{{ 9007199254740991 + 2 }}":                         "a number above 2^53",
		"{{ 9007199254740991 * 9007199254740991 }}":          "a number above 2^53",
		"{% for i in range(9007199254740991) %}{% endfor %}": "more than 4194304 steps, or as much with long texts",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}":    "more than 200 calls within each other",
		"{{ 'xxxxxxxxxx' * 9000000000000000 }}":              "a value of more than 16777216 bytes",
		"{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}":                                 "a value of more than 16777216 bytes",
		"{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}":                                                                         "the text is longer than 16777216 bytes",
		"{% set ns = namespace(x=['ab']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}":                    "the template does too much",
		"{% set ns = namespace(x=['ab']) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}": "the template does too much",
		"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}":                                      "more than 200 lists and maps within each other",
		"{% set x = 'y' * 9000000 %}{% for i in range(1000000) %}{% if x == x + 'a' %}{% endif %}{% endfor %}":                             "the template does too much",
		"{% set x = 'y' * 9000000 %}{% for i in range(1000000) %}{{ x[0] }}{{ x | trim | length }}{% endfor %}":                            "the template does too much",
		"{% for i in 5 %}{% endfor %}": "a number cannot be gone through",
		"{% set a, b = [1] %}":         "1 values for 2 names",
		"{{ strftime_now('%Q') }}":     "%Q is not done here",
		"{{ 'a'.split('') }}":          "an empty separator",
	} {
		tmpl, err := Parse(text)
		if err == nil {
			_, err = tmpl.Render(map[string]Value{"strftime_now": At(time.Unix(0, 0))})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %s", text, err, want)
		}
	}
}

// FuzzRender: no template panics or runs on.
func FuzzRender(f *testing.F) {
	all := recorded(f)
	for _, p := range all.Get("templates").Pairs {
		f.Add(p.Value.Get("t").Text)
	}
	vars := variables(f, all.Get("templates").Get("chatml"), all.Get("conversations").Items[31])
	f.Fuzz(func(t *testing.T, text string) {
		if tmpl, err := Parse(text); err == nil {
			_, _ = tmpl.Render(vars) // an error is as good as a text
		}
	})
}
