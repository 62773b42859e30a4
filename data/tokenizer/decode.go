package tokenizer

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// decode transforms the tokens of a text on the way to its final form.
type decode func(tokens []string) []string

// Decode returns the text of ids, skipping unknown ids and, if plain is set, special tokens.
func (t *Tokenizer) Decode(ids []int32, plain bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if s := t.Token(id); s != "" && !(plain && t.specials[s]) {
			tokens = append(tokens, s)
		}
	}
	for _, f := range t.decoder {
		tokens = f(tokens)
	}
	return strings.Join(tokens, t.separator)
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

func (t *Tokenizer) readDecoder(s step) error {
	all, err := s.steps("decoders")
	if err != nil {
		return err
	}
	times := 1
	for _, s := range all {
		f, err := decoder(s, &times)
		if err != nil {
			return err
		}
		t.decoder = append(t.decoder, f)
	}
	if s.kind() != "" {
		t.separator = ""
	}
	return nil
}

// decoder reads a step; times is the most by which the step multiplies the length of a text.
func decoder(s step, times *int) (decode, error) {
	switch s.kind() {
	case "ByteLevel":
		return fromBytes, s.only("add_prefix_space", "use_regex", "trim_offsets")
	case "ByteFallback":
		return fallBack, s.only()
	case "Fuse":
		return func(t []string) []string { return []string{strings.Join(t, "")} }, s.only()
	case "Replace":
		from, to, err := s.literal()
		err = cmp.Or(err, s.grow(times, from, to))
		return func(t []string) []string {
			for i := range t {
				t[i] = strings.ReplaceAll(t[i], from, to)
			}
			return t
		}, err
	case "Strip":
		return trim(s)
	case "Metaspace":
		m, err := readMetaspace(s)
		return m.decode, err
	}
	return nil, s.refuse("type %.40q", s.kind())
}

// fromBytes joins tokens written in Alphabet. A token with other characters is used verbatim.
func fromBytes(tokens []string) []string {
	var b []byte
	for _, s := range tokens {
		text, _ := Literal(s)
		b = append(b, text...)
	}
	return []string{valid(b)}
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

// fallBack joins runs of tokens such as <0x0A>; in a run that is not UTF-8 each byte becomes a
// U+FFFD.
func fallBack(tokens []string) (out []string) {
	var run []byte
	flush := func() {
		if utf8.Valid(run) && len(run) > 0 {
			out = append(out, string(run))
		} else {
			for range run {
				out = append(out, string(utf8.RuneError))
			}
		}
		run = run[:0]
	}
	for _, s := range tokens {
		if len(s) == 6 && s[:3] == "<0x" && s[5] == '>' {
			if b, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		flush()
		out = append(out, s)
	}
	flush()
	return out
}

// trim strips a character from the ends of tokens, up to a given number of times.
func trim(s step) (decode, error) {
	content, err := s.text("content")
	start, err2 := s.count("start")
	stop, err3 := s.count("stop")
	for _, err := range []error{err, err2, err3, s.only("content", "start", "stop")} {
		if err != nil {
			return nil, err
		}
	}
	if content == "" {
		return nil, s.refuse("stripping an empty text")
	}
	return func(tokens []string) []string {
		for i, s := range tokens {
			for k := 0; k < start && strings.HasPrefix(s, content); k++ {
				s = s[len(content):]
			}
			for k := 0; k < stop && strings.HasSuffix(s, content); k++ {
				s = s[:len(s)-len(content)]
			}
			tokens[i] = s
		}
		return tokens
	}, nil
}

// decode replaces marks by spaces, and removes those of the first token if the mark before the
// text is not part of it.
func (m metaspace) decode(tokens []string) []string {
	for i, s := range tokens {
		if i == 0 && m.scheme != "never" {
			s = strings.ReplaceAll(s, m.mark, "")
		}
		tokens[i] = strings.ReplaceAll(s, m.mark, " ")
	}
	return tokens
}
