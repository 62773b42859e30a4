package chat

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// token is a piece of a template: text, or a word or sign of a tag.
type token struct {
	kind kind
	text string // for a string, its value
	at   int    // byte offset in the template
}

type kind int

const (
	data       kind = iota // text outside tags
	blockBegin             // {%
	blockEnd               // %}
	printBegin             // {{
	printEnd               // }}
	name
	str
	integer
	float
	sign // an operator or bracket
	end  // end of the template
)

var tagBegin = regexp.MustCompile(`\{[%{#][-+]?`)

// lexer splits a template into tokens.
type lexer struct {
	text      string
	at        int
	lineBegin bool // at the beginning of a line
	out       []token
}

var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// lex returns the template with line ends converted to \n and the last one removed, and its
// tokens.
func lex(text string) (string, []token, error) {
	text = strings.TrimSuffix(lineEnds.Replace(text), "\n")
	l := &lexer{text: text, lineBegin: true}
	for l.at < len(l.text) {
		if err := l.part(); err != nil {
			return text, nil, err
		}
	}
	l.add(end, "", l.at)
	return text, l.out, nil
}

func (l *lexer) add(k kind, text string, at int) { l.out = append(l.out, token{k, text, at}) }

// wrong returns an error at a position.
func wrong(text string, at int, format string, args ...any) error {
	before := text[:min(at, len(text))]
	return &Error{1 + strings.Count(before, "\n"), 1 + len([]rune(before[strings.LastIndex(before, "\n")+1:])), fmt.Errorf(format, args...)}
}

// part reads text up to a tag, and the tag.
func (l *lexer) part() error {
	at := tagBegin.FindStringIndex(l.text[l.at:])
	if at == nil {
		l.add(data, l.text[l.at:], l.at)
		l.at = len(l.text)
		return nil
	}
	begin, open := l.at+at[0], l.text[l.at+at[0]:l.at+at[1]]
	l.add(data, l.before(l.text[l.at:begin], open), l.at)
	l.at += at[1]
	switch open[1] {
	case '#':
		return l.comment(begin)
	case '%':
		l.add(blockBegin, "{%", begin)
		return l.tag(begin, "%}", blockEnd)
	}
	l.add(printBegin, "{{", begin)
	return l.tag(begin, "}}", printEnd)
}

// before returns the text before a tag, without the white space that the tag strips.
func (l *lexer) before(text, open string) string {
	switch {
	case strings.HasSuffix(open, "-"):
		return strings.TrimRightFunc(text, unicode.IsSpace)
	case strings.HasSuffix(open, "+") || open[1] == '{':
		return text
	}
	line := strings.LastIndex(text, "\n") + 1
	if (line > 0 || l.lineBegin) && strings.TrimSpace(text[line:]) == "" {
		return text[:line]
	}
	return text
}

// after advances past white space that the end of a tag strips: with - all of it, for a block
// one line feed.
func (l *lexer) after(mark byte, block bool) {
	from := l.at
	switch {
	case mark == '-':
		l.at += len(l.text[l.at:]) - len(strings.TrimLeftFunc(l.text[l.at:], unicode.IsSpace))
	case mark != '+' && block && strings.HasPrefix(l.text[l.at:], "\n"):
		l.at++
	}
	l.lineBegin = l.at > from && l.text[l.at-1] == '\n'
}

func (l *lexer) comment(begin int) error {
	n := strings.Index(l.text[l.at:], "#}")
	if n < 0 {
		return wrong(l.text, begin, "unterminated comment")
	}
	l.at += n + 2
	mark := byte(0)
	if n > 0 {
		mark = l.text[l.at-3]
	}
	l.after(mark, true)
	return nil
}

var (
	words   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)
	floats  = regexp.MustCompile(`^[0-9]+(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)`)
	ints    = regexp.MustCompile(`^[0-9]+`)
	strs    = regexp.MustCompile(`^(?s:'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)")`)
	signs   = regexp.MustCompile(`^(==|!=|>=|<=|//|\*\*|[-+*/%~<>=.,:|()\[\]{}])`)
	lexical = []struct {
		re   *regexp.Regexp
		kind kind
	}{{words, name}, {floats, float}, {ints, integer}, {strs, str}, {signs, sign}}
)

// tag reads the inside of a tag up to its end.
func (l *lexer) tag(begin int, closing string, k kind) error {
	depth := 0 // of brackets; their end may look like that of a tag
	for {
		l.at += len(l.text[l.at:]) - len(strings.TrimLeftFunc(l.text[l.at:], unicode.IsSpace))
		rest := l.text[l.at:]
		if depth == 0 {
			for _, mark := range []string{"", "-", "+"} {
				if strings.HasPrefix(rest, mark+closing) && (mark != "+" || closing == "%}") {
					l.add(k, closing, l.at)
					l.at += len(mark + closing)
					l.after((mark + "\x00")[0], k == blockEnd)
					return nil
				}
			}
		}
		if rest == "" {
			return wrong(l.text, begin, "unterminated tag")
		}
		if err := l.word(rest, &depth); err != nil {
			return err
		}
	}
}

// word reads one token of a tag.
func (l *lexer) word(rest string, depth *int) error {
	for _, x := range lexical {
		m := x.re.FindString(rest)
		if m == "" {
			continue
		}
		value := m
		if x.kind == str {
			var err error
			if value, err = unquote(m[1 : len(m)-1]); err != nil {
				return wrong(l.text, l.at, "%v", err)
			}
		}
		switch {
		case x.kind == sign && strings.Contains("([{", m):
			*depth++
		case x.kind == sign && strings.Contains(")]}", m):
			*depth--
		}
		l.add(x.kind, value, l.at)
		l.at += len(m)
		return nil
	}
	return wrong(l.text, l.at, "unexpected %.10q", rest)
}

// unquote returns the value of a string literal written as in Python.
func unquote(s string) (string, error) {
	var b strings.Builder
	for s != "" {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		c := s[i+1]
		s = s[i+2:]
		if plain := strings.IndexByte(`\'"abfnrtv`, c); plain >= 0 {
			b.WriteByte("\\'\"\a\b\f\n\r\t\v"[plain])
			continue
		}
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		var r rune
		switch {
		case c == '\n':
		case digits == 0 || len(s) < digits:
			return "", fmt.Errorf(`unknown escape \%c`, c)
		default:
			if n, err := fmt.Sscanf(s[:digits], "%x", &r); n != 1 || err != nil || r >= 0xd800 && r < 0xe000 {
				return "", fmt.Errorf(`the escape \%c%s is not a character`, c, s[:digits])
			}
			b.WriteRune(r)
			s = s[digits:]
		}
	}
	return b.String(), nil
}
