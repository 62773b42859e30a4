package generate

import (
	"os"
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
)

// TestTokenizerOf checks that runs without a saved tokenizer use their job's, with a note, or are
// rejected if it is unknown.
func TestTokenizerOf(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, dir := range []string{"run/model", "gpt/model", "tokens/model", "other/model", "none"} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	jobtest.WriteVocabulary(t, "own", 300)
	jobtest.WriteVocabulary(t, "qwen", 300)
	jobtest.Write(t, "qwen/tokenizer_config.json", `{"tokenizer_class": "Qwen2Tokenizer"}`)
	jobtest.Write(t, "run/job.yaml", "data: {text: [gone.txt], tokenizer: bytes}\n")
	jobtest.Write(t, "gpt/job.yaml", "data: {text: [gone.txt], tokenizer: gpt2, vocab: gone}\n")
	jobtest.Write(t, "tokens/job.yaml", "data: {tokens: [gone.bin], tokenizer: gpt2}\n")
	jobtest.Write(t, "other/job.yaml", "data: {tokens: [gone.bin], tokenizer: none}\n")
	const advice = "name it with --tokenizer bytes, gpt2 or a folder"
	for _, c := range []struct {
		folder, tokenizer string
		vocab, want       int
		note, err         string
	}{
		{"run/model", "", 300, 256, `the run did not record its tokenizer; using "bytes", as in run/job.yaml`, ""}, // the job takes precedence
		{"tokens/model", "", 50304, 50257, `the run did not record its tokenizer; using "gpt2", as in tokens/job.yaml`, ""},
		{"tokens/model", "", 32000, 0, "", "tokens/job.yaml: its token files do not use GPT-2's vocabulary: the model has 32000 tokens; " + advice},
		{"tokens/model", "own", 32000, 301, "", ""},
		{"other/model", "", 50257, 0, "", "other/job.yaml: the tokenizer of its token files is unknown; " + advice},
		{"gpt/model", "", 300, 0, "", `gpt/job.yaml: "gone" is neither bytes nor gpt2 nor a folder with a tokenizer: open gone/vocab.json: no such file or directory; the run has no copy of its tokenizer: ` + advice},
		{"own", "", 256, 301, "", ""},
		{"own", "bytes", 256, 256, "", ""},
		{"qwen", "", 300, 0, "", `the tokenizer in "qwen" cannot be used: tokenizer_config.json names the tokenizer class "Qwen2Tokenizer"; without a tokenizer.json only GPT-2's text splitting is supported; add a tokenizer.json, or encode the text with another program and set data.tokens; or ` + advice},
		{"none", "", 256, 256, "no tokenizer in none; using bytes, which matches the model's 256 tokens. If the model uses another, " + advice, ""},
		{"none", "", 50257, 50257, "no tokenizer in none; using gpt2, which matches the model's 50257 tokens. If the model uses another, " + advice, ""},
		{"none", "", 97, 0, "", "no tokenizer in none, and no built-in one has the model's 97 tokens; " + advice},
	} {
		note := ""
		o := Options{Run: strings.TrimSuffix(c.folder, "/model"), Tokenizer: c.tokenizer, Note: func(s string) { note += s }}
		tok, err := tokenizerOf(o, c.folder, c.vocab)
		switch {
		case c.err != "":
			if err == nil || err.Error() != c.err || !input.IsInput(err) {
				t.Errorf("%s: %v, want %s", c.folder, err, c.err)
			}
		case err != nil || tok.Vocab() != c.want || note != c.note:
			t.Errorf("%s with %d: %v %v, want %d; note %q, want %q", c.folder, c.vocab, tok, err, c.want, note, c.note)
		}
	}
}
