package data

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zeroth/data/chat"
	"zeroth/internal/input/jsonread"
)

// conversation is the content of a record of the format chat.
type conversation struct {
	talk   Talk
	list   []jsonread.Value // the messages
	first  int              // messages before this one are not learned
	unused []spare
	form   string // how the record has it, for people; "" for the usual form
}

// form is a way in which records have conversations. A record has the first form all of whose
// keys it has.
type form struct {
	name string
	keys []string
	also []string // read if they are there
	read func(record jsonread.Value) (conversation, error)
}

// formNotes say how records of each form are read.
var formNotes = map[string]string{
	"ShareGPT":              "ShareGPT: conversations of from and value (human is user, gpt is assistant, observation is tool)",
	"conversations":         `chats whose messages are under "conversations"`,
	"Alpaca":                "Alpaca: instruction and input, joined by a line feed, are the user's message, output is the assistant's",
	"prompt and completion": "chats: the messages of prompt, then those of completion, of which the assistant's are learned",
}

// alongside lists keys that records of any format may have: they are passed to the template or
// refused.
var alongside = []string{"tools", "functions", "chat_template_kwargs", "label"}

// forms returns the forms of conversations; messages is the key of the usual one.
func (d *docReader) forms() []form {
	key := d.key("messages")
	all := []form{{"", []string{key}, []string{"system"}, func(r jsonread.Value) (conversation, error) { return messagesOf(r, key) }}}
	if key != "messages" {
		return all
	}
	return append(all,
		form{"", []string{"conversations"}, []string{"system"}, func(r jsonread.Value) (conversation, error) { return messagesOf(r, "conversations") }},
		form{"Alpaca", []string{"instruction", "output"}, []string{"input", "system", "history"}, alpaca},
		form{"prompt and completion", []string{"prompt", "completion"}, []string{"system"}, promptMessages},
	)
}

// columns returns the columns of a Parquet file that are read, given those it has.
func (d *docReader) columns(have []string) ([]string, error) {
	has := func(key string) bool { return slices.Contains(have, key) }
	names, also, err := d.keys(has)
	if err != nil {
		return nil, err
	}
	for _, key := range names {
		if !has(key) {
			return nil, d.lacks(key, has)
		}
	}
	names = slices.Clone(names)
	for _, key := range have {
		if mark, _ := isMark(key); (mark || slices.Contains(also, key)) && !slices.Contains(names, key) {
			names = append(names, key)
		}
	}
	return names, nil
}

// keys returns the keys that a record with the keys for which has is true must have, and others that are
// read.
func (d *docReader) keys(has func(string) bool) (must, also []string, err error) {
	switch d.Format {
	case "chat":
		f, err := d.formOf(has)
		return f.keys, slices.Concat(f.also, alongside), err
	case "prompt":
		return []string{d.key("prompt"), d.key("completion")}, []string{"label"}, nil
	}
	return []string{d.key("text")}, nil, nil
}

// formOf returns the form of records with the keys for which has is true.
func (d *docReader) formOf(has func(string) bool) (form, error) {
	for _, f := range d.forms() {
		if !slices.ContainsFunc(f.keys, func(key string) bool { return !has(key) }) {
			return f, nil
		}
	}
	return form{}, d.lacks(d.key("messages"), has)
}

// lacks returns the error about a record without a key, with advice for the keys it has.
func (d *docReader) lacks(key string, has func(string) bool) error {
	advice := ""
	switch {
	case has("chosen") && has("rejected"):
		return fmt.Errorf(`no key %q, but "chosen" and "rejected": preference data (DPO) is not supported; to train on the preferred answers alone, rename "chosen" to %q or "completion"`, key, "messages")
	case d.Format != "chat" && (has("messages") || has("conversations") || has("instruction")):
		advice = "; its other keys are those of data.format: chat"
	case d.Format != "prompt" && has("prompt") && has("completion"):
		advice = "; its other keys are those of data.format: prompt"
	case d.Format != "text" && has("text"):
		advice = "; its other keys are those of data.format: text"
	}
	return fmt.Errorf("no key %q%s", key, advice)
}

// hasKey returns whether a record has a key.
func hasKey(record jsonread.Value) func(string) bool {
	return func(key string) bool { return record.Get(key).Kind != jsonread.None }
}

