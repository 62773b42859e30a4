package tokenizer

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// A splitter returns the length in bytes of the first piece of a non-empty text. The functions
// below implement the models' regular expressions directly, ten times as fast as a general
// matcher. A byte that is not UTF-8 counts as a character of class other.
type splitter func(text []byte) int

const qwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// patterns are the supported expressions, as written in the files.
var patterns = map[string]splitter{
	// GPT-2, where it is given explicitly.
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: gpt2,
	// Llama 3 and OLMo 2; then Qwen 2 to 3, which splits off each digit.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: cl100k(3),
	qwen2: cl100k(1),
	// Mistral Nemo.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: cased(1, false),
	// o200k: GPT-4o, gpt-oss, Phi-4-mini.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: cased(3, true),
	// Qwen 3.5.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: firstOf(short, led(lead, &lettersAndMarks), numbers(1), symbols("\r\n", marks, other), newlines, spaces),
}

// parts are the expressions that match only parts of a text: the text between matches is a piece,
// too. DeepSeek 3 has the first three, Falcon the last.
var parts = map[string]splitter{
	`\p{N}{1,3}`:        between(numbers(3)),
	"[一-龥\u3040-ゟ゠-ヿ]+": between(eastern),
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": between(firstOf(signWord, led(signLead, &lettersAndMarks), symbols("\r\n", sign, sign), newlines, spaces)),
	`[0-9][0-9][0-9]`: between(threeDigits),
}

// first returns the class and the length of the first character.
func first(b []byte) (class, int) {
	if c := b[0]; c < utf8.RuneSelf {
		return classes[c], 1
	}
	r, n := utf8.DecodeRune(b)
	return classes[r], n
}

// run returns the end of the characters from i on whose class, masked, equals want.
func run(b []byte, i int, mask, want class) int {
	for i < len(b) {
		c, n := first(b[i:])
		if c&mask != want {
			break
		}
		i += n
	}
	return i
}

// gpt2 matches 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func gpt2(b []byte) int {
	if n := contraction(b, false); n > 0 {
		return n
	}
	c, end := first(b)
	if b[0] == ' ' && len(b) > 1 {
		if next, n := first(b[1:]); next&kind != space {
			c, end = next, 1+n
		}
	}
	if c&kind == space {
		return spaces(b)
	}
	return run(b, end, kind, c&kind)
}

// contraction returns the length of 's|'t|'re|'ve|'m|'ll|'d, or 0. If case is folded, ſ counts
// as an s.
func contraction(b []byte, fold bool) int {
	if len(b) < 2 || b[0] != '\'' {
		return 0
	}
	low := func(i int) byte {
		if i >= len(b) {
			return 0
		}
		if c := b[i]; fold && c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return b[i]
	}
	one, two := low(1), low(2)
	switch {
	case one == 's' || one == 't' || one == 'm' || one == 'd':
		return 2
	case (one == 'r' || one == 'v') && two == 'e', one == 'l' && two == 'l':
		return 3
	case fold && bytes.HasPrefix(b[1:], []byte("ſ")):
		return 1 + len("ſ")
	}
	return 0
}

// spaces matches \s+(?!\S)|\s+ and returns 0 without white space: a run, without its last
// character if the run is longer than that and something follows it.
func spaces(b []byte) int {
	last, end := 0, 0
	for end < len(b) {
		c, n := first(b[end:])
		if c&kind != space {
			if last > 0 {
				return last
			}
			break
		}
		last, end = end, end+n
	}
	return end
}

// digits splits off each numeric character.
func digits(b []byte) int {
	c, n := first(b)
	if c&kind == number {
		return n
	}
	for n < len(b) {
		next, more := first(b[n:])
		if next&kind == number {
			break
		}
		n += more
	}
	return n
}

// newlines matches \s*[\r\n]+
func newlines(b []byte) int {
	end, i := 0, 0
	for i < len(b) {
		c, n := first(b[i:])
		if c&kind != space {
			break
		}
		if b[i] == '\n' || b[i] == '\r' {
			end = i + 1
		}
		i += n
	}
	return end
}

// symbols matches an optional space and symbols, whose class, masked, equals want, followed by any
// of the bytes in tail.
func symbols(tail string, mask, want class) splitter {
	return func(b []byte) int {
		from := 0
		if b[0] == ' ' {
			from = 1
		}
		end := run(b, from, mask, want)
		if end == from {
			return 0
		}
		for end < len(b) && strings.IndexByte(tail, b[end]) >= 0 {
			end++
		}
		return end
	}
}

// firstOf matches the first of its alternatives that match, or returns 0.
func firstOf(all ...splitter) splitter {
	return func(b []byte) int {
		for _, match := range all {
			if n := match(b); n > 0 {
				return n
			}
		}
		return 0
	}
}

// lead reports whether a character matches [^\r\n\p{L}\p{N}], the optional one before a word.
func lead(c class, b byte) bool {
	return c&kind != letter && c&kind != number && b != '\r' && b != '\n'
}

// cl100k matches the expression of Llama 3 with \p{N}{1,most}.
func cl100k(most int) splitter {
	return firstOf(short, led(lead, &letters), numbers(most), symbols("\r\n", kind, other), newlines, spaces)
}

// short matches (?i:'s|'t|'re|'ve|'m|'ll|'d), or returns 0.
func short(b []byte) int { return contraction(b, true) }

