package config

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/token"
)

// Limits of a job file. The YAML library takes time and memory that grow with
// the square of depth, keys and documents, so these are counted among its
// tokens, which it makes in one pass, before it parses them.
const (
	jobBytes  = 256 << 10 // of the file, and of the value of a --set
	jobTokens = 50_000    // words, brackets, commas
	jobKeys   = 1_000     // in all mappings together
	jobDepth  = 32        // of lists and mappings in each other
	jobNames  = 100       // anchors, aliases and tags
	jobDocs   = 10        // of which only one may say something
)

// plain says at which byte a text is not plain UTF-8, and why; wrong is empty if
// it is.
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

// invisible tells whether a job file may not have a character as it is.
func invisible(r rune) bool { return !unicode.IsGraphic(r) && !strings.ContainsRune("\t\n\r", r) }

// escape is a character in a double-quoted text of YAML.
func escape(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf(`\U%08X`, r)
	}
	return fmt.Sprintf(`\u%04X`, r)
}

// byteOrderMark is what Windows puts in front of text in UTF-8.
const byteOrderMark = '\ufeff'

// at is a place with the line and column of a byte of its text.
func (p place) at(text []byte, i int) place {
	if p.set == "" {
		before := text[:i]
		p.line = 1 + bytes.Count(before, []byte("\n"))
		p.col = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	}
	return p
}

// census counts what a document has that there are limits of.
type census struct {
	columns           []int // where the block mappings and lists begin that a token is in
	flow              int   // brackets and braces it is in
	keys, names, docs int
}

// over is the token at which a limit is passed, and what there is too much of,
// or which has no place in a job; nil if there is none.
func over(tokens token.Tokens) (*token.Token, string) {
	var c census
	if len(tokens) > jobTokens {
		return tokens[jobTokens], fmt.Sprintf("more than %d words and signs", jobTokens)
	}
	for _, t := range tokens {
		c.count(t)
		switch {
		case t.Type == token.DirectiveType:
			return t, "a line that begins with %, which is not read"
		case len(c.columns)+c.flow > jobDepth:
			return t, fmt.Sprintf("lists and mappings in each other, deeper than %d", jobDepth)
		case c.keys > jobKeys:
			return t, fmt.Sprintf("more than %d keys", jobKeys)
		case c.names > jobNames:
			return t, fmt.Sprintf("more than %d anchors, aliases and tags", jobNames)
		case c.docs > jobDocs:
			return t, fmt.Sprintf("more than %d documents", jobDocs)
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

// enter notes that a block mapping or list goes on, or begins, at a token.
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