// unlabeled refuses completions that are marked as good or bad.
func unlabeled(record jsonread.Value) error {
	if record.Get("label").Kind == jsonread.Bool {
		return errors.New(`"label" is true or false: preference data (KTO) is not supported; keep only the records whose label is true, without the label`)
	}
	return nil
}

// conversation returns the conversation of a record.
func (d *docReader) conversation(record jsonread.Value, dense bool) (c conversation, err error) {
	f, err := d.formOf(hasKey(record))
	if err != nil {
		return c, err
	}
	if c, err = f.read(record); err != nil {
		return c, err
	}
	if c.talk.Messages, err = chat.FromJSON(jsonread.Value{Kind: jsonread.Array, Items: c.list}); err != nil {
		return c, err
	}
	if err := cmp.Or(unlabeled(record), d.weigh(&c)); err != nil {
		return c, err
	}
	if v := record.Get("functions"); v.Kind != jsonread.None && v.Kind != jsonread.Null && len(v.Items)+len(v.Text) > 0 {
		return c, errors.New(`"functions" is not supported; give them as "tools": [{"type": "function", "function": {...}}]`)
	}
	c.form = cmp.Or(c.form, f.name)
	if c.talk.Tools, err = toolsOf(record.Get("tools")); err != nil {
		return c, err
	}
	more, err := chat.FromJSON(record.Get("chat_template_kwargs"))
	if err != nil {
		return c, err
	}
	if dense {
		c.talk.Messages, c.talk.Tools, more = chat.Dense(c.talk.Messages), chat.Dense(c.talk.Tools), chat.Dense(more)
	}
	switch more := more.(type) {
	case nil:
	case *chat.Dict:
		c.talk.More = more
	default:
		err = errors.New(`"chat_template_kwargs" is not an object`)
	}
	return c, err
}

// toolsOf returns a record's tools: a list of objects, or a string with one.
func toolsOf(v jsonread.Value) (chat.Value, error) {
	if v.Kind == jsonread.String && strings.TrimSpace(v.Text) == "" {
		return nil, nil
	}
	if v.Kind == jsonread.String {
		parsed, err := jsonread.Parse([]byte(v.Text))
		if err != nil {
			return nil, fmt.Errorf(`"tools": %v`, err)
		}
		v = parsed
	}
	if v.Kind != jsonread.None && v.Kind != jsonread.Null && v.Kind != jsonread.Array {
		return nil, fmt.Errorf(`"tools" is %v, not a list of objects`, v.Kind)
	}
	for i, tool := range v.Items {
		if tool.Kind != jsonread.Object {
			return nil, fmt.Errorf(`"tools": item %d is %v, not an object`, i+1, tool.Kind)
		}
	}
	return chat.FromJSON(v)
}

// systemOf returns the message that a record has under "system", besides its other messages, or none.
func systemOf(record jsonread.Value, others []jsonread.Value) ([]jsonread.Value, error) {
	text, err := optional(record, "system")
	if text == "" || err != nil {
		return nil, err
	}
	if len(others) > 0 && (others[0].Get("role").Text == "system" || others[0].Get("from").Text == "system") {
		return nil, errors.New(`"system" is given, but the first message is the system's, too; remove one of them`)
	}
	return []jsonread.Value{message("system", text)}, nil
}

// optional returns the text under a key, which may be missing or null.
func optional(record jsonread.Value, key string) (string, error) {
	switch v := record.Get(key); v.Kind {
	case jsonread.String:
		return v.Text, nil
	case jsonread.None, jsonread.Null:
		return "", nil
	default:
		return "", fmt.Errorf("%q is %v, not a string", key, v.Kind)
	}
}

// messagesOf reads a list of messages, with role and content or, as in ShareGPT, from and value.
func messagesOf(record jsonread.Value, key string) (c conversation, err error) {
	v := record.Get(key)
	if v.Kind != jsonread.Array {
		if v.Kind == jsonread.String && strings.HasPrefix(strings.TrimSpace(v.Text), "[") {
			return c, fmt.Errorf("%q is a text with a list of messages; convert it with jq -c '.%[1]s |= fromjson'", key)
		}
		return c, fmt.Errorf("%q is not a list of messages", key)
	}
	list, err := systemOf(record, v.Items)
	if err != nil {
		return c, err
	}
	named, shared, err := namedMessages(v.Items)
	if err != nil {
		return c, err
	}
	c.list = append(list, named...)
	if c.form = ""; shared {
		c.form = "ShareGPT"
	} else if key == "conversations" {
		c.form = "conversations"
	}
	return c, err
}

