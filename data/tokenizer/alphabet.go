package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Alphabet maps bytes to the characters that represent them in vocabularies: printable Latin-1
// characters represent themselves; the other bytes are mapped, in order, to U+0100 and on.
var Alphabet = func() (t [256]rune) {
	more := rune(256)
	for b := range rune(256) {
		t[b] = b
		if !('!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b) {
			t[b] = more
			more++
		}
	}
	return t
}()

// byteOf is the inverse of Alphabet.
var byteOf = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range Alphabet {
		m[r] = byte(b)
	}
	return m
}()

// Literal returns the bytes of a token written in Alphabet. If the token has other characters,
// Literal returns it unchanged, and ok is false.
func Literal(s string) (text string, ok bool) {
	b := make([]byte, 0, utf8.RuneCountInString(s))
	for _, r := range s {
		c, ok := byteOf[r]
		if !ok {
			return s, false
		}
		b = append(b, c)
	}
	return string(b), true
}

// Printed returns a token written in Alphabet.
func Printed(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteRune(Alphabet[c])
	}
	return b.String()
}
