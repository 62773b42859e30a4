package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"sync"
	"unicode/utf8"
)

// class classifies a character for the regular expressions of pre-tokenizers: one of four
// kinds, plus flags.
type class = uint8

const (
	other  class = 0
	letter class = 1 // \p{L}
	number class = 2 // \p{N}
	space  class = 3 // \s
	kind   class = 3 // mask of the kinds

	upper class = 4  // \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}
	lower class = 8  // \p{Ll}\p{Lm}\p{Lo}\p{M}
	word  class = 16 // an added token with single_word must not touch it
	sign  class = 64 // \p{P}\p{S}
	moves class = 32 // NFC may change it, move it, or compose it with preceding characters

	punctuation class = 128 // the pre-tokenizer Punctuation splits at it
)

// runs encodes the classes of all characters in order: a class, and as a varint the number of
// consecutive characters that have it.
//
//go:embed classes.bin
var runs []byte

// classes maps characters to classes, after load was called.
var classes *[utf8.MaxRune + 1]class

var load = sync.OnceFunc(func() {
	t, at := new([utf8.MaxRune + 1]class), 0
	for b := runs; len(b) > 0; {
		n, size := binary.Uvarint(b[1:])
		for range n {
			t[at] = b[0]
			at++
		}
		b = b[1+size:]
	}
	if at != len(t) {
		panic("tokenizer: classes.bin does not cover all characters")
	}
	classes = t
})
