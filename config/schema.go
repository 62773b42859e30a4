package config

import (
	"math"
	"strings"

	"zeroth/job/hf"
)

// object is a JSON object.
type object = map[string]any

// Schema returns the JSON Schema of a job file (draft-07, which editors support), made from the
// table of keys. Every key but data may be omitted or null, which selects its default.
func Schema() map[string]any {
	root := section("the job file of zeroth")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "zeroth job file"
	root["type"] = "object"
	root["required"] = []string{"data"}
	for _, f := range new(Config).fields("") {
		in, parts := root, strings.Split(f.key, ".")
		for _, name := range parts[:len(parts)-1] {
			all := in["properties"].(object)
			if all[name] == nil {
				all[name] = section("")
			}
			in = all[name].(object)
		}
		in["properties"].(object)[parts[len(parts)-1]] = f.schema()
	}
	return root
}

// scalars lists the JSON types that the job file accepts as text.
var scalars = []string{"string", "number", "boolean"}

// section returns the schema of a mapping without unknown keys.
func section(doc string) object {
	s := object{"type": []string{"object", "null"}, "properties": object{}, "additionalProperties": false}
	if doc != "" {
		s["description"] = doc
	}
	return s
}

// schema returns the field's schema with its line of the reference.
func (f field) schema() object {
	s := schemaOf(f.value)
	s["description"] = f.doc + " (default: " + f.initial + f.rule + ")"
	return s
}

// schemaOf returns the schema of a value. It panics on an unknown value type.
func schemaOf(v value) object {
	switch v := v.(type) {
	case count:
		return typed("integer", object{"minimum": v.lo, "maximum": v.hi})
	case stage:
		return typed("integer", object{"minimum": 0, "maximum": 3})
	case seed:
		return typed("integer", object{"minimum": 0, "maximum": uint64(math.MaxUint64)})
	case shards:
		return typed("integer", object{"minimum": -1, "maximum": MostRanks, "not": object{"const": 0}})
	case real:
		return bounded(v.ok, "null")
	case some:
		return bounded(v.ok, "null")
	case perhaps:
		return bounded(v.ok, "null")
	case pattern:
		return object{"type": scalars, "minLength": 1, "maxLength": longestPattern}
	case measure:
		return object{"type": []string{"string", "boolean", "null"}, "pattern": metricPattern, "maxLength": LongestMetric}
	case reals:
		return typed("array", object{"items": bounded(v.ok), "minItems": 2, "maxItems": 2})
	case choice, dtype:
		return object{"enum": append(anything(choices(v)), nil)}
	case flag:
		return typed("boolean", object{})
	case path:
		return typed("string", object{})
	case text: // any scalar is text
		return object{"type": append(scalars, "null")}
	case sources:
		return typed("array", object{"items": v.schema()})
	case patterns, texts:
		return typed("array", object{"items": object{"type": scalars}})
	case day:
		return typed("string", object{"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})
	case duration:
		return typed("string", object{"pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`})
	case ordinals:
		return object{"type": []string{"array", "string", "null"}, "pattern": "^auto$", "minItems": 1, "items": object{"type": "integer", "minimum": 0, "maximum": MostGPUs}}
	case counts:
		return typed("array", object{"minItems": 1, "items": object{"type": "integer", "minimum": 1, "maximum": hf.MostLayers}})
	case bound:
		return typed("string", object{"pattern": `^(auto|[0-9.eE+-]+ *(B|kB|[MGT]B|[KMGT]iB))$`})
	case records:
		return typed("array", object{"maxItems": v.most, "items": v.schema()})
	case perLayer:
		return typed("object", object{"maxProperties": mostPatterns, "additionalProperties": object{"type": "number", "exclusiveMinimum": 0}})
	case retention:
		last, every := object{"type": "integer", "minimum": 1, "maximum": hf.Most}, object{"type": "integer", "minimum": 1, "maximum": MostSteps}
		return object{"type": []string{"integer", "object", "null"}, "minimum": 1, "maximum": hf.Most, "minProperties": 1, "additionalProperties": false,
			"properties": object{"last": last, "every_steps": every, "best": object{"enum": metrics}}}
	}
	panic("config: a value without a schema")
}

// typed returns the schema of a value of the given type, or null.
func typed(name string, more object) object {
	more["type"] = []string{name, "null"}
	return more
}

// bounds returns the range of the numbers that ok accepts. The range begins at or above 0, and is
// unbounded or ends at 1/2 or 1.
func bounds(ok func(float64) bool) object {
	s := object{}
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

// bounded returns the schema of a number. Some YAML parsers read 6e-4 as text, so it also accepts
// strings.
func bounded(ok func(float64) bool, or ...string) object {
	s := bounds(ok)
	s["type"] = append([]string{"number", "string"}, or...)
	s["pattern"] = `^\+?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$`
	return s
}

func anything(names []string) (all []any) {
	for _, n := range names {
		all = append(all, n)
	}
	return all
}
