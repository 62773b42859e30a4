//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModel checks that a usable folder is described, and that all reasons why a folder cannot be
// used are reported at once.
func TestModel(t *testing.T) {
	tiny, err := filepath.Abs("../../tests/testdata/hf/tiny")
	if err != nil {
		t.Fatal(err)
	}
	inFolder(t)
	out, _ := zeroth(t, 0, "model", tiny)
	contains(t, out, "GPT-2 (model_type gpt2)\n", "2 layers, width 48, 3 heads of 16, context 32, vocabulary 97\n", "62.8k (62832) in 28 tensors, 245.4 KiB of F32\n",
		"tokenizer  none; ", `with model: {from: "`)

	if err := os.CopyFS("hf", os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"config.json": `{"model_type": "bert"}`, "tokenizer.json": "{"} {
		if err := os.WriteFile(filepath.Join("hf", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, errs := zeroth(t, 2, "model", "hf")
	contains(t, errs, `model_type "bert" is not supported; want gpt2, llama, `, "tokenizer: ", "tokenizer.json")
	if strings.Contains(out, "runs") {
		t.Errorf("a folder that is refused is said to run: %s", out)
	}
	if out, errs := zeroth(t, 2, "model", "nowhere"); !strings.Contains(errs, "nowhere/config.json cannot be read") || out != "" {
		t.Error(out, errs)
	}
	for template, want := range map[string]string{"{{ messages }}": "chat       has a template", "{% bad %}": "chat       no: chat_template.jinja: chat template: line 1, column "} {
		chatTokenizer(t, "hf", template)
		out, _ := zeroth(t, 2, "model", "hf")
		contains(t, out, want)
	}
}
