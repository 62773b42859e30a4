package config

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"zeroth/config/tree"
)

// Write returns the complete configuration as a job file, which is read back as an equal Config.
// Derived keys such as batch and shard are comments, so that the file can run on another number of
// ranks. Ranks compute on the device on.
func (c *Config) Write(on string) []byte {
	var b strings.Builder
	b.WriteString("# The effective configuration: what was given, and every default.\n")
	last := ""
	for _, f := range c.fields(on) {
		if !c.written(f) {
			continue
		}
		section, name := tree.Split(f.key)
		open(&b, last, section)
		last = section
		fmt.Fprintf(&b, "%s%s: %s%s\n", indent(f.key), name, f.value.yaml(), pick(f.remark == "", "", " # "+f.remark))
	}
	return []byte(b.String())
}

// open writes the headers of the section that are not open yet.
func open(b *strings.Builder, last, section string) {
	if section == "" || strings.HasPrefix(last+".", section+".") {
		return
	}
	in, name := tree.Split(section)
	open(b, last, in)
	fmt.Fprintf(b, "%s%s:\n", indent(section), name)
}

func indent(key string) string { return strings.Repeat("  ", strings.Count(key, ".")) }

// written reports whether the key has a value, is used and is not derived from others.
func (c *Config) written(f field) bool {
	why, _ := c.idle(f)
	return why == "" && !f.derived && !f.value.isEmpty()
}

// Written returns the keys that Write writes, with their values in job file syntax.
func (c *Config) Written(on string) map[string]string {
	all := map[string]string{}
	for _, f := range c.fields(on) {
		if c.written(f) {
			all[f.key] = f.value.yaml()
		}
	}
	return all
}

// Text returns a key's value in job file syntax.
func (c *Config) Text(key string) string { return c.field(key, "").value.yaml() }

// Shared yields the keys that all processes of a job have to agree on, with their values in job file
// syntax.
func (c *Config) Shared() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range c.fields("") {
			if !f.own && !yield(f.key, f.value.yaml()) {
				return
			}
		}
	}
}

// field returns the field of a key.
func (c *Config) field(key, on string) field {
	section, _, nested := strings.Cut(key, ".")
	fields := c.section(pick(nested, section, ""), on)
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.key == key })]
}
