package data

import (
	"encoding/json"
	"fmt"
	"time"

	"zeroth/data/chat"
)

// Chat is a tokenizer with the chat template that its folder has.
type Chat struct {
	tok      *Folder
	template *chat.Template
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
	text, config, err := f.chatTemplate()
	if err != nil {
		return nil, err
	}
	template, err := chat.Parse(text)
	if err != nil {
		return nil, err
	}
	c := &Chat{f, template, map[string]chat.Value{}}
	for name, s := range map[string]special{"bos": config.BOS, "eos": config.EOS, "unk": config.UNK, "sep": config.SEP, "pad": config.PAD, "cls": config.CLS, "mask": config.Mask} {
		if s != "" {
			c.tokens[name+"_token"] = string(s)
		}
	}
	return c, nil
}

// chatTemplate is the text of the template, and the configuration beside it.
func (f *Folder) chatTemplate() (text string, config tokenizerConfig, err error) {
	for _, file := range f.files {
		switch file.Name {
		case "chat_template.jinja":
			text = string(file.Text)
		case "tokenizer_config.json":
			if err := json.Unmarshal(file.Text, &config); err != nil {
				return "", config, fmt.Errorf("tokenizer_config.json: %w", err)
			}
		}
	}
	if text != "" {
		return text, config, nil
	}
	if isNull(config.Template) {
		return "", config, fmt.Errorf("the tokenizer's folder has no chat template, neither chat_template.jinja nor chat_template in tokenizer_config.json; put the template there that the model was trained with")
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(config.Template, &text) == nil {
		return text, config, nil
	}
	if err := json.Unmarshal(config.Template, &named); err != nil {
		return "", config, fmt.Errorf("tokenizer_config.json: chat_template is neither a text nor a list of them: %w", err)
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, config, nil
		}
	}
	return "", config, fmt.Errorf("tokenizer_config.json: none of its chat templates is named default")
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
	return c.template.Render(vars)
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
