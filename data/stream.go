package data

import (
	"bytes"
	"unicode/utf8"

	"zeroth/data/tokenizer"
)

// Stream decodes ids one by one. The text of a token may depend on the others, and a character may
// consist of several tokens: what it returns is, in sum, what Decode returns for all ids.
type Stream struct {
	tok     Tokenizer
	decoder *tokenizer.Decoder // nil if each id decodes by itself
	known   []byte             // text of the ids before that the decoder has not returned yet
}

// NewStream returns a stream that continues after ids already decoded.
func NewStream(t Tokenizer, before []int32) *Stream {
	f, ok := t.(*Folder)
	if !ok {
		return &Stream{tok: t}
	}
	s, n := &Stream{t, f.NewDecoder(false), nil}, 0
	for _, id := range before {
		n += len(s.decoder.Next(id))
	}
	s.known = f.Decode(before)[n:]
	return s
}

// Next returns the text that an id completes. It is empty while following ids can change it, as
// those of a run of bytes that is not UTF-8 do.
func (s *Stream) Next(id int32) []byte {
	if s.decoder == nil {
		return s.tok.Decode([]int32{id})
	}
	return s.added(s.decoder.Next(id))
}

// Rest returns the text that waited for further ids. It ends the stream.
func (s *Stream) Rest() []byte {
	if s.decoder == nil {
		return nil
	}
	return s.added(s.decoder.Rest())
}

// added returns text without what is known already.
func (s *Stream) added(text []byte) []byte {
	for len(s.known) > 0 && len(text) > 0 {
		_, n := utf8.DecodeRune(s.known)
		if !bytes.HasPrefix(text, s.known[:n]) { // following ids changed it
			for range s.known { // bytes in a run that is not UTF-8
				text = bytes.TrimPrefix(text, []byte(replacement))
			}
			s.known = nil
			break
		}
		text, s.known = text[n:], s.known[n:]
	}
	return text
}