// namedMessages returns messages with role and content. shared is set if there are any of
// ShareGPT.
func namedMessages(items []jsonread.Value) (list []jsonread.Value, shared bool, err error) {
	for i, m := range items {
		from, role := m.Get("from"), m.Get("role")
		switch {
		case m.Kind != jsonread.Object: // reported later
		case from.Kind != jsonread.None && role.Kind == jsonread.None:
			name, ok := shareRoles[from.Text]
			switch {
			case !ok:
				return nil, false, fmt.Errorf("message %d is from %.40q; want human, gpt, system or observation", i+1, from.Text)
			case m.Get("value").Kind == jsonread.None:
				return nil, false, fmt.Errorf(`message %d has no "value"`, i+1)
			case m.Get("content").Kind != jsonread.None:
				return nil, false, fmt.Errorf(`message %d has "value" and "content"; remove one of them`, i+1)
			}
			shared, m = true, renamed(m, name)
		case role.Kind != jsonread.String:
			return nil, false, fmt.Errorf(`message %d has no "role" that is a string`, i+1)
		}
		list = append(list, m)
	}
	return list, shared, nil
}

// shareRoles are the names that ShareGPT's records give to roles.
var shareRoles = map[string]string{
	"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "system": "system",
	"observation": "tool", "tool": "tool",
}

// renamed returns a message of ShareGPT with role and content.
func renamed(m jsonread.Value, role string) jsonread.Value {
	out := jsonread.Value{Kind: jsonread.Object}
	for _, p := range m.Pairs {
		switch p.Key {
		case "from":
			p.Key, p.Value = "role", jsonread.Value{Kind: jsonread.String, Text: role}
		case "value":
			p.Key = "content"
		}
		out.Pairs = append(out.Pairs, p)
	}
	return out
}

func message(role, content string) jsonread.Value {
	return jsonread.Value{Kind: jsonread.Object, Pairs: []jsonread.Pair{
		{Key: "role", Value: jsonread.Value{Kind: jsonread.String, Text: role}},
		{Key: "content", Value: jsonread.Value{Kind: jsonread.String, Text: content}},
	}}
}

// alpaca reads an instruction with an optional input, which is the user's message, and an output.
func alpaca(record jsonread.Value) (c conversation, err error) {
	texts := map[string]string{}
	for _, key := range []string{"instruction", "input", "output", "system"} {
		if texts[key], err = optional(record, key); err != nil {
			return c, err
		}
	}
	list := jsonread.Value{Kind: jsonread.Array}
	if texts["system"] != "" {
		list.Items = append(list.Items, message("system", texts["system"]))
	}
	history := record.Get("history")
	if history.Kind != jsonread.None && history.Kind != jsonread.Null && history.Kind != jsonread.Array {
		return c, fmt.Errorf(`"history" is %v, not a list of questions and answers`, history.Kind)
	}
	for i, turn := range history.Items {
		if len(turn.Items) != 2 || turn.Items[0].Kind != jsonread.String || turn.Items[1].Kind != jsonread.String {
			return c, fmt.Errorf(`"history": item %d is not a question and an answer`, i+1)
		}
		list.Items = append(list.Items, message("user", turn.Items[0].Text), message("assistant", turn.Items[1].Text))
	}
	asked := texts["instruction"]
	if texts["input"] != "" {
		asked += "\n" + texts["input"]
	}
	list.Items = append(list.Items, message("user", asked), message("assistant", texts["output"]))
	c.list = list.Items
	return c, nil
}

// promptMessages reads a prompt and a completion that are lists of messages.
func promptMessages(record jsonread.Value) (c conversation, err error) {
	prompt, completion := record.Get("prompt"), record.Get("completion")
	if prompt.Kind == jsonread.String && completion.Kind == jsonread.String {
		return c, errors.New(`"prompt" and "completion" are strings, not messages; want data.format: prompt`)
	}
	if prompt.Kind != jsonread.Array || completion.Kind != jsonread.Array {
		return c, errors.New(`"prompt" and "completion" are not both lists of messages`)
	}
	list, err := systemOf(record, prompt.Items)
	if err != nil {
		return c, err
	}
	c.first = len(list) + len(prompt.Items)
	named, _, err := namedMessages(slices.Concat(prompt.Items, completion.Items))
	if err != nil {
		return c, err
	}
	c.list = append(list, named...)
	return c, err
}
