package data

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"zeroth/data/chat"
)

// A template may render a message differently once others follow it: Qwen 3 leaves out the
// thinking of earlier turns, Phi ends every conversation with a token, Mistral moves the system
// message, DeepSeek-R1 drops reasoning. A model sees a conversation turn by turn, so each answer is learned in the text
// that ends with it, unless the whole conversation has the same text there. So a conversation
// is one example, or several, and each answer is learned once.

// maxRendered is the maximum size, in bytes, of all texts that are rendered for a conversation.
const maxRendered = 256 << 20

// tokens are ids, and whether the model learns each.
type tokens struct {
	ids   []int32
	learn []bool
}

// turn is an answer, in the text of the conversation that ends with it.
type turn struct {
	text string
	from int // where the answer begins
	body int // up to here the text stays if messages follow
}

// renderer renders parts of one conversation.
type renderer struct {
	*Chat
	talk  Talk
	list  *chat.List
	bytes int // rendered so far
}

// upTo renders the first n messages.
func (r *renderer) upTo(n int, answer bool) (string, error) {
	part := r.talk
	part.Messages = &chat.List{Items: r.list.Items[:n]}
	text, err := r.render(part, answer)
	if r.bytes += len(text.Text); r.bytes > maxRendered && err == nil {
		err = fmt.Errorf("the texts of the conversation up to each of its answers have more than %d bytes; divide it", maxRendered)
	}
	return text.Text, err
}

// Examples returns the examples of a conversation. learn selects the tokens to learn: all
// "assistant" messages not in Skip, only the "last" of them, or "all" tokens. An answer is
// the part that the template marks with generation or, without marks, the assistant's message with
// the tokens that end it.
func (c *Chat) Examples(talk Talk, learn string) ([]tokens, error) {
	whole, err := c.render(talk, false)
	if err != nil {
		return nil, err
	}
	if learn == "all" {
		return one(c.encoded(whole.Text, [][2]int{{0, len(whole.Text)}}))
	}
	if spans := whole.Generated; len(spans) > 0 {
		if slices.Contains(talk.Skip, true) {
			return nil, fmt.Errorf("the record excludes an answer from learning, but the template marks all answers with generation; use another template")
		}
		if learn == "last" {
			spans = spans[len(spans)-1:]
		}
		return one(c.encoded(whole.Text, spans))
	}
	r := &renderer{c, talk, talk.Messages.(*chat.List), len(whole.Text)}
	turns, err := r.turns(whole.Text, learn == "last")
	if err != nil {
		return nil, err
	}
	return r.distribute(whole.Text, turns)
}

// turns returns the answers to learn, or the last of them.
func (r *renderer) turns(whole string, last bool) (turns []turn, err error) {
	for i := len(r.list.Items) - 1; i >= 0; i-- {
		if d, ok := r.list.Items[i].(*chat.Dict); ok {
			if role, _ := d.Get("role"); role != answers {
				continue
			}
		}
		if i < len(r.talk.Skip) && r.talk.Skip[i] {
			continue
		}
		t, err := r.turn(whole, i)
		if err != nil {
			return nil, err
		}
		turns = append(turns, t)
		if last {
			break
		}
	}
	return turns, nil
}

// turn returns the answer that is message i.
func (r *renderer) turn(whole string, i int) (t turn, err error) {
	head := ""
	if i > 0 {
		if head, err = r.upTo(i, true); err != nil {
			return t, err
		}
	}
	if t.text, err = r.upTo(i+1, false); err != nil {
		return t, err
	}
	if i == 0 {
		head = r.opening(t.text)
	}
	if t.from = common(head, t.text); t.from < len(head) {
		// The prompt begins an answer differently, for example with an opened <think>. The
		// messages before must still have the same text.
		base, err := r.upTo(i, false)
		if err != nil {
			return t, err
		}
		if t.from < common(base, head) {
			// The messages before have another text without the answer: Mistral puts the system
			// message before the last user message. The model sees that text.
			at := afterTail(head, t.text)
			if at == 0 {
				return t, fmt.Errorf("the template renders the messages before message %d differently depending on it, so its position in the text is unknown; mark it in the template with {%% generation %%}", i+1)
			}
			return turn{head + t.text[at:], len(head), len(head) + len(t.text) - at}, nil
		}
	}
	if t.body = len(t.text); !strings.HasPrefix(whole, t.text) {
		if more, err := r.upTo(i+1, true); err == nil { // some templates refuse this
			if same := r.before(t.text, more, common(t.text, more)); same > t.from {
				t.body = same
			}
		}
	}
	return t, nil
}

