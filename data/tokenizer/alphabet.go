package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Alphabet is how vocabularies write a byte: those that print in Latin-1 stand for
// themselves, the others, in order, are U+0100 and on.
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

// byteOf is Alphabet the other way.
var byteOf = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range Alphabet {
		m[r] = byte(b)
	}
	return m
}()

// Literal is the bytes of a token written in that alphabet; ok is false for one
// that is not, and then it is the token as it is.
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

// Printed writes a token in the alphabet.
func Printed(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteRune(Alphabet[c])
	}
	return b.String()
}
