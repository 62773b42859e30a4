package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"sync"
	"unicode/utf8"
)

// class is what the regular expressions of pre-tokenizers ask of a character: one
// of four kinds, and bits beside it.
type class = uint8

const (
	other  class = 0
	letter class = 1 // \p{L}
	number class = 2 // \p{N}
	space  class = 3 // \s
	kind   class = 3 // the bits of these

	upper class = 4  // \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}
	lower class = 8  // \p{Ll}\p{Lm}\p{Lo}\p{M}
	word  class = 16 // what an added token with single_word must not touch
	moves class = 32 // NFC may change it, move it, or compose it with what is before
)

// runs are the classes of all characters in order: a class, and how many
// characters in a row have it as a varint.
//
//go:embed classes.bin
var runs []byte

// classes is a class by character, once load has been called.
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
		panic("tokenizer: classes.bin has not all characters")
	}
	classes = t
})
