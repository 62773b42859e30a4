package data

import (
	"strings"
	"testing"
	"time"

	"zeroth/data/chat"
)

const chatML = `{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}`

// TestPrompt checks that a conversation is rendered by the folder's template, wherever that
// is stored, and that its special tokens become tokens.
func TestPrompt(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string // the text, or the error
	}{
		"file":     {map[string]string{"chat_template.jinja": chatML, "tokenizer_config.json": `{"chat_template": "other"}`}, "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"},
		"config":   {map[string]string{"tokenizer_config.json": `{"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}{{ eos_token }}{{ bos_token }}"}`}, "Hi!<|im_end|>"},
		"named":    {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ strftime_now('%Y') }}"}]}`}, "2026"},
		"map":      {map[string]string{"tokenizer_config.json": `{"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "eos_token": null}`, "special_tokens_map.json": `{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}`}, "<|im_start|>Hi!<|im_end|>"},
		"own":      {map[string]string{"tokenizer_config.json": `{"chat_template": "{{ a_token }}{{ messages[0].content }}{{ b_token }}", "a_token": "<|im_start|>", "extra_special_tokens": {"b_token": "<|im_end|>"}}`}, "<|im_start|>Hi!<|im_end|>"},
		"none":     {nil, "the tokenizer's folder has no chat template"},
		"unnamed":  {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "rag", "template": "x"}]}`}, "none of its chat templates is named default"},
		"no text":  {map[string]string{"tokenizer_config.json": `{"chat_template": 5}`}, "chat_template is neither a string nor a list"},
		"tools":    {map[string]string{"chat_template.jinja": "usual", "additional_chat_templates/tool_use.jinja": "x", "additional_chat_templates/rag.jinja": "y"}, "usual"},
		"only":     {map[string]string{"tokenizer_config.json": `{"chat_template": "usual"}`, "additional_chat_templates/tool_use.jinja": "x"}, "additional_chat_templates/tool_use.jinja is given without chat_template.jinja"},
		"bad tool": {map[string]string{"chat_template.jinja": "usual", "additional_chat_templates/tool_use.jinja": "{% include 'x' %}"}, "additional_chat_templates/tool_use.jinja: chat template: line 1"},
		"unknown":  {map[string]string{"chat_template.jinja": "{% include 'x' %}"}, "chat_template.jinja: chat template: line 1, column 4: the statement include is not supported"},
		"refusing": {map[string]string{"tokenizer_config.json": `{"chat_template": "{{ raise_exception('no users') }}"}`}, "tokenizer_config.json: chat template: line 1, column 19: the template raised: no users"},
	} {
		dir := t.TempDir()
		ownFolder(t, dir, "qwen", c.files)
		tok, err := NewTokenizer(dir)
		if err != nil {
			t.Fatal(err)
		}
		talk, err := NewChat(tok, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		var ids []int32
		if err == nil {
			ids, err = talk.Prompt(NewTalk("user", "Hi!"))
		}
		if got := string(tok.Decode(ids)); got != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v, want %s", name, got, err, c.want)
		}
		if begin, _ := tok.(*Folder).ID("<|im_start|>"); name == "file" && ids[0] != begin {
			t.Errorf("%s: %v", name, ids)
		}
	}
	if _, err := NewChat(gpt2(), time.Time{}); err == nil || !strings.Contains(err.Error(), "the tokenizer has no chat template") {
		t.Errorf("%v", err)
	}
}

// TestToolTemplates checks that conversations with tools have the template named tool_use, wherever that
// is stored.
func TestToolTemplates(t *testing.T) {
	for _, files := range []map[string]string{
		{"chat_template.jinja": "usual", "additional_chat_templates/tool_use.jinja": "{{ tools | length }} tools"},
		{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "usual"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]}`},
	} {
		dir := t.TempDir()
		ownFolder(t, dir, "qwen", files)
		tok, err := NewTokenizer(dir)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewChat(tok, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		talk := NewTalk("user", "a")
		for _, want := range []string{"usual", "1 tools"} {
			if ids, err := c.Prompt(talk); err != nil || string(tok.Decode(ids)) != want {
				t.Errorf("%v: %q, %v, want %q", files, tok.Decode(ids), err, want)
			}
			talk.Tools = &chat.List{Items: []chat.Value{&chat.Dict{}}}
		}
	}
}

// TestFolderContradictions checks that files beside tokenizer.json that would make other programs
// encode differently are refused.
func TestFolderContradictions(t *testing.T) {
	for config, fails := range map[string]bool{
		`{"split_special_tokens": true}`:                   true,
		`{"extra_special_tokens": ["<new>"]}`:              true,
		`{"extra_special_tokens": {"new_token": "<new>"}}`: true,
		`{"additional_special_tokens": ["<new>"]}`:         true,
		`{"new_token": "<new>"}`:                           true,
		`{"tokenizer_class": "GPT2TokenizerFast"}`:         true,
		`{"tokenizer_class": "LlamaTokenizer"}`:            false,
		`{"tokenizer_class": "GemmaTokenizer"}`:            true,
		`{"tokenizer_class": "Qwen2Tokenizer"}`:            false,
		`{"extra_special_tokens": ["<|im_end|>"]}`:         false,
		`{"tokenizer_class": "PreTrainedTokenizerFast"}`:   false,
	} {
		dir := t.TempDir()
		ownFolder(t, dir, "qwen", map[string]string{"tokenizer_config.json": config})
		_, err := NewTokenizer(dir)
		said.Fails(t, config, err, fails)
	}
}
