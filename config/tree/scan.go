package tree

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/token"
)

// Limits of a job file. The YAML parser takes time and memory quadratic in depth, keys and
// documents. So these are counted on the tokens, which take one pass, before parsing.
const (
	JobBytes  = 256 << 10 // of the file, and of the value of a --set
	jobTokens = 50_000    // words, brackets and commas
	JobKeys   = 1_000     // in all mappings together
	JobDepth  = 32        // nesting of lists and mappings
	JobNames  = 100       // anchors, aliases and tags
	JobDocs   = 10        // only one may have contents
)

// plain returns the offset of the first byte that is not plain UTF-8 text, the reason and a
// remedy. The reason is empty if there is none.
func plain(text []byte) (at int, wrong, right string) {
	const save = "save it as UTF-8"
	for _, mark := range []string{"\xff\xfe", "\xfe\xff", "\x00\x00\xfe\xff"} {
		if bytes.HasPrefix(text, []byte(mark)) {
			return 0, "this is text in UTF-16 or UTF-32", save
		}
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return i, "this is not text in UTF-8", save
		case r == 0:
			return i, "there is a zero byte: this is text in UTF-16, or no text", save
		case invisible(r):
			return i, fmt.Sprintf("there is a character %U, which does not print", r), fmt.Sprintf(`remove it, or write it in a value as "%s", in double quotes`, escape(r))
		}
		i += n
	}
	return 0, "", ""
}

// invisible reports whether a character must be escaped in a job file.
func invisible(r rune) bool { return !unicode.IsGraphic(r) && !strings.ContainsRune("\t\n\r", r) }

// escape returns a character's escape sequence in double-quoted YAML.
func escape(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf(`\U%08X`, r)
	}
	return fmt.Sprintf(`\u%04X`, r)
}

// byteOrderMark is the character that Windows puts before UTF-8 text.
const byteOrderMark = '\ufeff'

// at returns the place with the line and column of byte i of its text.
func (p Position) at(text []byte, i int) Position {
	if p.Set == "" {
		before := text[:i]
		p.line = 1 + bytes.Count(before, []byte("\n"))
		p.col = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	}
	return p
}

// census counts the limited parts of a document.
type census struct {
	columns           []int // start columns of the enclosing block mappings and lists
	flow              int   // nesting of brackets and braces
	keys, names, docs int
}

// over returns the token that exceeds a limit, or that a job may not contain, and a description of
// it. It returns nil if there is none.
func over(tokens token.Tokens) (*token.Token, string) {
	var c census
	if len(tokens) > jobTokens {
		return tokens[jobTokens], fmt.Sprintf("more than %d words and signs", jobTokens)
	}
	for _, t := range tokens {
		c.count(t)
		switch {
		case t.Type == token.DirectiveType:
			return t, "a directive (a line that begins with %), which is not supported"
		case len(c.columns)+c.flow > JobDepth:
			return t, fmt.Sprintf("lists and mappings nested more than %d deep", JobDepth)
		case c.keys > JobKeys:
			return t, fmt.Sprintf("more than %d keys", JobKeys)
		case c.names > JobNames:
			return t, fmt.Sprintf("more than %d anchors, aliases and tags", JobNames)
		case c.docs > JobDocs:
			return t, fmt.Sprintf("more than %d documents", JobDocs)
		}
	}
	return nil, ""
}

func (c *census) count(t *token.Token) {
	switch t.Type {
	case token.MappingStartType, token.SequenceStartType:
		c.flow++
	case token.MappingEndType, token.SequenceEndType:
		c.flow = max(0, c.flow-1)
	case token.SequenceEntryType, token.MappingKeyType:
		c.enter(t)
	case token.MappingValueType:
		c.keys++
		if t.Prev != nil {
			t = t.Prev // the key
		}
		c.enter(t)
	case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType:
		c.names++
	case token.DocumentHeaderType, token.DocumentEndType:
		c.docs++
		c.columns, c.flow = nil, 0
	}
}

// enter records that a block mapping or list begins or continues at a token.
func (c *census) enter(t *token.Token) {
	if c.flow > 0 {
		return
	}
	n := len(c.columns)
	for n > 0 && c.columns[n-1] > t.Position.Column {
		n--
	}
	c.columns = c.columns[:n]
	if n == 0 || c.columns[n-1] < t.Position.Column {
		c.columns = append(c.columns, t.Position.Column)
	}
}

// Quote writes a double-quoted YAML string: JSON's is one.
func Quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("config: quoting %q: %v", s, err)) // a string always encodes
	}
	return Visible(strings.TrimSuffix(b.String(), "\n"))
}

// Visible returns YAML with invisible characters escaped. All texts must be double-quoted.
func Visible(yaml string) string {
	var b strings.Builder
	for _, r := range yaml {
		if invisible(r) {
			b.WriteString(escape(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
