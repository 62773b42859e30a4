package data

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// GPT-2 splits text into pieces before it merges pairs, by the regular expression
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// The functions below implement this expression directly, about ten times as fast as a
// general matcher. They accept bytes that are not UTF-8, each of which counts as a character
// of the third kind.

type class uint8

const (
	other class = iota
	letter
	number
	space
)

// classify returns the class and the length in bytes of the first character.
func classify(text []byte) (class, int) {
	if c := text[0]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	r, n := utf8.DecodeRune(text)
	return classOf(r), n
}

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

var ascii = func() (t [utf8.RuneSelf]class) {
	for r := range t {
		t[r] = classOf(rune(r))
	}
	return t
}()

// pieceLen returns the length in bytes of the first piece of a non-empty text.
func pieceLen(text []byte) int {
	if text[0] == '\'' {
		if n := contraction(text); n > 0 {
			return n
		}
	}
	c, end := classify(text)
	if text[0] == ' ' && len(text) > 1 {
		if next, n := classify(text[1:]); next != space {
			c, end = next, 1+n
		}
	}
	if c == space {
		return spaceLen(text)
	}
	for end < len(text) {
		next, n := classify(text[end:])
		if next != c {
			break
		}
		end += n
	}
	return end
}

// spaceLen returns the length of a run of white space, without its last character if the run
// is longer than that and something follows it.
func spaceLen(text []byte) int {
	last, end := 0, 0
	for end < len(text) {
		c, n := classify(text[end:])
		if c != space {
			if last > 0 {
				return last
			}
			break
		}
		last, end = end, end+n
	}
	return end
}

func contraction(text []byte) int {
	for _, s := range [...]string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if len(text) >= len(s) && string(text[:len(s)]) == s {
			return len(s)
		}
	}
	return 0
}

// chunkBytes is the approximate size of a chunk of text.
const chunkBytes = 1 << 20

// chunkLen returns where to cut a long text so that encoding the parts equals encoding the
// whole: before the first white space after other text beyond chunkBytes. No piece extends
// from text into white space.
func chunkLen(text []byte) int {
	for at := chunkBytes; at < len(text); at++ {
		i := bytes.IndexAny(text[at:], " \n")
		if i < 0 {
			break
		}
		at += i
		if before := text[at-1]; before < utf8.RuneSelf && ascii[before] != space {
			return at
		}
	}
	return len(text)
}
