package data

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode"
	"unicode/utf8"

	"zeroth/data/tokenizer"
)

// BPE is a byte-level byte-pair encoding (Sennrich et al., arXiv 1508.07909; over bytes since
// GPT-2). A piece of text starts as one token per byte; then, repeatedly, the leftmost of the
// adjacent pairs with the lowest rank is merged into one token.
type BPE struct {
	tokens    []string // bytes by id; "" if an id has no token
	bytes     [256]uint32
	merges    tokenizer.Merges
	order     []uint64 // mergeable pairs by rank: left<<32 | right
	separator int32
}

func pair(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// Vocab returns the number of ids.
func (v *BPE) Vocab() int { return len(v.tokens) }

// Separator returns the id of <|endoftext|>, or -1.
func (v *BPE) Separator() int32 { return v.separator }

// Encode returns the ids of a text.
func (v *BPE) Encode(text []byte) []int32 {
	return signed(newEncoder(v).Append(nil, text, false))
}

// Decode returns the text of ids.
func (v *BPE) Decode(ids []int32) (text []byte) {
	for _, id := range ids {
		if id < 0 || int(id) >= len(v.tokens) || v.tokens[id] == "" {
			text = append(text, replacement...)
			continue
		}
		text = append(text, v.tokens[id]...)
	}
	return text
}

// idWidth returns the bytes per id for a vocabulary of the given size.
func idWidth(vocab int) int {
	if vocab <= 1<<16 {
		return 2
	}
	return 4
}

// encoder is the state of one encoding goroutine.
type encoder struct {
	*tokenizer.Encoder
	separator int32
}

func newEncoder(v *BPE) encoder {
	return encoder{tokenizer.GPT2(v.bytes, v.merges).NewEncoder(), v.separator}
}

// part appends the ids of a part of a file.
func (e encoder) part(ids []uint32, t task) []uint32 {
	ids = e.Append(ids, t.text, false)
	if t.last && e.separator >= 0 {
		ids = append(ids, uint32(e.separator))
	}
	return ids
}

// parts returns an encoder for one goroutine.
func (v *BPE) parts() partEncoder { return newEncoder(v) }

// chunkBytes is the approximate size of a chunk of text.
const chunkBytes = 1 << 20

// cut returns where to cut a long text so that encoding the parts equals encoding the whole: before
// the first white space after other text beyond chunkBytes. No piece extends from text into white
// space.
func (v *BPE) cut(text []byte) int {
	for at := chunkBytes; at < len(text); at++ {
		i := bytes.IndexAny(text[at:], " \n")
		if i < 0 {
			break
		}
		at += i
		if before := text[at-1]; before < utf8.RuneSelf && !unicode.IsSpace(rune(before)) {
			return at
		}
	}
	return len(text)
}

// refuse returns nil: any bytes can be encoded.
func (v *BPE) refuse([]byte) error { return nil }

// spelledOut counts the occurrences of the separator's text in a task.
func (v *BPE) spelledOut(t task, _ []uint32) int64 {
	if v.separator < 0 {
		return 0
	}
	return int64(bytes.Count(t.text, []byte(v.tokens[v.separator])))
}

func (v *BPE) noteSpelledOut(n int64) string {
	return fmt.Sprintf("the text contains %.40q %d times; it is encoded as text, not as the token that ends a document", v.tokens[v.separator], n)
}

// littleEndian returns ids as the bytes of a segment.
func littleEndian(ids []uint32, width int) []byte {
	b := make([]byte, 0, len(ids)*width)
	for _, id := range ids {
		if width == 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(id))
		} else {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	return b
}
