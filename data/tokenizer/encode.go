package tokenizer

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// GPT2 returns a tokenizer that splits text as GPT-2 does, given the id of every byte. It has no
// added tokens and does not decode.
func GPT2(bytes [256]uint32, merges Merges) *Tokenizer {
	load()
	t := &Tokenizer{bytes: true, merges: merges, unknown: -1, splittable: true, cuts: []cut{{split: gpt2, words: true, gpt2: true}}}
	for b, id := range bytes {
		t.fallback[b] = int64(id)
	}
	return t
}

// Encode returns the ids of a text, without the tokens the template puts around it.
func (t *Tokenizer) Encode(text []byte) []uint32 {
	return t.NewEncoder().Append(nil, text, false)
}

// Encoder is the state of one encoding goroutine.
type Encoder struct {
	*Tokenizer
	cache     map[string]span // cache of pieces encoded before, at most maxKnown
	cachedIDs []uint32        // their ids
	merger    Merger
	marked    []byte
}

// span is a part of Encoder.kept.
type span struct{ from, to uint32 }

const (
	maxKnown      = 1 << 16 // pieces, about 10 MB
	maxKnownBytes = 64      // longer pieces rarely repeat
)

// NewEncoder returns an encoder with an empty cache.
func (t *Tokenizer) NewEncoder() *Encoder { return &Encoder{Tokenizer: t, cache: map[string]span{}} }

// Append appends the ids of a text to ids. Set continued if text continues a previous text that
// was split at a position returned by Cut.
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

// segment appends the ids of normalized text without added tokens; first is set if it begins
// the whole text.
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
	if s, ok := e.cache[string(p)]; ok {
		return append(ids, e.cachedIDs[s.from:s.to]...)
	}
	from := len(ids)
	if id, ok := e.ids[string(p)]; ok && e.ignoreMerges {
		ids = append(ids, id)
	} else if e.uni != nil {
		ids = e.unigrams(ids, p)
	} else {
		ids = e.merge(ids, p)
	}
	if len(p) <= maxKnownBytes {
		if len(e.cache) == maxKnown {
			clear(e.cache)
			e.cachedIDs = e.cachedIDs[:0]
		}
		at := uint32(len(e.cachedIDs))
		e.cachedIDs = append(e.cachedIDs, ids[from:]...)
		e.cache[string(p)] = span{at, uint32(len(e.cachedIDs))}
	}
	return ids
}

// merge appends the ids of a piece, starting from its characters or bytes as tokens. As in the
// reference, an unknown character is added after the bytes of following characters that fall
// back to bytes.
func (e *Encoder) merge(ids []uint32, p []byte) []uint32 {
	most := len(p)
	if !e.bytes {
		most = utf8.RuneCount(p)
	}
	e.merger.Reserve(most)
	unknown := false // an unknown character is pending
	for len(p) > 0 {
		n := 1
		if !e.bytes {
			_, n = utf8.DecodeRune(p)
		}
		id, ok := e.character(p[:n])
		fallsBack := !ok && e.fallsBack && e.inBytes(p[:n])
		if unknown && (ok || !fallsBack && !e.fuse) {
			e.merger.Push(uint32(e.unknown))
			unknown = false
		}
		switch {
		case ok:
			e.merger.Push(id)
		case fallsBack:
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

// character returns the token of a character, or of a byte if the alphabet is bytes.
func (e *Encoder) character(c []byte) (uint32, bool) {
	if e.bytes {
		id := e.fallback[c[0]]
		return uint32(id), id >= 0
	}
	id, ok := e.ids[string(c)]
	return id, ok
}

// inBytes reports whether all bytes of a character have a token.
func (e *Encoder) inBytes(c []byte) bool {
	return !slices.ContainsFunc(c, func(b byte) bool { return e.fallback[b] < 0 })
}

// mark is SentencePiece's representation of a space.
const mark = "▁"

// cutWords splits text that has no pre-tokenizer before marks of spaces, if no merge extends
// over such a position. The ids are the same, and the cache of pieces becomes effective.
func (t *Tokenizer) cutWords() {
	_, known := t.ids[mark]
	if known && t.uni == nil && t.marked == mark && len(t.cuts) == 0 && !t.ignoreMerges && !t.mergesAcrossMarks {
		t.cuts = []cut{{split: words(mark), words: true}}
	}
}

// Cut returns a position at or after at where a text may be split such that encoding the parts
// gives the ids of the whole: between a letter and a space. It returns the length of the text
// if there is none.
func (t *Tokenizer) Cut(text []byte, at int) int {
	if !t.splittable || !slices.ContainsFunc(t.cuts, func(c cut) bool { return c.words }) {
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
