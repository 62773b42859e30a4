package tokenizer

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Decoder decodes ids one by one. The parts that it returns, including Rest at the end, are together
// the text of Decode. Each part has whole characters, and no further id can change it.
type Decoder struct {
	t     *Tokenizer
	plain bool // special tokens are skipped
	first stage
	text  *joined
}

// NewDecoder returns a decoder of a new text.
func (t *Tokenizer) NewDecoder(plain bool) *Decoder {
	text := &joined{separator: t.separator}
	d := &Decoder{t, plain, text, text}
	for _, stage := range slices.Backward(t.decoder) {
		d.first = stage(d.first)
	}
	return d
}

// Next returns the text that an id completes.
func (d *Decoder) Next(id int32) []byte {
	d.add(id)
	return d.text.take()
}

// Rest returns the text that waited for further ids. It ends the text.
func (d *Decoder) Rest() []byte {
	d.first.close()
	return d.text.take()
}

func (d *Decoder) add(id int32) {
	if s := d.t.Token(id); s != "" && !(d.plain && d.t.specials[s]) {
		d.first.write(s)
		d.first.end()
	}
}

// stage changes the tokens of a text on the way to its final form. A token comes in any number of
// parts, followed by end; the last token is followed by close. A stage passes on at once what its
// further input cannot change, and holds back the rest.
type stage interface {
	write(part string)
	end()
	close()
}

// joined is the last stage, which puts a separator between tokens.
type joined struct {
	separator    string
	text         []byte
	begun, later bool // within a token; after the first one
}

func (j *joined) write(part string) {
	if !j.begun && j.later {
		j.text = append(j.text, j.separator...)
	}
	j.begun, j.later = true, true
	j.text = append(j.text, part...)
}

func (j *joined) end() {
	j.write("") // unless the token has begun
	j.begun = false
}

func (j *joined) close() {}

func (j *joined) take() []byte {
	text := j.text
	j.text = nil
	return text
}

// fuse makes one token of all.
type fuse struct{ stage }

func (fuse) end() {}

func (f fuse) close() {
	f.stage.end()
	f.stage.close()
}

// byteLevel makes one token of all, which are written in Alphabet. A token with other characters is
// used verbatim.
type byteLevel struct {
	stage
	token []byte
	held  []byte // the beginning of a character
}

func (b *byteLevel) write(part string) { b.token = append(b.token, part...) }

func (b *byteLevel) end() {
	text, _ := Literal(string(b.token))
	b.token, b.held = b.token[:0], append(b.held, text...)
	n := len(b.held) - unfinished(b.held)
	b.stage.write(valid(b.held[:n]))
	b.held = append(b.held[:0], b.held[n:]...)
}

func (b *byteLevel) close() {
	b.stage.write(valid(b.held))
	b.stage.end()
	b.stage.close()
}

// unfinished returns the length of the end of b that further bytes can make a character.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}

// byteFallback joins runs of tokens such as <0x0A>; in a run that is not UTF-8 each byte becomes a
// U+FFFD. A run is therefore held back until it ends.
type byteFallback struct {
	stage
	token []byte // at most len("<0x0A>") bytes
	open  bool   // the token is longer, and passed on
	run   []byte
}

func (f *byteFallback) write(part string) {
	if !f.open {
		part = string(append(f.token, part...))
		if len(part) <= len("<0x0A>") {
			f.token = append(f.token[:0], part...)
			return
		}
		f.flush()
		f.token, f.open = f.token[:0], true
	}
	f.stage.write(part)
}

func (f *byteFallback) end() {
	if b, ok := byteToken(string(f.token)); ok && !f.open {
		f.token, f.run = f.token[:0], append(f.run, b)
		return
	}
	if !f.open {
		f.flush()
		f.stage.write(string(f.token))
	}
	f.token, f.open = f.token[:0], false
	f.stage.end()
}

func (f *byteFallback) close() {
	f.flush()
	f.stage.close()
}

func (f *byteFallback) flush() {
	tokens := []string{string(f.run)}
	switch {
	case len(f.run) == 0:
		return
	case !utf8.Valid(f.run):
		tokens = slices.Repeat([]string{string(utf8.RuneError)}, len(f.run))
	}
	f.run = f.run[:0]
	for _, s := range tokens {
		f.stage.write(s)
		f.stage.end()
	}
}

// byteToken returns the byte that a token such as <0x0A> stands for.
func byteToken(s string) (b byte, ok bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	x, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(x), err == nil
}

// replace replaces a text in every token.
type replace struct {
	stage
	from, to string
	held     []byte // the beginning of from
}

func (r *replace) write(part string) {
	text := append(r.held, part...)
	for at := bytes.Index(text, []byte(r.from)); at >= 0; at = bytes.Index(text, []byte(r.from)) {
		r.stage.write(string(text[:at]) + r.to)
		text = text[at+len(r.from):]
	}
	n := len(text) - begun(text, r.from[:len(r.from)-1])
	r.stage.write(string(text[:n]))
	r.held = append(r.held[:0], text[n:]...)
}

func (r *replace) end() {
	r.stage.write(string(r.held))
	r.held = r.held[:0]
	r.stage.end()
}

// begun returns the length of the longest end of text with which s begins.
func begun(text []byte, s string) int {
	n := min(len(text), len(s))
	for ; n > 0 && string(text[len(text)-n:]) != s[:n]; n-- {
	}
	return n
}

// strip removes a text from both ends of tokens.
type strip struct {
	stage
	content string
	ends    string // content, as often as it may be removed from the end
	start   int    // how often it may be removed from the beginning
	left    int    // how often it still may be
	held    []byte
}

func (s *strip) write(part string) {
	s.held = append(s.held, part...)
	for s.left > 0 && bytes.HasPrefix(s.held, []byte(s.content)) {
		s.held = s.held[len(s.content):]
		s.left--
	}
	if s.left > 0 && strings.HasPrefix(s.content, string(s.held)) {
		return
	}
	s.left = 0
	n := len(s.held) - begun(s.held, s.ends)
	s.stage.write(string(s.held[:n]))
	s.held = append(s.held[:0], s.held[n:]...)
}

func (s *strip) end() {
	for stop := len(s.ends); stop > 0 && bytes.HasSuffix(s.held, []byte(s.content)); stop -= len(s.content) {
		s.held = s.held[:len(s.held)-len(s.content)]
	}
	s.stage.write(string(s.held))
	s.held, s.left = s.held[:0], s.start
	s.stage.end()
}

// spaced replaces marks by spaces, and removes those of the first token if the mark before the text
// is not part of it.
type spaced struct {
	stage          // replaces
	first *replace // removes; nil after the first token
}

// stage returns the stage of a decoder.
func (m metaspace) stage(next stage) stage {
	s := &spaced{stage: &replace{stage: next, from: m.mark, to: " "}}
	if m.scheme != "never" {
		s.first = &replace{stage: s.stage, from: m.mark}
	}
	return s
}

func (s *spaced) write(part string) {
	if s.first != nil {
		s.first.write(part)
		return
	}
	s.stage.write(part)
}

func (s *spaced) end() {
	if s.first != nil {
		s.first.end()
		s.first = nil
		return
	}
	s.stage.end()
}
