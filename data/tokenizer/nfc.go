package tokenizer

import (
	"cmp"
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The reference composes as in Unicode 9. golang.org/x/text/unicode/norm v0.42.0 has Unicode 15 or
// later: it orders 108 more marks, decomposes 135 more characters, and inserts U+034F into long runs
// of marks. So we implement the algorithm (Unicode Standard Annex 15) with the reference's tables.

// composing has lines of six kinds: the decomposition of a character (=), or its compatible one if
// that differs (~), the class of a mark (#), the composition of two characters (+), the lower case
// of a character (>), and a range [from, to) of marks that StripAccents removes (!).
//
//go:embed nfc.txt
var composing string

var (
	decomposed = map[rune][]rune{}  // complete decompositions
	markClass  = map[rune]int{}     // canonical combining class; 0 for all others
	composed   = map[[2]rune]rune{} // primary composites
	compatible = map[rune][]rune{}  // complete compatible decompositions that differ from decomposed
	lowered    = map[rune][]rune{}  // lower case, if it differs
	accents    [][2]rune            // ranges, in order
)

var loadNFC = sync.OnceFunc(func() {
	for line := range strings.Lines(composing) {
		var r []rune
		for _, f := range strings.Fields(line[1:]) {
			x, err := strconv.ParseInt(f, 16, 32)
			if err != nil {
				panic("tokenizer: nfc.txt: " + line)
			}
			r = append(r, rune(x))
		}
		switch line[0] {
		case '=':
			decomposed[r[0]] = r[1:]
		case '#':
			markClass[r[0]] = int(r[1])
		case '+':
			composed[[2]rune(r)] = r[2]
		case '~':
			compatible[r[0]] = r[1:]
		case '>':
			lowered[r[0]] = r[1:]
		case '!':
			accents = append(accents, [2]rune(r))
		}
	}
})

// nfc returns the NFC form of a text as in the reference, or the text itself if nothing
// changes.
func nfc(b []byte) []byte {
	at := nextMove(b)
	if at == len(b) {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		_, n := utf8.DecodeLastRune(b[:at]) // the last character before it
		out = append(out, b[:at-n]...)
		end := at
		for end < len(b) {
			c, n := first(b[end:])
			if c&moves == 0 {
				break
			}
			end += n
		}
		out = compose(out, b[at-n:end])
		b = b[end:]
		at = nextMove(b)
		if at == len(b) {
			return append(out, b...)
		}
	}
	return out
}

// nextMove returns the position of the next character that may compose with a previous one, move,
// or change.
func nextMove(b []byte) (at int) {
	for at < len(b) {
		if b[at] < utf8.RuneSelf {
			at++
			continue
		}
		c, n := first(b[at:])
		if c&moves != 0 {
			break
		}
		at += n
	}
	return at
}

// compose appends a character and the following ones that may move: decomposed, with marks
// sorted by class, and each composed with the last starter, unless a mark of the same or a
// higher class, or another starter, is between.
func compose(out, b []byte) []byte {
	var all []rune
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 { // not UTF-8, and not a mark: it ends a run
			return append(append(out, string(recompose(all))...), b[i:]...)
		}
		all = decompose(all, r)
		i += n
	}
	return append(out, string(recompose(all))...)
}

// Hangul syllables are computed (The Unicode Standard, 3.12).
const (
	firstL, firstV, firstT, firstS = 0x1100, 0x1161, 0x11a7, 0xac00
	countL, countV, countT         = 19, 21, 28
	countS                         = countL * countV * countT
)

func decompose(all []rune, r rune) []rune {
	if s := r - firstS; s >= 0 && s < countS {
		all = append(all, firstL+s/(countV*countT), firstV+s/countT%countV)
		if t := s % countT; t > 0 {
			all = append(all, firstT+t)
		}
		return all
	}
	if parts, ok := decomposed[r]; ok {
		return append(all, parts...)
	}
	return append(all, r)
}

// ordered sorts marks by their class, between others.
func ordered(all []rune) []rune {
	for i := 0; i < len(all); i++ {
		end := i
		for end < len(all) && markClass[all[end]] > 0 {
			end++
		}
		slices.SortStableFunc(all[i:end], func(a, b rune) int { return cmp.Compare(markClass[a], markClass[b]) })
		i = end
	}
	return all
}

func recompose(all []rune) []rune {
	all = ordered(all)
	starter, last := -1, 0 // index marks compose with; class of the last character kept
	kept := all[:0]
	for _, r := range all {
		class := markClass[r]
		if starter >= 0 && (starter == len(kept)-1 || last > 0 && last < class) {
			if both := composite(kept[starter], r); both > 0 {
				kept[starter] = both
				continue
			}
		}
		if last = class; class == 0 {
			starter = len(kept)
		}
		kept = append(kept, r)
	}
	return kept
}

// composite returns the composition of two characters, or 0.
func composite(a, b rune) rune {
	l, v := a-firstL, b-firstV
	if l >= 0 && l < countL && v >= 0 && v < countV {
		return firstS + (l*countV+v)*countT
	}
	s, t := a-firstS, b-firstT
	if s >= 0 && s < countS && s%countT == 0 && t > 0 && t < countT {
		return a + t
	}
	return composed[[2]rune{a, b}]
}
