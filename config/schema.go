package config

import (
	"maps"
	"slices"
	"strings"
)

// Schema returns the JSON Schema of a job file (draft-07, which editors support), made from the
// table of keys. Every key but data may be omitted or null, which selects its default.
func Schema() map[string]any {
	root := section("the job file of zeroth")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "zeroth job file"
	root["type"] = "object"
	root["required"] = []string{"data"}
	for _, f := range table() {
		in, parts := root, strings.Split(f.key, ".")
		for _, name := range parts[:len(parts)-1] {
			all := in["properties"].(object)
			if all[name] == nil {
				all[name] = section("")
			}
			in = all[name].(object)
		}
		in["properties"].(object)[parts[len(parts)-1]] = f.schema(true)
	}
	return root
}

// section returns the schema of a mapping without unknown keys.
func section(doc string) object {
	s := object{"type": []string{"object", "null"}, "properties": object{}, "additionalProperties": false}
	if doc != "" {
		s["description"] = doc
	}
	return s
}

// schema returns the field's schema with its line of the reference. It may be null unless it must be given.
func (f field) schema(null bool) object {
	s := maps.Clone(f.value.schema)
	if names, ok := s["enum"].([]string); ok && null {
		var words []any
		for _, name := range names {
			words = append(words, name)
		}
		s["enum"] = append(words, nil)
	} else if null {
		s["type"] = append(slices.Concat([]string{}, types(s)), "null")
	}
	s["description"] = f.doc + " (default: " + f.initial + f.rule + ")"
	return s
}

// types returns the types of a schema.
func types(s object) []string {
	if one, ok := s["type"].(string); ok {
		return []string{one}
	}
	return s["type"].([]string)
}

// numeric returns the schema of the numbers that ok accepts. Their range begins at or above 0, and is
// unbounded or ends at 1/2 or 1. Some YAML parsers read 6e-4 as text, so it also accepts strings.
func numeric(ok func(float64) bool) object {
	s := object{"type": []string{"number", "string"}, "pattern": `^\+?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$`}
	if ok(0) {
		s["minimum"] = 0
	} else {
		s["exclusiveMinimum"] = 0
	}
	const above = 1 + 1e-9
	for _, end := range []float64{0.5, 1} {
		switch {
		case ok(end * above):
		case ok(end):
			s["maximum"] = end
			return s
		default:
			s["exclusiveMaximum"] = end
			return s
		}
	}
	return s
}
