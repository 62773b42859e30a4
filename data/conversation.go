package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"zeroth/data/chat"
	"zeroth/internal/input/jsonread"
)

// Chat is a folder's tokenizer with its chat template.
type Chat struct {
	tok    *Folder
	usual  template
	tools  template              // for conversations with tools; often the same
	tokens map[string]chat.Value // the templates' variables bos_token and so on
	now    time.Time             // that templates see
	uses   sync.Map              // the spares that made a difference to some text
}

// template is a template and the name of the file containing it.
type template struct {
	*chat.Template
	file string
}

// Talk is a conversation.
type Talk struct {
	Messages chat.Value // a list of messages
	Tools    chat.Value // list of tools the model may call; nil if none are given
	More     *chat.Dict // further variables of the template, such as enable_thinking; may be nil
	Skip     []bool     // by message: whether it is an answer that is not learned; nil if none is
}

// NewTalk returns a conversation, given each message's role and content.
func NewTalk(rolesAndContents ...string) Talk {
	list := &chat.List{}
	for i := 0; i+1 < len(rolesAndContents); i += 2 {
		d := &chat.Dict{}
		d.Set("role", rolesAndContents[i])
		d.Set("content", rolesAndContents[i+1])
		list.Items = append(list.Items, d)
	}
	return Talk{Messages: list}
}

// NewChat reads the chat template of a tokenizer's folder: chat_template.jinja or, without such a
// file, chat_template in tokenizer_config.json; of several templates, the one named default and, for
// conversations with tools, the one named tool_use, which may be a file in additional_chat_templates.
// Templates see the time now.
func NewChat(t Tokenizer, now time.Time) (*Chat, error) {
	f, ok := t.(*Folder)
	if !ok {
		return nil, fmt.Errorf("the tokenizer has no chat template; one comes with a folder's tokenizer.json, in chat_template.jinja or tokenizer_config.json")
	}
	texts, d, err := f.chatTemplates()
	if err != nil {
		return nil, err
	}
	c := &Chat{tok: f, tokens: map[string]chat.Value{}, now: now}
	if c.usual, err = texts["default"].parse(); err != nil {
		return nil, err
	}
	if c.tools = c.usual; texts["tool_use"].text != "" {
		if c.tools, err = texts["tool_use"].parse(); err != nil {
			return nil, err
		}
	}
	for name, s := range d.config.named() {
		if s != "" {
			c.tokens[name] = string(s)
		}
	}
	return c, nil
}

// templateText is the text of a template and the name of the file containing it.
type templateText struct{ text, file string }

func (t templateText) parse() (template, error) {
	parsed, err := chat.Parse(t.text)
	if err != nil {
		err = fmt.Errorf("%s: %w", t.file, err)
	}
	return template{parsed, t.file}, err
}