// cased matches the expressions of Mistral Nemo and o200k, which split words where a capital
// follows small letters, with \p{N}{1,most}. With short, a word includes a contraction after it.
func cased(most int, short bool) splitter {
	word := func(match func(b []byte, i int) int) splitter {
		return func(b []byte) (end int) {
			if c, n := first(b); lead(c, b[0]) && n < len(b) {
				end = match(b, n)
			}
			if end == 0 {
				end = match(b, 0)
			}
			if end > 0 && short {
				end += contraction(b[end:], true)
			}
			return end
		}
	}
	return firstOf(word(smallEnd), word(capitals), numbers(most), symbols("\r\n/", kind, other), newlines, spaces)
}

// numbers matches \p{N}{1,most}, or returns 0.
func numbers(most int) splitter {
	return func(b []byte) (end int) {
		for n := 0; n < most && end < len(b); n++ {
			c, size := first(b[end:])
			if c&kind != number {
				break
			}
			end += size
		}
		return end
	}
}

// The class of \p{M}, and its mask.
const (
	marked = upper | lower
	marks  = kind | upper | lower
)

// letters and lettersAndMarks are the classes that match \p{L} and [\p{L}\p{M}].
var letters, lettersAndMarks = func() (l, m [256]bool) {
	for c := range l {
		l[c] = class(c)&kind == letter
		m[c] = l[c] || class(c)&marks == marked
	}
	return l, m
}()

// led matches characters whose classes are in a set, after an optional one for which lead is true, or
// returns 0.
func led(lead func(c class, b byte) bool, in *[256]bool) splitter {
	rest := func(b []byte, i int) int {
		for i < len(b) {
			c, n := first(b[i:])
			if !in[c] {
				break
			}
			i += n
		}
		return i
	}
	return func(b []byte) int {
		c, n := first(b)
		if lead(c, b[0]) {
			if end := rest(b, n); end > n {
				return end
			}
		}
		if in[c] {
			return rest(b, n)
		}
		return 0
	}
}

// signWord matches an ASCII sign and letters, the first alternative of DeepSeek 3, or returns 0.
func signWord(b []byte) int {
	end := 1
	if b[0] >= utf8.RuneSelf || classes[b[0]]&sign == 0 {
		return 0
	}
	for end < len(b) && 'a' <= b[end]|0x20 && b[end]|0x20 <= 'z' {
		end++
	}
	if end == 1 {
		return 0
	}
	return end
}

// signLead reports whether a character matches [^\r\n\p{L}\p{P}\p{S}].
func signLead(c class, b byte) bool {
	return c&kind != letter && c&sign == 0 && b != '\r' && b != '\n'
}

// eastern matches [一-龥぀-ゟ゠-ヿ]+, or returns 0.
func eastern(b []byte) (end int) {
	for end < len(b) {
		r, n := utf8.DecodeRune(b[end:])
		if !(r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff) {
			break
		}
		end += n
	}
	return end
}

// threeDigits matches [0-9][0-9][0-9], or returns 0.
func threeDigits(b []byte) int {
	for i := range 3 {
		if i >= len(b) || b[i] < '0' || b[i] > '9' {
			return 0
		}
	}
	return 3
}

// between returns a splitter at the matches of an expression and at the text between them.
func between(match splitter) splitter {
	return func(b []byte) int {
		if n := match(b); n > 0 {
			return n
		}
		end := 0
		for end < len(b) && (end == 0 || match(b[end:]) == 0) {
			_, n := utf8.DecodeRune(b[end:])
			end += n
		}
		return end
	}
}

// punctuated splits text into runs of punctuation and of other characters.
func punctuated(b []byte) int {
	c, n := first(b)
	return run(b, n, punctuation, c&punctuation)
}

// digitRuns splits bytes, written in Alphabet, into runs of numeric characters and of others.
func digitRuns(b []byte) int {
	numeric := func(c byte) bool {
		return '0' <= c && c <= '9' || c == 0xb2 || c == 0xb3 || c == 0xb9 || 0xbc <= c && c <= 0xbe
	}
	n := 1
	for n < len(b) && numeric(b[n]) == numeric(b[0]) {
		n++
	}
	return n
}

// smallEnd returns the end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
// starting at i, or 0 if it does not match. The first set backtracks to its last character that
// is in both sets if the second set needs it.
func smallEnd(b []byte, i int) int {
	end, both := i, 0
	for end < len(b) {
		c, n := first(b[end:])
		if c&upper == 0 {
			break
		}
		end += n
		if c&lower != 0 {
			both = end
		}
	}
	if small := run(b, end, lower, lower); small > end {
		return small
	}
	return both
}

// capitals does the same for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
func capitals(b []byte, i int) int {
	end := run(b, i, upper, upper)
	if end == i {
		return 0
	}
	return run(b, end, lower, lower)
}

// after splits after every byte c (Split with MergedWithPrevious).
func after(c byte) splitter {
	return func(b []byte) int {
		if i := bytes.IndexByte(b, c); i >= 0 {
			return i + 1
		}
		return len(b)
	}
}

// before splits before every mark (Metaspace).
func before(mark string) splitter {
	return func(b []byte) int {
		if i := bytes.Index(b[1:], []byte(mark)); i >= 0 {
			return i + 1
		}
		return len(b)
	}
}

// words splits before every mark that does not follow another one.
func words(mark string) splitter {
	return func(b []byte) int {
		from := 0
		for bytes.HasPrefix(b[from:], []byte(mark)) {
			from += len(mark)
		}
		if i := bytes.Index(b[from:], []byte(mark)); i >= 0 {
			return from + i
		}
		return len(b)
	}
}
