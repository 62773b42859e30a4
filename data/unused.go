package data

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"zeroth/data/chat"
	"zeroth/internal/input/jsonread"
)

// spare is a part of a record that may have no effect. what is one of the formats below.
type spare struct{ what, name string }

// What a spare is, as a format of its name.
const (
	ofRecord   = "%.60q"
	ofMessage  = "%.60q in messages"
	ofVariable = "%.60q in chat_template_kwargs"
	ofMark     = "the mark %.60q of messages that are not learned anyway"
	ofRole     = "the role %.60q, whose messages are not learned"
)

// answers is the role whose messages are learned, and otherRoles are those whose messages nobody
// expects to be.
const answers = "assistant"

var otherRoles = strings.Fields("system developer user human tool function ipython observation environment " +
	"tool_response document context")

// usualKeys are the keys of messages and parts of their content that every template reads.
var usualKeys = []string{"role", "content", "type", "text"}

// sighting counts records and has the position of the first one.
type sighting struct {
	n     int64
	order int    // of the first one
	first string // file:line
}

// Limits of parts and reasons: how many of a conversation, and of all records, are counted, and how many
// are listed.
const (
	mostSpares = 32
	mostSeen   = 1000
	mostShown  = 20
	mostName   = 100 // bytes of a name
)

// seen is a tally of what was seen in records.
type seen[T comparable] map[T]*sighting

func (s *seen[T]) add(what T, x example) {
	if *s == nil {
		*s = seen[T]{}
	}
	if (*s)[what] == nil && len(*s) < mostSeen {
		(*s)[what] = &sighting{order: len(*s), first: fmt.Sprintf("%s:%d", x.line.file, x.line.number)}
	}
	if at := (*s)[what]; at != nil {
		at.n++
	}
}

// sorted returns the keys, in the order of the first records that had them.
func (s seen[T]) sorted() []T {
	return slices.SortedFunc(maps.Keys(s), func(a, b T) int { return s[a].order - s[b].order })
}

func (s spare) String() string { return fmt.Sprintf(s.what, s.name) }

// noteUnused returns a note about the parts of records that had no effect, apart from those without
// which the template would have rendered some chat differently.
func (n counts) noteUnused(c *Chat) []string {
	list := slices.DeleteFunc(n.unused.sorted(), func(x spare) bool { return c != nil && c.used(x) })
	if len(list) == 0 {
		return nil
	}
	var parts []string
	for i, x := range list[:min(len(list), mostShown)] {
		parts = append(parts, x.String())
		first := n.unused[x].first
		if last := i == min(len(list), mostShown)-1; last || n.unused[list[i+1]].first != first {
			parts[i] += " (from " + first + " on)"
		}
	}
	if more := len(list) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return []string{"in the records, but not used: " + strings.Join(parts, ", ")}
}

// noteEmpty returns notes about documents without a token to learn.
func (n counts) noteEmpty() (notes []string) {
	reasons := n.empty.sorted()
	for _, why := range reasons[:min(len(reasons), mostShown)] {
		at := n.empty[why]
		note := fmt.Sprintf("documents without a token to learn: %d, left out: %s (the first is %s)", at.n, why, at.first)
		notes = append(notes, note)
	}
	return notes
}

// spareKeys returns the keys of a record that no format or mark reads.
func spareKeys(record jsonread.Value, read []string) (unused []spare) {
	for _, p := range record.Pairs {
		mark, _ := isMark(p.Key)
		if len(unused) < mostSeen && !mark && !isEmpty(p.Value) && !slices.Contains(read, p.Key) {
			unused = append(unused, spare{ofRecord, p.Key})
		}
	}
	return unused
}

// prune returns a value without some keys of the objects in it: messages, and parts of their content.
func prune(v chat.Value, gone func(key string, v chat.Value) bool) chat.Value {
	switch v := v.(type) {
	case *chat.List:
		out := &chat.List{}
		for _, x := range v.Items {
			out.Items = append(out.Items, prune(x, gone))
		}
		return out
	case *chat.Dict:
		out := &chat.Dict{}
		for key, x := range v.All() {
			if key == "content" {
				x = prune(x, gone)
			}
			if !gone(key, x) {
				out.Set(key, x)
			}
		}
		return out
	}
	return v
}

// prune returns the conversation without some of its spares.
func (t Talk) prune(gone func(spare, chat.Value) bool) Talk {
	keys := func(what string) func(string, chat.Value) bool {
		return func(key string, v chat.Value) bool { return gone(spare{what, key}, v) }
	}
	t.Messages = prune(t.Messages, keys(ofMessage))
	if t.More != nil {
		t.More = prune(t.More, keys(ofVariable)).(*chat.Dict)
	}
	if list, ok := t.Tools.(*chat.List); ok && len(list.Items) > 0 && gone(spare{ofRecord, "tools"}, list) {
		t.Tools = nil
	}
	return t
}

// used reports whether a template used a spare.
func (c *Chat) used(x spare) bool {
	_, ok := c.uses.Load(x)
	return ok
}

// unused returns the spares of a conversation without which its text is the same, other than those
// that made a difference to an earlier one.
func (c *Chat) unused(talk Talk) (unused []spare) {
	var all []spare
	talk.prune(func(x spare, v chat.Value) bool {
		mark, _ := isMark(x.name)
		known := mark || c.used(x) || slices.Contains(usualKeys, x.name) || slices.Contains(all, x)
		if len(all) < mostSpares && v != nil && v != "" && !known {
			all = append(all, x)
		}
		return false
	})
	if len(all) == 0 {
		return nil
	}
	text := func(gone []spare) string {
		t, err := c.render(talk.prune(func(x spare, _ chat.Value) bool { return slices.Contains(gone, x) }), false)
		return fmt.Sprint(t.Text, err)
	}
	whole := text(nil)
	if text(all) == whole {
		return all
	}
	for _, x := range all {
		if more := append(unused, x); text(more) == whole {
			unused = more
		} else {
			c.uses.Store(x, true)
		}
	}
	return unused
}
