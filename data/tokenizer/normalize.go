package tokenizer

import (
	"bytes"
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// form is a normal form of Unicode other than NFC.
type form struct{ compatible, composed bool }

var forms = map[string]form{"NFD": {}, "NFKD": {compatible: true}, "NFKC": {compatible: true, composed: true}}

// apply returns the normal form of a text. An ASCII character never moves or composes with a
// character before it, so the text is taken in runs that begin with one.
func (f form) apply(b []byte) []byte {
	if ascii(b) {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	var run []rune
	end := func() {
		if f.composed {
			run = recompose(run)
		} else {
			run = ordered(run)
		}
		out, run = append(out, string(run)...), run[:0]
	}
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch parts, ok := compatible[r]; {
		case r == utf8.RuneError && n == 1: // not UTF-8
			end()
			out = append(out, b[0])
		case r < utf8.RuneSelf:
			end()
			run = append(run, r)
		case ok && f.compatible:
			run = append(run, parts...)
		default:
			run = decompose(run, r)
		}
		b = b[n:]
	}
	end()
	return out
}

func ascii(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c >= utf8.RuneSelf })
}

// lowercase returns a text in lower case, character by character.
func lowercase(b []byte) []byte {
	return replaced(b, func(r rune) ([]rune, bool) { parts, ok := lowered[r]; return parts, ok })
}

// withoutAccents returns a text without nonspacing marks.
func withoutAccents(b []byte) []byte {
	if ascii(b) {
		return b
	}
	return replaced(b, func(r rune) ([]rune, bool) {
		i, exact := slices.BinarySearchFunc(accents, r, func(x [2]rune, r rune) int { return cmp.Compare(x[0], r) })
		return nil, exact || i > 0 && r < accents[i-1][1]
	})
}

// replaced returns a text with some characters replaced.
func replaced(b []byte, by func(rune) ([]rune, bool)) []byte {
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if parts, ok := by(r); ok && (n > 1 || r < utf8.RuneSelf) {
			out = append(out, string(parts)...)
		} else {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return out
}

// stripped returns a text without white space at its ends.
func stripped(b []byte, left, right bool) []byte {
	if left {
		b = bytes.TrimLeftFunc(b, unicode.IsSpace)
	}
	if right {
		b = bytes.TrimRightFunc(b, unicode.IsSpace)
	}
	return b
}
