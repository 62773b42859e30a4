package data

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"zeroth/data/chat"
)

// Chat is a folder's tokenizer with its chat template.
type Chat struct {
	tok      *Folder
	template *chat.Template
	file     string                // containing the template
	tokens   map[string]chat.Value // the template's variables bos_token and so on
}

// Message is one message of a conversation.
type Message struct{ Role, Content string }

// NewChat reads the chat template of a tokenizer's folder: chat_template.jinja, or
// chat_template in tokenizer_config.json; of several templates, the one named default.
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

// chatTemplate returns the text of the template, the name of the file containing it, and
// the content of tokenizer_config.json.
func (f *Folder) chatTemplate() (text, from string, config tokenizerConfig, err error) {
	const templateFile, configFile = "chat_template.jinja", "tokenizer_config.json"
	for _, file := range f.files {
		switch file.Name {
		case templateFile:
			text = string(file.Text)
		case configFile:
			if err := json.Unmarshal(file.Text, &config); err != nil {
				return "", "", config, fmt.Errorf("%s: %w", configFile, err)
			}
		}
	}
	if text != "" {
		return text, templateFile, config, nil
	}
	if isNull(config.Template) {
		return "", "", config, fmt.Errorf("the tokenizer's folder has no chat template, neither chat_template.jinja nor chat_template in tokenizer_config.json; add the template the model was trained with")
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(config.Template, &text) == nil {
		return text, configFile, config, nil
	}
	if err := json.Unmarshal(config.Template, &named); err != nil {
		return "", "", config, fmt.Errorf("tokenizer_config.json: chat_template is neither a string nor a list of named templates: %w", err)
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, configFile, config, nil
		}
	}
	return "", "", config, fmt.Errorf("tokenizer_config.json: none of its chat templates is named default")
}

// render returns the text of a conversation, which ends with a request for an answer if
// answer is set. now is available to the template unless it is the zero time.
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

// Prompt returns the ids of a conversation up to the beginning of the model's answer.
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

// Example returns the ids of a whole conversation and whether the model learns each: those
// in the template's generation blocks or, if it has none, those of assistant messages with
// the tokens that end them.
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

// countOf returns how many of ids make up the given beginning of their text. If the
// beginning ends within a token, whole includes that token.
func (c *Chat) countOf(ids []int32, beginning string, whole bool) int {
	prefix := c.tok.Plain([]byte(beginning))
	n := 0
	for n < min(len(prefix), len(ids)) && prefix[n] == ids[n] {
		n++
	}
	if n < len(prefix) && whole {
		n = min(n+1, len(ids))
	}
	return n
}

// answers returns the byte ranges of the assistant's messages in the text, each from the end
// of the prompt that the messages before it make.
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
			return nil, fmt.Errorf("the template renders message %d differently depending on what follows, so its position in the text is unknown; mark it in the template with {%% generation %%}, or train on conversations that end with it", i+1)
		}
		spans = append(spans, [2]int{len(head.Text), len(upTo.Text)})
	}
	return spans, nil
}