// opening returns the beginning of the text of a single answer that is a prompt for it.
func (r *renderer) opening(text string) string {
	more, err := r.upTo(1, true)
	prompt, ok := strings.CutPrefix(more, text)
	if at := strings.Index(text, prompt); err == nil && ok && prompt != "" && at >= 0 {
		return text[:at+len(prompt)]
	}
	return ""
}

// afterTail returns the position in a text up to which it ends like head, for as long a part of
// head as possible; 0 if no position does.
func afterTail(head, text string) (at int) {
	// matched[k] is the length of the longest end of head that ends k bytes before head's end, too.
	back := func(s string, k int) byte { return s[len(s)-1-k] }
	matched := make([]int, len(head)+1)
	for k, n := 1, 0; k < len(head); k++ {
		for n > 0 && back(head, k) != back(head, n) {
			n = matched[n]
		}
		if back(head, k) == back(head, n) {
			n++
		}
		matched[k+1] = n
	}
	longest, n := 0, 0
	for k := 0; k < len(text); k++ {
		for n > 0 && (n == len(head) || back(text, k) != back(head, n)) {
			n = matched[n]
		}
		if len(head) > 0 && back(text, k) == back(head, n) {
			n++
		}
		if n > longest {
			longest, at = n, len(text)-1-k+n
		}
	}
	return at
}

// alike returns the length of the longest common beginning.
func alike[T comparable](a, b []T) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// common returns the length of the longest common beginning of two texts, in whole characters.
func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && !utf8.RuneStart(a[n]) {
		n--
	}
	return n
}

// before returns the position at, or, if an added token of one of the texts extends over it, where
// that begins.
func (c *Chat) before(a, b string, at int) int {
	begin := at
	for _, token := range c.tok.Added() {
		for from := max(0, at-len(token.Content)+1); from < begin; from++ {
			if strings.HasPrefix(a[from:], token.Content) || strings.HasPrefix(b[from:], token.Content) {
				begin = from
			}
		}
	}
	return begin
}

// distribute returns the examples in which the answers, given from the last to the first, are
// learned: as many as possible in the whole text, then in the longest of the texts of others.
func (r *renderer) distribute(whole string, turns []turn) ([]tokens, error) {
	if len(turns) == 0 {
		return one(r.encoded(whole, nil))
	}
	var examples []tokens
	for text := whole; len(turns) > 0; {
		var spans [][2]int
		var left []turn
		for _, t := range turns {
			switch {
			case strings.HasPrefix(text, t.text):
				spans = append(spans, [2]int{t.from, len(t.text)})
			case strings.HasPrefix(text, t.text[:t.body]):
				spans = append(spans, [2]int{t.from, t.body})
			default:
				left = append(left, t)
			}
		}
		if len(spans) > 0 {
			x, err := r.encoded(text, spans)
			if err != nil {
				return nil, err
			}
			examples = append(examples, x)
		}
		if turns = left; len(left) > 0 {
			text = left[0].text
		}
	}
	return examples, nil
}

func one(x tokens, err error) ([]tokens, error) { return []tokens{x}, err }

// mostAgain limits how many bytes encoded encodes again for one text.
const mostAgain = 1 << 30

// encoded encodes a text and marks the tokens in spans, ranges of bytes, as learned.
func (c *Chat) encoded(text string, spans [][2]int) (tokens, error) {
	ids := c.tok.Plain([]byte(text))
	learn := make([]bool, len(ids))
	starts := c.tok.Starts(ids, text)
	if starts == nil && 2*len(spans) > mostAgain/max(1, len(text)) {
		return tokens{}, fmt.Errorf("%d answers in a text of %d bytes, which the tokenizer normalizes, are too many; divide the conversation", len(spans), len(text))
	}
	for _, s := range spans {
		if s[0] == s[1] {
			continue
		}
		from := tokenAt(starts, s[0])
		to, _ := slices.BinarySearch(starts, s[1])
		if starts == nil {
			from, to = c.countOf(ids, text[:s[0]], false), c.countOf(ids, text[:s[1]], true)
		}
		for i := from; i < to; i++ {
			learn[i] = true
		}
	}
	return tokens{ids, learn}, nil
}

// tokenAt returns the number of the first token that begins at a position, or else of the one that
// extends over it.
func tokenAt(starts []int, at int) int {
	i, exact := slices.BinarySearch(starts, at)
	if i > 0 && !exact {
		i--
	}
	return i
}

// countOf returns how many of ids make up the given beginning of their text. If the
// beginning ends within a token, whole includes that token.
func (c *Chat) countOf(ids []int32, beginning string, whole bool) int {
	prefix := c.tok.Plain([]byte(beginning))
	n := alike(prefix, ids)
	if n < len(prefix) && whole {
		n = min(n+1, len(ids))
	}
	return n
}
