package hf

import (
	"path/filepath"
	"testing"

	"zeroth/data"
	"zeroth/job/jobtest"
)

// TestCarriedTokenizer checks that the type of the model decides how its tokenizer is read, in the
// folder and among the carried files.
func TestCarriedTokenizer(t *testing.T) {
	folder := t.TempDir()
	jobtest.WriteTokenizer(t, folder, "llama2", `{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}`)
	tokenizers := map[string]data.Tokenizer{}
	for _, kind := range []string{"llama", "mistral"} {
		config := `{"model_type": "` + kind + `"}`
		jobtest.Write(t, filepath.Join(folder, "config.json"), config)
		var c Carried
		if err := c.ReadFiles(folder); err != nil {
			t.Fatal(err)
		}
		c.Config = []byte(config)
		is, err := data.NewTokenizer(folder)
		if err != nil {
			t.Fatal(err)
		}
		if carried, _, err := c.Tokenizer(); err != nil || !data.SameTokenizer(is, carried) {
			t.Errorf("%s: %v, another tokenizer", kind, err)
		}
		tokenizers[kind] = is
	}
	if data.SameTokenizer(tokenizers["llama"], tokenizers["mistral"]) {
		t.Error("the type of the model makes no difference")
	}
}

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
