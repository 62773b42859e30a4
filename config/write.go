package config

import (
	"fmt"
	"strings"
)

// YAML returns the complete configuration as a job file, which Load reads back as an equal Config.
// Derived keys such as batch and shard are comments, so that the file can run on another number of
// ranks.
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

// open writes the headers of the section that are not open yet.
func open(b *strings.Builder, last, section string) {
	if section == "" || strings.HasPrefix(last+".", section+".") {
		return
	}
	in, name := split(section)
	open(b, last, in)
	fmt.Fprintf(b, "%s%s:\n", indent(section), name)
}

func indent(key string) string { return strings.Repeat("  ", strings.Count(key, ".")) }

// written reports whether the key has a value, is used and is not derived from others.
func (c *Config) written(f field) bool {
	why, _ := c.idle(f)
	return why == "" && !f.derived && !empty(f.value)
}
