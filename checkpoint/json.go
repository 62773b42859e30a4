package checkpoint

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// The JSON of manifests and part files is untrusted. Each tensor, file and extent is checked before the
// next is read, so that memory use stays within a few times the size of the file.

const (
	maxJSON    = 64 << 20 // bytes per manifest, part file or state.json
	maxDims    = 64       // per shape
	maxMetrics = 1 << 13  // per manifest
)

const maxPlain = 1000 // bytes

// Plain returns a text from a file in a form that is safe to display: unchanged or, if it contains
// anything that is not printable, such as a control character, quoted and escaped. A long one is cut.
func Plain(s string) string {
	if len(s) > maxPlain {
		s = strings.ToValidUTF8(s[:maxPlain], "") + "…"
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
