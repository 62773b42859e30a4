package config

import (
	"fmt"
	"strings"
)

// YAML is the complete configuration as a job file: Load reads it back to an
// equal Config. What other keys decide, batch and shard, is a comment, so that
// the file can be run again on another number of ranks.
func (c *Config) YAML() []byte {
	var b strings.Builder
	b.WriteString("# The effective configuration: what was given, and every default.\n")
	last := ""
	for _, f := range c.fields() {
		if !c.written(f) {
			continue
		}
		section, name := split(f.key)
		open(&b, last, section)
		last = section
		fmt.Fprintf(&b, "%s%s: %s%s\n", indent(f.key), name, f.value.yaml(), pick(f.remark == "", "", " # "+f.remark))
	}
	return []byte(b.String())
}

// open begins the sections that a key's section has and the last key's has not.
func open(b *strings.Builder, last, section string) {
	if section == "" || strings.HasPrefix(last+".", section+".") {
		return
	}
	in, name := split(section)
	open(b, last, in)
	fmt.Fprintf(b, "%s%s:\n", indent(section), name)
}

func indent(key string) string { return strings.Repeat("  ", strings.Count(key, ".")) }

// written tells whether the key has a value and a meaning, and is not a
// consequence of others.
func (c *Config) written(f field) bool {
	why, _ := c.idle(f)
	return why == "" && !f.derived && !empty(f.value)
}