// chatTemplates returns the templates by name, and the other settings in the files.
func (f *Folder) chatTemplates() (texts map[string]templateText, d description, err error) {
	const configFile = "tokenizer_config.json"
	if d, err = describe(f.files); err != nil {
		return nil, d, err
	}
	texts = map[string]templateText{}
	for name, file := range map[string]string{"default": templateFile, "tool_use": toolsFile} {
		if text := d.texts[file]; len(text) > 0 {
			texts[name] = templateText{string(text), file}
		}
	}
	var text string
	switch {
	case len(texts) > 0:
		if texts["default"].text == "" {
			return nil, d, fmt.Errorf("%s is given without %s, which then has the template for conversations without tools", toolsFile, templateFile)
		}
		return texts, d, nil
	case isNull(d.config.Template):
		return nil, d, fmt.Errorf("the tokenizer's folder has no chat template, neither chat_template.jinja nor chat_template in tokenizer_config.json; add the template the model was trained with")
	case json.Unmarshal(d.config.Template, &text) == nil:
		return map[string]templateText{"default": {text, configFile}}, d, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(d.config.Template, &named); err != nil {
		return nil, d, fmt.Errorf("tokenizer_config.json: chat_template is neither a string nor a list of named templates: %w", err)
	}
	for _, n := range named {
		texts[n.Name] = templateText{n.Template, configFile}
	}
	if _, ok := texts["default"]; !ok {
		return nil, d, fmt.Errorf("tokenizer_config.json: none of its chat templates is named default")
	}
	return texts, d, nil
}

// arguments are names that variables of a template cannot have: apply_chat_template's own parameters, and
// the other parts of a conversation.
var arguments = map[string]bool{
	"messages": true, "conversation": true, "tools": true, "chat_template": true, "add_generation_prompt": true, "continue_final_message": true,
	"tokenize": true, "sanitize_control_tokens": true, "padding": true, "truncation": true, "max_length": true, "return_tensors": true,
	"return_dict": true, "return_assistant_tokens_mask": true, "tokenizer_kwargs": true,
}

// render returns the text of a conversation, which ends with a request for an answer if
// answer is set.
func (c *Chat) render(talk Talk, answer bool) (chat.Text, error) {
	messages, err := chat.Messages(talk.Messages)
	if err != nil {
		return chat.Text{}, err
	}
	vars := map[string]chat.Value{"messages": messages, "tools": talk.Tools, "documents": nil, "add_generation_prompt": answer, "strftime_now": chat.At(c.now)}
	maps.Copy(vars, c.tokens)
	if talk.More != nil {
		for name, v := range talk.More.All() {
			if arguments[name] {
				return chat.Text{}, fmt.Errorf("%q cannot be a variable of the template", name)
			}
			vars[name] = v
		}
	}
	t := c.usual
	if talk.Tools != nil {
		t = c.tools
	}
	text, err := t.Render(vars)
	if err != nil {
		return text, fmt.Errorf("%s: %w", t.file, err)
	}
	return text, nil
}

// Variables returns variables of the template for conversations without tools, given as key=value.
// A value is JSON or, if it is not, a string.
func (c *Chat) Variables(given []string) (*chat.Dict, error) {
	vars := &chat.Dict{}
	for _, s := range given {
		key, text, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("variable %q of the template; want key=value, such as enable_thinking=false", s)
		}
		if arguments[key] {
			return nil, fmt.Errorf("%q cannot be a variable of the template", key)
		}
		if !c.usual.Mentions(key) {
			return nil, fmt.Errorf("%s: the chat template has no variable %q", c.usual.file, key)
		}
		if json, ok := map[string]string{"True": "true", "False": "false", "None": "null"}[text]; ok {
			return nil, fmt.Errorf("variable %s of the template; want %s=%s", s, key, json)
		}
		vars.Set(key, text)
		if v, err := jsonread.Parse([]byte(text)); err == nil {
			x, err := chat.FromJSON(v)
			if err != nil {
				return nil, fmt.Errorf("variable %q of the template: %w", key, err)
			}
			vars.Set(key, x)
		}
	}
	return vars, nil
}

// EndOfTurn returns the special token with which the template ends an answer; -1 if there is none.
func (c *Chat) EndOfTurn() int32 {
	end, _ := c.endOfTurn()
	return end
}

// endOfTurn is like EndOfTurn. It is unknown if the template refuses a simple conversation.
func (c *Chat) endOfTurn() (end int32, known bool) {
	all, err := c.Examples(NewTalk("user", "question", "assistant", "answer"), "assistant")
	if err != nil || len(all) == 0 {
		return -1, false
	}
	end, x := int32(-1), all[len(all)-1]
	for i := len(x.ids) - 1; i >= 0; i-- {
		switch id := x.ids[i]; {
		case c.tok.Special(uint32(id)):
			if x.learn[i] {
				end = id
			}
		case len(bytes.TrimSpace(c.tok.Decode(x.ids[i:i+1]))) > 0:
			return end, true
		}
	}
	return -1, true
}

// Prompt returns the ids of a conversation up to the beginning of the model's answer.
func (c *Chat) Prompt(talk Talk) ([]int32, error) {
	text, err := c.render(talk, true)
	if err != nil {
		return nil, err
	}
	return c.tok.Plain([]byte(text.Text)), nil
}
