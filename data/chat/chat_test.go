package chat

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"zeroth/input/jsonread"
)

const fixture = "testdata/templates.json.gz"

// recorded is what testdata/reference.py has written.
func recorded(t testing.TB, path string) jsonread.Value {
	t.Helper()
	f, err := os.Open(path)
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
	all := recorded(t, fixture)
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

// TestDrawnTemplates: each of the templates that testdata/reference.py drew is
// refused, or makes what the reference makes, failures included.
func TestDrawnTemplates(t *testing.T) {
	path := os.Getenv("ZEROTH_DRAWN_TEMPLATES")
	if path == "" {
		t.Skip("ZEROTH_DRAWN_TEMPLATES names no file of templates")
	}
	all := recorded(t, path)
	talks, unread, refused, failed, equal := all.Get("conversations").Items, 0, 0, 0, 0
	for _, p := range all.Get("templates").Pairs {
		text := p.Value.Get("t").Text
		tmpl, err := Parse(text)
		if err != nil {
			unread++
			continue
		}
		for i, want := range all.Get("rendered").Get(p.Key).Items {
			got, err := tmpl.Render(variables(t, p.Value, talks[i]))
			switch fails := want.Kind == jsonread.Array; {
			case fails && err != nil:
				failed++
			case fails:
				t.Errorf("%s, conversation %d: %q makes %q, and the reference has %s", p.Key, i, text, got.Text, want.Items[0].Text)
			case err != nil:
				refused++
				t.Logf("%s, conversation %d: %v: the reference makes %q", p.Key, i, err, want.Text)
			case got.Text != want.Text:
				t.Errorf("%s, conversation %d: %q\n got %q\nwant %q", p.Key, i, text, got.Text, want.Text)
			default:
				equal++
			}
		}
	}
	t.Logf("%d templates, of which %d are refused when read; %d renderings equal, %d fail here and there, %d are refused here", len(all.Get("templates").Pairs), unread, equal, failed, refused)
}

// TestKinds: tuples, parts of maps and iterators are what they are in Python, and
// numbers too; what the reference prints by an address or not in the same way twice is
// refused.
func TestKinds(t *testing.T) {
	for _, c := range []struct{ template, want string }{
		{"{{ (1, 'a') }}{{ (1,) }}{{ () }}{{ dict(a=(1, 2)) }}{{ (1, 2) == [1, 2] }}{{ (1,) + (2,) }}{{ (1, 2, 3)[1:] }}{{ {'k': 1}.items() | list }}{{ (1, 2) | tojson }}",
			"(1, 'a')(1,)(){'a': (1, 2)}False(1, 2)(2, 3)[('k', 1)][1, 2]"},
		{"{{ 'some' if [] | select else 'none' }}{{ 'x' if [] | select | list else 'y' }}{{ [1] | reverse is sequence }}{{ [1] | map('string') is iterable }}", "someyFalseTrue"},
		{"{% for x in [1, 2] %}{% break %}{% else %}else{% endfor %}{% for x in [1, 2] %}{% if x == 2 %}{% continue %}{% endif %}{% else %}no{% endfor %}", "else"},
		{"{{ 0 % -0.5 }}{{ -7.5 // 2 }}{{ 7.5 % -2 }}{{ -0.0 // 1 }}{{ 3.0 is odd }}{{ true is odd }}{{ -3 is odd }}{{ 2.5 is even }}", "-0.0-4.0-0.5-0.0TrueTrueTrueFalse"},
		{"{{ {'a': 1}.keys() is sequence }}{{ {'a': 1}.keys() | length }}{{ {'a': 1}.values() | join }}{{ {'a': 1}.keys()[0] }}|{{ 'ab'.startswith(('x', 'a')) }}", "False11|True"},
	} {
		tmpl, err := Parse(c.template)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(nil); err != nil || got.Text != c.want {
			t.Errorf("%q: %q, %v; want %q", c.template, got.Text, err, c.want)
		}
	}
	for template, want := range map[string]string{
		"{{ [1, 2] | select | length }}":  "an iterator has no length",
		"{{ (1,) + [2] }}":                "a tuple + a list",
		"{{ 'a' is odd }}":                "a string where a number is wanted",
		"{{ {} in {'a': 1} }}":            "a map in a map",
		"{{ +'a' }}":                      "the sign of a string",
		"{{ nope | int(5) }}":             "nope, which is not defined, is no number",
		"{{ {'a': 1}.keys()[1:] }}":       "a slice of a part of a map",
		"{{ 'a'.startswith(['a']) }}":     "a list where a string is wanted",
		"{{ {'a': 1}.items() | tojson }}": "a part of a map is no JSON",
		"{{ {'a': 1}.keys() }}":           "a part of a map is printed",
		"{{ 'a' ~ range(2) }}":            "a range is printed",
		"{{ [[1] | select] }}":            "a list is printed, or has such a part",
		"{{ namespace | upper }}":         "a function is printed",
		"{% set x = [1] | select %}{{ x | list }}{{ x | first }}":       "an iterator is gone through twice",
		"{% set x = [1] | map('string') %}{{ x | join }}{{ x | join }}": "an iterator is gone through twice",
	} {
		tmpl, err := Parse(template)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %q", template, got.Text, err, want)
		}
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
	all := recorded(f, fixture)
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
