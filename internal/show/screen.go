package show

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Screen writes text to a terminal. Everything that is not text there, such as sequences that
// move the cursor or rename the window, is escaped as in Go strings. A character may arrive in
// parts; Close writes an incomplete one.
type Screen struct {
	w    io.Writer
	part []byte // beginning of a character
}

// NewScreen writes to w, a terminal.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w} }

// Write implements io.Writer.
func (s *Screen) Write(text []byte) (int, error) {
	var b bytes.Buffer
	all := append(s.part, text...)
	for utf8.FullRune(all) {
		n := escaped(&b, all)
		all = all[n:]
	}
	s.part = bytes.Clone(all)
	_, err := s.w.Write(b.Bytes())
	return len(text), err
}

// Close ends the text.
func (s *Screen) Close() error {
	var b bytes.Buffer
	for len(s.part) > 0 {
		s.part = s.part[escaped(&b, s.part):]
	}
	_, err := s.w.Write(b.Bytes())
	return err
}

// escaped writes the first character of a text in a form that is safe for a terminal, and returns
// its length in bytes.
func escaped(b *bytes.Buffer, text []byte) int {
	r, n := utf8.DecodeRune(text)
	switch {
	case r == utf8.RuneError && n == 1:
		fmt.Fprintf(b, `\x%02x`, text[0])
	case r == '\n' || r == '\t' || unicode.IsGraphic(r):
		b.Write(text[:n])
	default:
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return n
}

// OnScreen formats a whole text for a terminal.
func OnScreen(text []byte) string {
	var b bytes.Buffer
	s := NewScreen(&b)
	_, _ = s.Write(text) // cannot fail
	_ = s.Close()
	return b.String()
}
