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

// patterns are the supported expressions, as written in the files.
var patterns = map[string]splitter{
	// GPT-2, where it is given explicitly.
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: gpt2,
	// Llama 3 and OLMo 2; then Qwen 2 to 3, which splits off each digit.
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: func(b []byte) int { return cl100k(b, 3) },
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      func(b []byte) int { return cl100k(b, 1) },
	// Mistral Nemo.
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: tekken,
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

// symbols matches  ?[^\s\p{L}\p{N}]+ followed by any of the bytes in tail.
func symbols(b []byte, tail string) int {
	from := 0
	if b[0] == ' ' {
		from = 1
	}
	end := run(b, from, kind, other)
	if end == from {
		return 0
	}
	for end < len(b) && strings.IndexByte(tail, b[end]) >= 0 {
		end++
	}
	return end
}

// lead reports whether a character matches [^\r\n\p{L}\p{N}], the optional one before a word.
func lead(c class, b byte) bool {
	return c&kind != letter && c&kind != number && b != '\r' && b != '\n'
}

// cl100k matches the expression of Llama 3 with \p{N}{1,most}.
func cl100k(b []byte, most int) int {
	if n := contraction(b, true); n > 0 {
		return n
	}
	c, n := first(b)
	if c&kind == letter {
		return run(b, n, kind, letter)
	}
	if lead(c, b[0]) && n < len(b) {
		if next, more := first(b[n:]); next&kind == letter {
			return run(b, n+more, kind, letter)
		}
	}
	if c&kind == number {
		for k := 1; k < most && n < len(b); k++ {
			next, more := first(b[n:])
			if next&kind != number {
				break
			}
			n += more
		}
		return n
	}
	return rest(b, "\r\n")
}

// rest matches the end of both long expressions: symbols, lines, white space.
func rest(b []byte, tail string) int {
	if n := symbols(b, tail); n > 0 {
		return n
	}
	if n := newlines(b); n > 0 {
		return n
	}
	return spaces(b)
}

// tekken matches the expression of Mistral Nemo, which splits words where a capital follows
// small letters.
func tekken(b []byte) int {
	c, n := first(b)
	led := lead(c, b[0]) && n < len(b)
	for _, match := range [...]func([]byte, int) int{smallEnd, capitals} {
		if led {
			if end := match(b, n); end > 0 {
				return end
			}
		}
		if end := match(b, 0); end > 0 {
			return end
		}
	}
	if c&kind == number {
		return n
	}
	return rest(b, "\r\n/")
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
