package data

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"zeroth/data/chat"
)

// Chat is a tokenizer with the chat template that its folder has.
type Chat struct {
	tok      *Folder
	template *chat.Template
	file     string                // that has the template
	tokens   map[string]chat.Value // bos_token and so on, as the template knows them
}

// Message is what one side of a conversation says.
type Message struct{ Role, Content string }

// NewChat reads the template of a tokenizer's folder: chat_template.jinja, or
// chat_template of tokenizer_config.json, of several the one named default.
func NewChat(t Tokenizer) (*Chat, error) {
	f, ok := t.(*Folder)
	if !ok {
		return nil, fmt.Errorf("the tokenizer has no chat template; one comes with a folder's tokenizer.json, in chat_template.jinja or tokenizer_config.json")
	}
	text, file, config, err := f.chatTemplate()
	if err != nil {
		return nil, err
	}
	template, err := chat.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	c := &Chat{f, template, file, map[string]chat.Value{}}
	for name, s := range map[string]special{"bos": config.BOS, "eos": config.EOS, "unk": config.UNK, "sep": config.SEP, "pad": config.PAD, "cls": config.CLS, "mask": config.Mask} {
		if s != "" {
			c.tokens[name+"_token"] = string(s)
		}
	}
	return c, nil
}

// chatTemplate is the text of the template, the file that has it, and the configuration
// beside it.
func (f *Folder) chatTemplate() (text, from string, config tokenizerConfig, err error) {
	const own, beside = "chat_template.jinja", "tokenizer_config.json"
	for _, file := range f.files {
		switch file.Name {
		case own:
			text = string(file.Text)
		case beside:
			if err := json.Unmarshal(file.Text, &config); err != nil {
				return "", "", config, fmt.Errorf("%s: %w", beside, err)
			}
		}
	}
	if text != "" {
		return text, own, config, nil
	}
	if isNull(config.Template) {
		return "", "", config, fmt.Errorf("the tokenizer's folder has no chat template, neither chat_template.jinja nor chat_template in tokenizer_config.json; put the template there that the model was trained with")
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(config.Template, &text) == nil {
		return text, beside, config, nil
	}
	if err := json.Unmarshal(config.Template, &named); err != nil {
		return "", "", config, fmt.Errorf("tokenizer_config.json: chat_template is neither a text nor a list of them: %w", err)
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, beside, config, nil
		}
	}
	return "", "", config, fmt.Errorf("tokenizer_config.json: none of its chat templates is named default")
}

// render is the text of a conversation. Now is for a template that asks for the
// date; the zero time: it is not told.
func (c *Chat) render(messages chat.Value, answer bool, now time.Time) (chat.Text, error) {
	vars := map[string]chat.Value{"messages": messages, "tools": nil, "documents": nil, "add_generation_prompt": answer}
	if !now.IsZero() {
		vars["strftime_now"] = chat.At(now)
	}
	for name, s := range c.tokens {
		vars[name] = s
	}
	text, err := c.template.Render(vars)
	if err != nil {
		return text, fmt.Errorf("%s: %w", c.file, err)
	}
	return text, nil
}

// Prompt is the ids of a conversation up to where the model's answer begins.
func (c *Chat) Prompt(messages []Message, now time.Time) ([]int32, error) {
	list := &chat.List{}
	for _, m := range messages {
		d := &chat.Dict{}
		d.Set("role", m.Role)
		d.Set("content", m.Content)
		list.Items = append(list.Items, d)
	}
	text, err := c.render(list, true, now)
	if err != nil {
		return nil, err
	}
	return c.tok.Plain([]byte(text.Text)), nil
}

// Example is the ids of a whole conversation, and for each whether it is one that
// the model is to write: those of the template's generation blocks, or else of the
// messages of the role assistant with what ends them.
func (c *Chat) Example(messages *chat.List) (ids []int32, learn []bool, err error) {
	text, err := c.render(messages, false, time.Time{})
	if err != nil {
		return nil, nil, err
	}
	spans := text.Generated
	if len(spans) == 0 {
		if spans, err = c.answers(messages, text.Text); err != nil {
			return nil, nil, err
		}
	}
	ids = c.tok.Plain([]byte(text.Text))
	learn = make([]bool, len(ids))
	for _, s := range spans {
		from, to := c.countOf(ids, text.Text[:s[0]], false), c.countOf(ids, text.Text[:s[1]], true)
		for i := from; i < to; i++ {
			learn[i] = true
		}
	}
	return ids, learn, nil
}

// countOf is how many of the ids are those of a beginning of their text; of one
// that ends within a token, that one is counted if it is asked for.
func (c *Chat) countOf(ids []int32, beginning string, whole bool) int {
	own := c.tok.Plain([]byte(beginning))
	n := 0
	for n < min(len(own), len(ids)) && own[n] == ids[n] {
		n++
	}
	if n < len(own) && whole {
		n = min(n+1, len(ids))
	}
	return n
}

// answers are where the messages of the assistant stand in the text: behind what
// asks for an answer to those before.
func (c *Chat) answers(messages *chat.List, text string) (spans [][2]int, err error) {
	for i, m := range messages.Items {
		d, ok := m.(*chat.Dict)
		if role, _ := d.Get("role"); !ok || role != "assistant" {
			continue
		}
		head, err := c.render(&chat.List{Items: messages.Items[:i]}, true, time.Time{})
		if err != nil {
			return nil, err
		}
		upTo, err := c.render(&chat.List{Items: messages.Items[:i+1]}, false, time.Time{})
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(upTo.Text, head.Text) || !strings.HasPrefix(text, upTo.Text) {
			return nil, fmt.Errorf("the template writes message %d otherwise once others follow or when it is asked for, so that its place in the text is not known; mark it in the template with {%% generation %%}, or train on conversations that end with it", i+1)
		}
		spans = append(spans, [2]int{len(head.Text), len(upTo.Text)})
	}
	return spans, nil
}
