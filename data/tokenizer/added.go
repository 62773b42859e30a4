package tokenizer

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// finder finds the leftmost, and there the longest, of a set of strings, using a trie of their
// bytes.
type finder struct {
	nodes []trieNode // the first is the root
	heads []byte     // first bytes of the strings
	head  [256]bool
}

// trieNode is a node of a trie. Most have one child.
type trieNode struct {
	value int32 // of the string that ends here, or -1
	child int32 // by the byte next; 0 if there is none
	next  byte
	more  []edge // to further children
}

type edge struct {
	by byte
	to int32
}

func (n *trieNode) to(b byte) int32 {
	if n.next == b {
		return n.child
	}
	for _, e := range n.more {
		if e.by == b {
			return e.to
		}
	}
	return 0
}

func (f *finder) add(s string, value int) {
	if s == "" {
		return
	}
	if f.nodes == nil {
		f.nodes = []trieNode{{value: -1}}
	}
	at := int32(0)
	for i := range len(s) {
		n := &f.nodes[at]
		to := n.to(s[i])
		if to == 0 {
			to = int32(len(f.nodes))
			if n.child == 0 {
				n.next, n.child = s[i], to
			} else {
				n.more = append(n.more, edge{s[i], to})
			}
			f.nodes = append(f.nodes, trieNode{value: -1})
		}
		at = to
	}
	if f.nodes[at].value < 0 {
		f.nodes[at].value = int32(value)
	}
	if !f.head[s[0]] {
		f.head[s[0]] = true
		f.heads = append(f.heads, s[0])
	}
}

// find returns the first occurrence of any string at or after from; at is -1 if there is none.
func (f *finder) find(b []byte, from int) (at, end, value int) {
	for i := from; i < len(b) && len(f.heads) > 0; i++ {
		if len(f.heads) == 1 {
			skip := bytes.IndexByte(b[i:], f.heads[0])
			if skip < 0 {
				break
			}
			i += skip
		} else if !f.head[b[i]] {
			continue
		}
		if end, value := f.longest(b, i); value >= 0 {
			return i, end, value
		}
	}
	return -1, 0, 0
}

// longest returns the longest string that begins at a position; value is -1 if there is none.
func (f *finder) longest(b []byte, at int) (end, value int) {
	value = -1
	for n, i := int32(0), at; i < len(b); {
		if n = f.nodes[n].to(b[i]); n == 0 {
			break
		}
		if i++; f.nodes[n].value >= 0 {
			end, value = i, int(f.nodes[n].value)
		}
	}
	return end, value
}

// cutOut calls token for every added token that f finds in b, and text for the parts between
// them, with their position.
func (t *Tokenizer) cutOut(f *finder, b []byte, text func(b []byte, at int), token func(a *Added)) {
	pos, from := 0, 0 // end of the last call, and where to search
	for {
		start, end, value := f.find(b, from)
		if start < 0 {
			break
		}
		from = end
		a := &t.added[value]
		if a.SingleWord && touches(b, start, end) {
			continue
		}
		if a.SpaceBefore {
			start = pos + len(bytes.TrimRightFunc(b[pos:max(pos, start)], unicode.IsSpace))
		}
		if a.SpaceAfter {
			end = len(b) - len(bytes.TrimLeftFunc(b[end:], unicode.IsSpace))
		}
		if start > pos {
			text(b[pos:start], pos)
		}
		if start < end { // unless in the white space of the previous token
			token(a)
		}
		pos = end
	}
	if pos < len(b) {
		text(b[pos:], pos)
	}
}

// touches reports whether b[start:end] is adjacent to a character of a word.
func touches(b []byte, start, end int) bool {
	last, n := utf8.DecodeLastRune(b[:start])
	next, m := utf8.DecodeRune(b[end:])
	return n > 0 && classes[last]&word != 0 || m > 0 && classes[next]&word != 0
}

// splits reports whether a text has white space after another character, so that it could
// extend over a position returned by Cut.
func splits(s string) bool {
	wasSpace := true
	for _, r := range s {
		isSpace := unicode.IsSpace(r)
		if isSpace && !wasSpace {
			return true
		}
		wasSpace = isSpace
	}
	return false
}
