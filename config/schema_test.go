package config

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"zeroth/config/tree"
	"zeroth/tests/nightly"

	"github.com/goccy/go-yaml"
)

// Invalid returns why a value violates a schema, "" if it does not. It supports the part of
// draft-07 that our schema uses. An unknown keyword fails the test, so the schema cannot contain
// unchecked ones.
func Invalid(t *testing.T, schema map[string]any, v any, at string) string {
	t.Helper()
	for word, want := range schema {
		if why := breach(t, schema, word, want, v, at); why != "" {
			return why
		}
	}
	return ""
}

func breach(t *testing.T, schema map[string]any, word string, want, v any, at string) string {
	t.Helper()
	x, number := v.(float64)
	list, _ := v.([]any)
	keys, mapping := v.(map[string]any)
	text, isText := v.(string)
	wrong := false
	switch word {
	case "$schema", "title", "description":
	case "type":
		names, ok := want.([]any)
		if !ok {
			names = []any{want}
		}
		wrong = !slices.ContainsFunc(names, func(name any) bool { return isOf(name.(string), v) })
	case "enum":
		wrong = !slices.ContainsFunc(want.([]any), func(w any) bool { return reflect.DeepEqual(w, v) })
	case "const":
		wrong = !reflect.DeepEqual(want, v)
	case "not":
		wrong = Invalid(t, want.(map[string]any), v, at) == ""
	case "minimum":
		wrong = number && x < want.(float64)
	case "exclusiveMinimum":
		wrong = number && x <= want.(float64)
	case "maximum":
		wrong = number && x > want.(float64)
	case "exclusiveMaximum":
		wrong = number && x >= want.(float64)
	case "minLength":
		wrong = isText && len(text) < int(want.(float64))
	case "maxLength":
		wrong = isText && len(text) > int(want.(float64))
	case "minItems":
		wrong = list != nil && len(list) < int(want.(float64))
	case "maxItems":
		wrong = len(list) > int(want.(float64))
	case "maxProperties":
		wrong = len(keys) > int(want.(float64))
	case "minProperties":
		wrong = mapping && len(keys) < int(want.(float64))
	case "pattern":
		wrong = isText && !regexp.MustCompile(want.(string)).MatchString(text)
	case "required":
		for _, key := range want.([]any) {
			if _, ok := keys[key.(string)]; mapping && !ok {
				return fmt.Sprintf("%s lacks %v", at, key)
			}
		}
	case "items":
		for i, item := range list {
			if why := Invalid(t, want.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
	case "properties", "additionalProperties":
		all, _ := schema["properties"].(map[string]any)
		for key, value := range keys {
			of, known := all[key].(map[string]any)
			if others, ok := schema["additionalProperties"].(map[string]any); ok && !known {
				of = others
			}
			if !known && schema["additionalProperties"] == false {
				return fmt.Sprintf("%s.%s is not known", at, key)
			}
			if why := Invalid(t, of, value, at+"."+key); why != "" {
				return why
			}
		}
	default:
		t.Fatalf("the schema has %s, which this test does not check", word)
	}
	if wrong {
		return fmt.Sprintf("%s: %v breaks %s %v", at, v, word, want)
	}
	return ""
}

// isOf reports whether a JSON value has a type.
func isOf(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	}
	return false
}

// SchemaJSON returns the job file's schema as a program reads it.
func SchemaJSON(t *testing.T) (s map[string]any) {
	t.Helper()
	raw, err := json.Marshal(Schema())
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// AsJSON converts a YAML text to JSON values.
func AsJSON(t *testing.T, text string) (v any) {
	t.Helper()
	var read any
	err := yaml.Unmarshal([]byte(text), &read)
	if err == nil {
		var raw []byte
		if raw, err = json.Marshal(read); err == nil {
			err = json.Unmarshal(raw, &v)
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return numbers(v)
}

// numbers converts texts like 6e-4, which the YAML library reads as strings, to numbers.
func numbers(v any) any {
	switch x := v.(type) {
	case string:
		if f, err := strconv.ParseFloat(x, 64); err == nil && strings.Contains(x, "e") {
			return f
		}
	case []any:
		for i := range x {
			x[i] = numbers(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = numbers(x[k])
		}
	}
	return v
}

// TestSchemaRefusesAsTheReaderDoes checks that the schema and the reader accept the same values of
// a single key.
func TestSchemaRefusesAsTheReaderDoes(t *testing.T) {
	nightly.Long(t)
	s := SchemaJSON(t)
	values := []string{"0", "-1", "1", "2", "3", "4", "0.5", "0.49", "0.51", "0.999", "1.5", "-0.1", "1e30", "65537", "true", "none", "host", "bf16", "adamw", "cosine", "block", "x y", "[]", "[0.9, 0.95]", "[0.9]", "[1.0, 0.5]",
		"5m", "1h30m", "0.5s", "5", "auto", "4GiB", "4 GB", "{last: 2}", "{best: loss}", "{}", "{bets: loss}", "{last: 0}", `[{match: "*"}]`, `[{match: "*", lr: 0}]`, `[{match: "*", lr: 0.1, weight_decay: 0}]`, "[{lr: 0.1}]", `[{match: "*", size: 1}]`, "[{path: a.txt, weight: 0.7}]", "[{path: a.txt, weight: 0}]", "[{path: a.txt}]", "[{path: a.txt, weight: 1, of: 2}]", "null", "[a.txt]", `"a.txt"`}
	for _, f := range new(Config).fields("") {
		for _, text := range values {
			n, _ := tree.Parse([]byte(text), tree.Position{})
			takes := n == nil || n.Kind == tree.Nothing || f.value.set(n) == ""
			if f.value.schema["enum"] != nil && n != nil && n.Kind == tree.Scalar && !n.Quoted && text != "null" {
				takes = takes && slices.Contains(f.value.choices, text)
			}
			own := f.schema(true)
			raw, err := json.Marshal(own)
			var of map[string]any
			if err == nil {
				err = json.Unmarshal(raw, &of)
			}
			if err != nil {
				t.Fatal(err)
			}
			why := Invalid(t, of, AsJSON(t, text), f.key)
			if f.value.path && n != nil && n.Kind == tree.Scalar && !n.Quoted && why != "" && takes {
				continue // the reader accepts a folder named 5, but an editor asks for quotes
			}
			if strings.Contains(f.value.want, "30s") && why == "" && !takes {
				continue // 0s matches the pattern
			}
			if (why == "") != takes {
				t.Errorf("%s: %s: the reader takes it: %v, the schema: %q", f.key, text, takes, why)
			}
		}
	}
	lr := map[string]any{"data": nil, "optimizer": map[string]any{"lr": "6e-4"}}
	if why := Invalid(t, s, lr, "text"); why != "" {
		t.Error(why)
	}
	lr["optimizer"].(map[string]any)["lr"] = "fast"
	if why := Invalid(t, s, lr, "text"); why == "" {
		t.Error("a learning rate is fast")
	}
	for text, why := range map[string]string{
		"{data: {text: [a]}, trian: {steps: 1}}":                       ".trian is not known",
		"{data: {text: [a]}, zero: {stag: 1}}":                         ".stag is not known",
		"{data: {text: [a]}, zero: {offload: {optimiser: host}}}":      ".optimiser is not known",
		"{model: {layers: 2}}":                                         "lacks data",
		"{data: {text: [a]}, zero.stage: 1}":                           "zero.stage is not known",
		"{data: {text: [a]}, zero: 3}":                                 "breaks type",
		"{data: {text: [a]}, checkpoint: {keep: {last: 2, all: yes}}}": ".all is not known",
	} {
		if got := Invalid(t, s, AsJSON(t, text), "job"); !strings.Contains(got, why) {
			t.Errorf("%s: %q, want %q", text, got, why)
		}
	}
}

// TestSchemaHasEveryKey checks that every key has a schema and occurs once.
func TestSchemaHasEveryKey(t *testing.T) {
	var found []string
	var walk func(in string, s map[string]any)
	walk = func(in string, s map[string]any) {
		for name, p := range s["properties"].(map[string]any) {
			of := p.(map[string]any)
			if _, section := of["properties"]; section && of["minProperties"] == nil {
				walk(tree.Join(in, name), of)
			} else {
				found = append(found, tree.Join(in, name))
			}
		}
	}
	walk("", SchemaJSON(t))
	want := Keys()
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("the schema has %v\nthe table %v", found, want)
	}
}
