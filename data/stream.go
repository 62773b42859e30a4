package data

import (
	"bytes"
	"slices"
)

// Stream decodes ids one by one. What a token stands for may depend on those before
// it, and a character may be several tokens.
type Stream struct {
	tok       Tokenizer
	ids       []int32 // the last ones
	told, new int     // ids[told:new] are those whose text was given last, ids[new:] wait for the rest of a character
}

// contextIDs are enough of what came before to decode what follows.
const contextIDs = 8

// NewStream goes on from ids that have been told already.
func NewStream(t Tokenizer, before []int32) *Stream {
	ids := slices.Clone(before[max(0, len(before)-contextIDs):])
	return &Stream{t, ids, 0, len(ids)}
}

// Next is the text that an id adds; empty as long as a character is not whole.
func (s *Stream) Next(id int32) []byte {
	if _, ok := s.tok.(*Folder); !ok {
		return s.tok.Decode([]int32{id}) // each id is its bytes
	}
	s.ids = append(s.ids, id)
	return s.tell(false)
}

// Rest is the text of a character that was not finished.
func (s *Stream) Rest() []byte { return s.tell(true) }

func (s *Stream) tell(all bool) []byte {
	before, now := s.tok.Decode(s.ids[s.told:s.new]), s.tok.Decode(s.ids[s.told:])
	if s.new == len(s.ids) || !all && bytes.HasSuffix(now, []byte(replacement)) && len(s.ids)-s.new < contextIDs {
		return nil
	}
	s.ids, s.told = s.ids[max(0, s.new-contextIDs):], 0
	s.new = len(s.ids)
	return now[min(len(before), len(now)):]
}
