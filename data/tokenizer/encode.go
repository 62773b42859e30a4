package tokenizer

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// Encode is the ids of a text, without what the template puts around it.
func (t *Tokenizer) Encode(text []byte) []uint32 {
	return t.NewEncoder().Append(nil, text, false)
}

// Encoder is the memory of one goroutine that encodes.
type Encoder struct {
	*Tokenizer
	known  map[string]span // pieces met before, at most maxKnown
	kept   []uint32        // their ids
	merger Merger
	marked []byte
}

// span is a part of Encoder.kept.
type span struct{ from, to uint32 }

const (
	maxKnown      = 1 << 16 // pieces: some 10 MB
	maxKnownBytes = 64      // longer pieces seldom come twice
)

// NewEncoder is an encoder that has met no text yet.
func (t *Tokenizer) NewEncoder() *Encoder { return &Encoder{Tokenizer: t, known: map[string]span{}} }

// Append adds the ids of a text to ids. A text that goes on from one before, cut
// where Cut says, is continued.
func (e *Encoder) Append(ids []uint32, text []byte, continued bool) []uint32 {
	token := func(a *Added) { ids = append(ids, a.ID) }
	e.cutOut(&e.raw, text, func(b []byte, at int) {
		b = e.normalize(b, continued && at == 0)
		e.cutOut(&e.normed, b, func(b []byte, in int) {
			ids = e.segment(ids, b, !continued && at == 0 && in == 0)
		}, token)
	}, token)
	return ids
}

func (t *Tokenizer) normalize(b []byte, continued bool) []byte {
	for _, f := range t.normalizers {
		b = f(b, continued)
	}
	return b
}

// segment adds the ids of normalized text without an added token; first is set if
// it begins the whole text.
func (e *Encoder) segment(ids []uint32, b []byte, first bool) []uint32 {
	if e.meta != nil {
		e.marked = e.meta.apply(e.marked[:0], b, first)
		b = e.marked
	}
	return e.pieces(ids, b, e.cuts)
}

func (e *Encoder) pieces(ids []uint32, b []byte, cuts []cut) []uint32 {
	if len(cuts) == 0 {
		return e.piece(ids, b)
	}
	if cuts[0].prefix && len(b) > 0 && b[0] != ' ' {
		b = append([]byte{' '}, b...)
	}
	for len(b) > 0 {
		n := len(b)
		if cuts[0].split != nil {
			n = cuts[0].split(b)
		}
		ids = e.pieces(ids, b[:n], cuts[1:])
		b = b[n:]
	}
	return ids
}

func (e *Encoder) piece(ids []uint32, p []byte) []uint32 {
	if s, ok := e.known[string(p)]; ok {
		return append(ids, e.kept[s.from:s.to]...)
	}
	from := len(ids)
	if id, ok := e.ids[string(p)]; ok && e.whole {
		ids = append(ids, id)
	} else {
		ids = e.merge(ids, p)
	}
	if len(p) <= maxKnownBytes {
		if len(e.known) == maxKnown {
			clear(e.known)
			e.kept = e.kept[:0]
		}
		at := uint32(len(e.kept))
		e.kept = append(e.kept, ids[from:]...)
		e.known[string(p)] = span{at, uint32(len(e.kept))}
	}
	return ids
}

// merge adds the ids of a piece whose characters, or bytes, are tokens at first. As
// in the reference, a character that is unknown comes after the bytes that characters
// behind it fall back to.
func (e *Encoder) merge(ids []uint32, p []byte) []uint32 {
	unknown := false // one is yet to come
	for len(p) > 0 {
		n := 1
		if !e.bytes {
			_, n = utf8.DecodeRune(p)
		}
		id, ok := e.character(p[:n])
		falls := !ok && e.falls && e.inBytes(p[:n])
		if unknown && (ok || !falls && !e.fuse) {
			e.merger.Push(uint32(e.unknown))
			unknown = false
		}
		switch {
		case ok:
			e.merger.Push(id)
		case falls:
			for _, b := range p[:n] {
				e.merger.Push(uint32(e.fallback[b]))
			}
		case e.unknown >= 0:
			unknown = true
		}
		p = p[n:]
	}
	if unknown {
		e.merger.Push(uint32(e.unknown))
	}
	return e.merger.Append(ids, &e.merges)
}

// character is the token of one.
func (e *Encoder) character(c []byte) (uint32, bool) {
	if e.bytes {
		id := e.fallback[c[0]]
		return uint32(id), id >= 0
	}
	id, ok := e.ids[string(c)]
	return id, ok
}

// inBytes tells whether all bytes of a character have a token.
func (e *Encoder) inBytes(c []byte) bool {
	for _, b := range c {
		if e.fallback[b] < 0 {
			return false
		}
	}
	return true
}

// mark is how SentencePiece writes a space.
const mark = "▁"

// cutWords cuts a text that no pre-tokenizer cuts before marks of spaces, if no
// merge goes across such a place: the ids are the same, and words are met again.
func (t *Tokenizer) cutWords() {
	_, known := t.ids[mark]
	if known && t.marked == mark && len(t.cuts) == 0 && !t.whole && !t.across {
		t.cuts = []cut{{split: words(mark), words: true}}
	}
}

// Cut is a place, at or behind one that is given, where a text may be cut so that
// its parts have the ids of the whole: between a letter and a space. It is the
// text's length if there is none.
func (t *Tokenizer) Cut(text []byte, at int) int {
	if !t.parts || !slices.ContainsFunc(t.cuts, func(c cut) bool { return c.words }) {
		return len(text)
	}
	for at = max(at, 1); at < len(text); at++ {
		i := bytes.IndexByte(text[at:], ' ')
		if i < 0 {
			break
		}
		at += i
		if last := text[at-1] | 0x20; 'a' <= last && last <= 'z' {
			return at
		}
	}
	return len(text)
}
