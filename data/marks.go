package data

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zeroth/internal/input/jsonread"
)

// Records, their messages and parts of a message's content may have a mark, a key that says whether
// they are learned: "weight": 0 (OpenAI, Mistral), "training": false (Axolotl), "loss": false
// (ms-swift, XTuner), "loss_weight": 0.0 (LLaMA-Factory), "trainable": false (Tinker), "masked": true
// (torchtune), "is_mask": true or "mask": "User" (NeMo), and others. As every program lets its users
// name the key, a mark is any key that consists of markWords, in whatever case and however separated,
// with one that is about learning.
const (
	markStem  = `loss|train|weight|mask|learn|supervise`
	markCore  = `loss(?:es)?|train(?:ed|ing|able)?|weights?|mask(?:s|ed)?|learn(?:ed|able)?|supervised?`
	markNot   = `masked|no|not|do?nt|ignored?|skip|exclude[ds]?|without`
	markWords = `is|has|should|do|with|in|from|for|on|this|scale|multiplier|turns?|step|message|sample|example|tokens?|` +
		`details?|ranges?|spans?|offsets?|reasoning|assistant|response|answer|output|completion|compute|calculate|calc|` +
		`use|only|flag|per|` + markCore + `|` + markNot
)

var (
	likeMark   = regexp.MustCompile(`(?i)` + markStem)
	unlettered = regexp.MustCompile(`[^a-z]+`)
	markKey    = regexp.MustCompile(`^(?:` + markWords + `)*(?:` + markCore + `)(?:` + markWords + `)*$`)
	// excluding matches marks that exclude if they are true: mask_loss and is_mask, but not loss_mask.
	excluding = regexp.MustCompile(`^(?:is)?mask|^(?:` + markWords + `)*(?:` + markNot + `)(?:` + markWords + `)*$`)
)

// isMark reports whether a key is a mark, and whether it excludes if it is true.
func isMark(key string) (mark, excludes bool) {
	if len(key) > 60 || !likeMark.MatchString(key) {
		return false, false
	}
	key = unlettered.ReplaceAllString(strings.ToLower(key), "")
	return markKey.MatchString(key), excluding.MatchString(key)
}

// verdict says whether the marks of an object allow learning it.
type verdict int

const (
	unmarked verdict = iota
	toLearn
	notToLearn
)

// judge returns the verdict of the marks of an object, and the key of the mark. texts are keys that have its texts.
func (d *docReader) judge(of jsonread.Value, texts ...string) (says verdict, key string, err error) {
	for _, p := range of.Pairs {
		mark, excludes := isMark(p.Key)
		if !mark || isEmpty(p.Value) || d.masksPrompts(p, excludes) || slices.Contains(texts, p.Key) {
			continue
		}
		on, err := onOrOff(p.Value)
		if err != nil {
			return 0, p.Key, fmt.Errorf("%q is %w; want 1 or 0, true or false, or no such key", p.Key, err)
		}
		if on == excludes {
			return notToLearn, p.Key, nil
		}
		says, key = toLearn, p.Key
	}
	return says, key, nil
}

// onOrOff returns the value of a mark. The error describes any other value.
func onOrOff(v jsonread.Value) (bool, error) {
	switch v.Kind {
	case jsonread.Bool:
		return v.True, nil
	case jsonread.Number:
		if f, err := strconv.ParseFloat(v.Text, 64); err == nil && (f == 0 || f == 1) {
			return f == 1, nil
		}
		return false, fmt.Errorf("%.40s: a weight other than 0 and 1 is not supported", v.Text)
	case jsonread.String:
		return false, fmt.Errorf("%.40q", v.Text)
	}
	return false, fmt.Errorf("%v: marks of parts of a text are not supported", v.Kind)
}

// masksPrompts reports whether a mark names the roles that are not learned anyway, as NeMo's
// "mask": "User" does.
func (d *docReader) masksPrompts(p jsonread.Pair, excludes bool) bool {
	usual := excludes && p.Value.Kind == jsonread.String && d.Format == "chat" && d.Learn != "all"
	return usual && slices.Contains([]string{"user", "human", "system"}, strings.ToLower(p.Value.Text))
}

// isEmpty reports whether nothing is lost with a value.
func isEmpty(v jsonread.Value) bool {
	switch v.Kind {
	case jsonread.None, jsonread.Null:
		return true
	case jsonread.String:
		return v.Text == ""
	}
	return (v.Kind == jsonread.Array || v.Kind == jsonread.Object) && len(v.Items)+len(v.Pairs) == 0
}

// weigh decides which answers are learned, and refuses those that cannot be learned as marked.
func (d *docReader) weigh(c *conversation) error {
	c.talk.Skip = make([]bool, len(c.list))
	for i, m := range c.list {
		says, key, err := d.judge(m)
		isAnswer := m.Get("role").Text == answers
		if wrong := readable(m); !isAnswer && err == nil && wrong != nil {
			return fmt.Errorf("message %d: %w", i+1, wrong)
		}
		switch {
		case d.Learn == "all" && says == notToLearn:
			return fmt.Errorf("message %d: %q says not to learn it, but data.learn is all; want data.learn: assistant", i+1, key)
		case d.Learn != "all" && !isAnswer && (says == toLearn || err != nil):
			c.unused = append(c.unused, spare{ofMark, key})
		case d.Learn != "all" && (!isAnswer || i < c.first):
			c.talk.Skip[i] = isAnswer
		case says == notToLearn:
			c.talk.Skip[i] = true
		case err == nil:
			err = d.learnable(m)
			fallthrough
		default:
			if err != nil {
				return fmt.Errorf("message %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// answerKeys are the keys of an answer, one of which must have a value.
var answerKeys = []string{"content", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}

// readable refuses a message whose content is no text, or that has none and nothing in its place.
func readable(m jsonread.Value) error {
	content := m.Get("content")
	has := func(key string) bool { v := m.Get(key).Kind; return v != jsonread.None && v != jsonread.Null }
	text := func(part jsonread.Value) bool { return part.Kind == jsonread.String || part.Get("text").Text != "" }
	switch {
	case m.Kind != jsonread.Object: // reported later
	case content.Kind == jsonread.Number || content.Kind == jsonread.Bool || content.Kind == jsonread.Object:
		return fmt.Errorf(`"content" is %v, not a text`, content.Kind)
	case !slices.ContainsFunc(answerKeys, has):
		return errors.New(`its "content" is missing or null, and there is nothing in its place, such as "tool_calls"`)
	case len(content.Items) > 0 && !slices.ContainsFunc(content.Items, text):
		return errors.New(`no part of its "content" is a text`)
	}
	return nil
}

// learnable refuses a message to learn that has nothing to learn or is to be learned in part.
func (d *docReader) learnable(m jsonread.Value) error {
	if err := readable(m); err != nil {
		return err
	}
	for i, part := range m.Get("content").Items {
		if says, key, err := d.judge(part); err != nil || says == notToLearn {
			return fmt.Errorf("%q in part %d of its content: messages are learned as a whole or not at all; mark the message",
				key, i+1)
		}
	}
	return nil
}
