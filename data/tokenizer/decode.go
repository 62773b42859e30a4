package tokenizer

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Decode returns the text of ids, skipping unknown ids and, if plain is set, special tokens.
func (t *Tokenizer) Decode(ids []int32, plain bool) string {
	d := t.NewDecoder(plain)
	for _, id := range ids {
		d.add(id)
	}
	return string(d.Rest())
}

// Starts returns the position in a text at which each of its ids begins, or nil if the text was
// normalized or has unknown characters, so that its tokens do not spell it. A mark that the text
// lacks has no length, nor has a token after the text, and white space that an added token includes is
// part of a token next to it.
func (t *Tokenizer) Starts(ids []int32, text string) []int {
	starts, at := make([]int, 0, len(ids)), 0
	for _, id := range ids {
		n, ok := lengthOf(t.spelling(id), text[at:])
		if !ok && at < len(text) {
			return nil
		}
		starts = append(starts, at)
		at += n
	}
	if strings.TrimSpace(text[at:]) != "" {
		return nil
	}
	return starts
}

// lengthOf returns the length of the beginning of text that a token spells.
func lengthOf(piece, text string) (n int, ok bool) {
	bare, marked := strings.CutPrefix(piece, " ")
	switch {
	case piece == "":
		return 0, false
	case strings.HasPrefix(text, piece):
		return len(piece), true
	case marked && strings.HasPrefix(text, bare):
		return len(bare), true
	}
	rest := strings.TrimLeftFunc(text, unicode.IsSpace)
	if !strings.HasPrefix(rest, piece) {
		return 0, false
	}
	return len(text) - len(rest) + len(piece), true
}

// spelling returns the text of a token, with spaces in place of marks.
func (t *Tokenizer) spelling(id int32) string {
	s := t.Token(id)
	switch {
	case t.bytes:
		s, _ = Literal(s)
	case t.fallsBack && len(s) == 6 && strings.HasPrefix(s, "<0x"):
		if b, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
			return string([]byte{byte(b)})
		}
	default:
		s = strings.ReplaceAll(s, cmp.Or(t.marked, mark), " ")
	}
	return s
}

func (t *Tokenizer) readDecoder(s step) {
	times := 1
	for _, s := range s.steps("decoders") {
		t.decoder = append(t.decoder, decoder(s, &times))
	}
	if s.kind() != "" {
		t.separator = ""
	}
}

// decoder reads a step and returns what makes its stage; times is the most by which the step
// multiplies the length of a text.
func decoder(s step, times *int) func(next stage) stage {
	switch s.kind() {
	case "ByteLevel":
		s.only("add_prefix_space", "use_regex", "trim_offsets")
		return func(next stage) stage { return &byteLevel{stage: next} }
	case "ByteFallback":
		s.only()
		return func(next stage) stage { return &byteFallback{stage: next} }
	case "Fuse":
		s.only()
		return func(next stage) stage { return fuse{next} }
	case "Replace":
		from, to := s.literal()
		s.grow(times, from, to)
		return func(next stage) stage { return &replace{stage: next, from: from, to: to} }
	case "Strip":
		return readStrip(s)
	case "Metaspace":
		return readMetaspace(s).stage
	}
	s.refuse("type %.40q", s.kind())
	return nil
}

// readStrip reads a step that removes a text from both ends of tokens, up to a given number of times.
func readStrip(s step) func(next stage) stage {
	content, start, stop := s.text("content"), s.count("start"), s.count("stop")
	s.only("content", "start", "stop")
	switch {
	case content == "":
		s.refuse("stripping an empty text")
	case len(content)*max(start, stop, 1) > maxToken:
		s.refuse("stripping more than %d bytes", maxToken)
	}
	end := strings.Repeat(content, stop)
	return func(next stage) stage {
		return &strip{stage: next, content: content, ends: end, start: start, left: start}
	}
}

// valid converts b to valid UTF-8 like Rust's from_utf8_lossy: each maximal incomplete
// character becomes one U+FFFD.
func valid(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		out.WriteRune(utf8.RuneError)
		b = b[incomplete(b):]
	}
	return out.String()
}

// incomplete returns the length of the incomplete character at the beginning of b, at least 1.
func incomplete(b []byte) int {
	low, high, more := byte(0x80), byte(0xbf), 0 // range of the second byte, and the number of bytes that follow the first
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		more = 1
	case c >= 0xe0 && c <= 0xef:
		more = 2
		if c == 0xe0 {
			low = 0xa0
		} else if c == 0xed {
			high = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		more = 3
		if c == 0xf0 {
			low = 0x90
		} else if c == 0xf4 {
			high = 0x8f
		}
	}
	n := 1
	for n <= more && n < len(b) && b[n] >= low && b[n] <= high {
		n++
		low, high = 0x80, 0xbf
	}
	return n
}
