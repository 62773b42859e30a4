package hf

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
)

// TestAligned compares the special tokens of a saved model with those that align_special_tokens of
// transformers 5.24 gives it. The tokenizer ends a text with 423, has no beginning, and pads with 421.
func TestAligned(t *testing.T) {
	folder := t.TempDir()
	jobtest.WriteTokenizer(t, folder, "qwen", `{"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}}`)
	for name, c := range map[string]struct {
		config, generation string // of which the second may be missing
		turn               int32
		wantConfig, want   string // generation_config.json
		note               string
	}{
		"no generation":   {`{"eos_token_id":2}`, ``, -1, `{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[423,2],"pad_token_id":421}`, "eos_token_id 423 (was 2), pad_token_id 421 (was none)"},
		"another":         {`{"eos_token_id":2,"bos_token_id":1,"pad_token_id":421}`, `{"eos_token_id":[2,3],"temperature":0.6,"pad_token_id":421}`, -1, `{"bos_token_id":1,"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[423,2,3],"pad_token_id":421,"temperature":0.6}`, "eos_token_id 423 (was 2 and [2,3])"},
		"lists":           {`{"eos_token_id":[2],"pad_token_id":421}`, ``, -1, `{"eos_token_id":[423,2],"pad_token_id":421}`, `{"eos_token_id":[423,2],"pad_token_id":421}`, "eos_token_id 423 (was [2])"},
		"same":            {`{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[2,423],"pad_token_id":421}`, -1, `{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[2,423],"pad_token_id":421}`, ""},
		"same without":    {`{"eos_token_id":423,"pad_token_id":421}`, ``, 423, `{"eos_token_id":423,"pad_token_id":421}`, ``, ""},
		"only generation": {`{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":2,"pad_token_id":421}`, -1, `{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[423,2],"pad_token_id":421}`, "eos_token_id 423 (was 423 and 2)"},
		"null":            {`{"eos_token_id":null,"pad_token_id":421}`, `{"pad_token_id":421}`, -1, `{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[423],"pad_token_id":421}`, "eos_token_id 423 (was none)"},
		"turn":            {`{"eos_token_id":423,"pad_token_id":421}`, ``, 420, `{"eos_token_id":423,"pad_token_id":421}`, `{"eos_token_id":[423,420],"pad_token_id":421}`, "420, which ends an answer in the chat template, also ends a text"},
		"unknown":         {`{"eos_token_id":2,"vocab_size":421}`, ``, 422, `{"eos_token_id":2,"vocab_size":421}`, ``, ""},
	} {
		var kept Carried
		if err := kept.ReadFiles(folder); err != nil {
			t.Fatal(err)
		}
		if c.generation != "" {
			kept.Files = append(kept.Files, checkpoint.Attachment{Path: generationFile, Data: []byte(c.generation)})
		}
		got, note, err := kept.Aligned([]byte(c.config), c.turn)
		if err != nil {
			t.Fatal(name, err)
		}
		generation := ""
		for _, f := range got.Files {
			if f.Path == generationFile {
				generation = compact(t, f.Data)
			}
		}
		if config := compact(t, got.Config); config != c.wantConfig || generation != c.want || (note == "") != (c.note == "") || !strings.HasSuffix(note, c.note) {
			t.Errorf("%s:\n%s, want\n%s;\n%s, want\n%s;\n%q, want\n%q", name, config, c.wantConfig, generation, c.want, note, c.note)
		}
		again, note, err := got.Aligned(got.Config, c.turn)
		if err != nil || note != "" || !bytes.Equal(again.Config, got.Config) {
			t.Errorf("%s: once more: %q %v", name, note, err)
		}
	}
	var broken Carried
	if err := broken.ReadFiles(folder); err != nil {
		t.Fatal(err)
	}
	broken.Files = append(broken.Files, checkpoint.Attachment{Path: generationFile, Data: []byte("[")})
	if _, _, err := broken.Aligned([]byte("{}"), -1); !input.IsInput(err) {
		t.Errorf("a broken file: %v", err)
	}
}

func compact(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v) // sorts keys
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
