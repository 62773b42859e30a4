package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// modelFolders creates folders of models with different tokenizers.
func modelFolders(t *testing.T, vocabs map[string]int) {
	t.Helper()
	for name, vocab := range vocabs {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		jobtest.Write(t, name+"/config.json", string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 1, Width: 8, Context: 16, Vocab: vocab, Eps: 1e-5}}.ConfigJSON()))
	}
}

// TestTokenizerOfModelFrom checks that a job uses the tokenizer of model.from if supported. Text
// is never encoded with another one unless the job says so, which is noted.
func TestTokenizerOfModelFrom(t *testing.T) {
	nightly.Long(t)
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Write(t, "a.bin", "\x01\x00\x02\x00\x03\x00")
	modelFolders(t, map[string]int{"none": 300, "qwen": 60000, "own": 400, "bytes": 256, "gpt2": 50304, "bare": 50304, "bad": 300, "llama": 1000, "small": 421})
	for _, name := range []string{"llama", "small"} {
		jobtest.WriteTokenizer(t, name, "llama3", `{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eot_id|>"}`)
	}
	jobtest.WriteVocabulary(t, "qwen", 300)
	jobtest.Write(t, "qwen/tokenizer_config.json", `{"tokenizer_class": "Qwen2Tokenizer"}`)
	jobtest.WriteVocabulary(t, "own", 300)
	jobtest.WriteVocabulary(t, "bad", 299)
	jobtest.Write(t, "bad/merges.txt", "x")
	for _, name := range []string{"bytes", "gpt2"} {
		tok, err := data.NewTokenizer(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range data.RecordTokenizer(name, tok) {
			jobtest.Write(t, filepath.Join(name, f.Name), string(f.Text))
		}
	}
	for _, c := range []struct {
		from, sets string
		want       string // tokenizer and vocab
		note, err  string
	}{
		{"none", "", "", "", "--set model.from=none: model.from: text needs the tokenizer that the model of none was trained with, but that folder has none; name it with data.tokenizer (bytes or gpt2) or data.vocab, or use data.tokens, encoded with it elsewhere"},
		{"qwen", "", "", "", `--set model.from=qwen: model.from: text is encoded with the model's tokenizer, but the tokenizer in "qwen" cannot be used: tokenizer_config.json names the tokenizer class "Qwen2Tokenizer"; without a tokenizer.json only GPT-2's text splitting is supported`},
		{"bad", "", "", "", `--set model.from=bad: model.from: text is encoded with the model's tokenizer, but the tokenizer in "bad" cannot be used: bad/merges.txt:1: "x" is not two tokens`},
		{"own", "", "gpt2 own", "", ""},
		{"bytes", "", "bytes ", "", ""},
		{"gpt2", "", "gpt2 ", "", ""},
		{"none", "data.tokenizer=bytes", "bytes ", "", ""},
		{"qwen", "data.tokenizer=gpt2", "gpt2 ", "the job's tokenizer may not be its model's: the tokenizer in \"qwen\" cannot be used", ""},
		{"llama", "", "folder llama", "", ""},
		{"llama", "data.tokenizer=folder", "folder llama", "", ""},
		{"small", "", "folder small", "the tokenizer has 422 tokens, but the model only the first 421; text with one of the others is refused", ""},
		{"none", "data.vocab=llama", "", "", "--set model.from=none: model.from: the model's vocabulary has 300 tokens, but that of tokenizer folder has 422; want a vocabulary of at least 422"},
		{"own", "data.tokenizer=bytes", "bytes ", "the job's tokenizer is not its model's: the embeddings in own are for other tokens", ""},
		{"own", "data.tokenizer=gpt2 data.vocab=own", "gpt2 own", "", ""},
		{"own", "data.text= data.tokens=[a.bin]", "gpt2 own", "", ""},
		{"qwen", "data.text= data.tokens=[a.bin] data.dtype=uint16", "none ", "", ""},
		{"none", "data.text= data.tokens=[a.bin]", "none ", "", ""},
		{"bare", "data.text= data.tokens=[a.bin]", "gpt2 ", "", ""},
		{"own", "data.tokenizer=none", "", "", "--set data.tokenizer=none: data.tokenizer: text needs a tokenizer, but data.tokenizer is none; want bytes or gpt2"},
		{"qwen", "data.text= data.tokens=[a.bin] sample.tokens=5", "", "", "--set sample.tokens=5: sample.tokens: sampling text needs a tokenizer, but that of the token files is unknown"},
		{"own", "model.context=17", "", "", "--set model.context=17: model.context: sequences of 17 tokens"},
	} {
		sets := append(strings.Fields(c.sets), "model.from="+c.from)
		got, err := Load("job.yaml", sets)
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) || strings.Contains(err.Error(), "\n") || !input.IsInput(err) {
				t.Errorf("%q:\n got %v\nwant %s", sets, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", sets, err)
			continue
		}
		if is := got.Data.Tokenizer + " " + got.Data.Vocab; is != c.want {
			t.Errorf("%q: tokenizer %s, want %s", sets, is, c.want)
		}
		if note := strings.Join(got.Notes, "\n"); c.note == "" && note != "" || !strings.HasPrefix(note, c.note) {
			t.Errorf("%q: notes %q, want %q", sets, note, c.note)
		}
		jobtest.Write(t, "again.yaml", string(got.YAML()))
		if again, err := Load("again.yaml", nil); err != nil || Tokenizer(again) != Tokenizer(got) || again.Data.DType != got.Data.DType {
			t.Errorf("%q: read again: %v", sets, err)
		}
	}
}

// TestTokenizerFolder checks that a supported tokenizer needs a folder, but no model.
func TestTokenizerFolder(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.WriteTokenizer(t, "own", "qwen", "{}")
	for _, set := range []string{"data.vocab=own", "data.tokenizer=folder data.vocab=own"} {
		if c := mustLoad(t, strings.Fields(set)...); Tokenizer(c) != "own" || c.Model.Vocab != 424 {
			t.Errorf("%s: tokenizer %s, vocabulary %d", set, Tokenizer(c), c.Model.Vocab)
		}
	}
	_, err := Load("job.yaml", []string{"data.tokenizer=folder"})
	said.Same(t, "no folder", err)
}

// TestTokenizerOfTokens checks that token files without a tokenizer only default to GPT-2's if the
// vocabulary has its size.
func TestTokenizerOfTokens(t *testing.T) {
	jobtest.InFolder(t, "data: {tokens: [a.bin]}\n")
	jobtest.Write(t, "a.bin", "\x01\x00\x02\x00\x03\x00")
	for set, want := range map[string]string{"model.layers=1": "gpt2", "model.vocab=50304": "gpt2", "model.vocab=65": "none", "model.vocab=128256": "none"} {
		if c := mustLoad(t, set); c.Data.Tokenizer != want {
			t.Errorf("%s: %s, want %s", set, c.Data.Tokenizer, want)
		}
	}
	for _, sets := range []string{
		"data.tokenizer=none",
		"data.dtype=uint8",
		"data.text=[job.yaml] data.tokens= data.dtype=uint16",
		"model.vocab=60 data.tokenizer=gpt2 sample.prompt=abc",
	} {
		_, err := Load("job.yaml", strings.Fields(sets))
		said.Same(t, sets, err)
	}
}
