package job

import (
	"fmt"
	"strings"
)

// YAML is the complete configuration as a job file: Load reads it back to an
// equal Config.
func (c *Config) YAML() []byte {
	var b strings.Builder
	b.WriteString("# The effective configuration: what was given, and every default.\n")
	last := ""
	for _, f := range c.fields() {
		if !c.written(f) {
			continue
		}
		section, name := split(f.key)
		indent := ""
		if section != "" {
			indent = "  "
			if section != last {
				fmt.Fprintf(&b, "%s:\n", section)
			}
		}
		last = section
		fmt.Fprintf(&b, "%s%s: %s\n", indent, name, f.value.yaml())
	}
	return []byte(b.String())
}

// written tells whether the key has a value and a meaning.
func (c *Config) written(f field) bool {
	switch v := f.value.(type) {
	case text:
		if *v.p == "" {
			return false
		}
	case texts:
		if len(*v.p) == 0 {
			return false
		}
	}
	why, _ := c.idle(f.key)
	return why == ""
}
