package data

import (
	"bytes"
	"slices"
)

// Stream decodes ids one by one. The text of a token may depend on previous ones, and a
// character may consist of several tokens.
type Stream struct {
	tok       Tokenizer
	ids       []int32 // the most recent
	from, new int     // the text of ids[:new] has been returned, ids[new:] await the rest of a character; decoding starts at from
}

// contextIDs is the number of previous ids sufficient to decode the following ones.
const contextIDs = 8

// NewStream returns a stream that continues after ids already decoded.
func NewStream(t Tokenizer, before []int32) *Stream {
	ids := slices.Clone(before[max(0, len(before)-contextIDs):])
	return &Stream{t, ids, 0, len(ids)}
}

// Next returns the text that an id adds; it is empty while a character is incomplete.
func (s *Stream) Next(id int32) []byte {
	if _, ok := s.tok.(*Folder); !ok {
		return s.tok.Decode([]int32{id}) // each id decodes by itself
	}
	s.ids = append(s.ids, id)
	return s.next(false)
}

// Rest returns the text of an incomplete character.
func (s *Stream) Rest() []byte { return s.next(true) }

func (s *Stream) next(all bool) []byte {
	before, now := s.tok.Decode(s.ids[s.from:s.new]), s.tok.Decode(s.ids[s.from:])
	if s.new == len(s.ids) || !all && bytes.HasSuffix(now, []byte(replacement)) && len(s.ids)-s.new < contextIDs {
		return nil
	}
	s.ids, s.from = s.ids[max(0, s.new-contextIDs):], 0
	s.new = len(s.ids)
	return now[min(len(before), len(now)):]
}
