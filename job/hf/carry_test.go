package hf

import (
	"testing"
)

func TestCarries(t *testing.T) {
	for name, want := range map[string]bool{
		"tokenizer.json": true, "merges.txt": true, "additional_chat_templates/rag.jinja": true,
		"config.json": false, "model.safetensors": false, "additional_chat_templates": false, "additional_chat_templates/": false,
		"additional_chat_templates/a.py": false, "additional_chat_templates/../../a.jinja": false, `additional_chat_templates/..\a.jinja`: false,
		"/etc/tokenizer.json": false, "../tokenizer.json": false, "": false,
	} {
		if carries(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}
