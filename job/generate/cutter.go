package generate

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// cutter writes a stream of text up to a stop string. It holds back a possible beginning of a stop
// string and incomplete characters, so the output does not depend on how the text is split.
type cutter struct {
	w     io.Writer
	stops []string
	held  []byte
	done  bool // a stop string was found
}

// Write writes everything that cannot be part of a stop string. It drops text after a stop string.
func (c *cutter) Write(part []byte) (int, error) {
	if c.done {
		return len(part), nil
	}
	c.held = append(c.held, part...)
	if at := firstStop(c.held, c.stops); at >= 0 {
		c.held, c.done = c.held[:at], true
		return len(part), c.Close()
	}
	n := len(c.held) - begun(c.held, c.stops)
	n -= cutRune(c.held[:n])
	_, err := c.w.Write(c.held[:n])
	c.held = c.held[:copy(c.held, c.held[n:])]
	return len(part), err
}

// Close writes the text held back.
func (c *cutter) Close() error {
	if len(c.held) == 0 {
		return nil
	}
	_, err := c.w.Write(c.held)
	c.held = nil
	return err
}

// firstStop returns the start of the stop string that ends first, and if several end there, of the
// longest; -1 if there is none.
func firstStop(text []byte, stops []string) int {
	at, end := -1, len(text)+1
	for _, s := range stops {
		if i := bytes.Index(text, []byte(s)); i >= 0 && (i+len(s) < end || i+len(s) == end && i < at) {
			at, end = i, i+len(s)
		}
	}
	return at
}

// begun returns the length of the longest suffix of text that is a proper prefix of a stop string.
func begun(text []byte, stops []string) (longest int) {
	for _, s := range stops {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if string(text[len(text)-n:]) == s[:n] {
				longest = n
			}
		}
	}
	return longest
}

// cutRune returns the number of bytes at the end of text that may be the beginning of a character.
func cutRune(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}
