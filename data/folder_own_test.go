package data

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// ownFolder writes a folder with a tokenizer.json of a family and the given other files.
func ownFolder(t testing.TB, dir, family string, beside map[string]string) {
	t.Helper()
	f, err := os.Open(filepath.Join("tokenizer", "testdata", family+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), string(text))
	for name, text := range beside {
		write(t, filepath.Join(dir, name), text)
	}
}

// TestFolderFiles checks that a document is encoded like its text, followed by the token that
// ends a document, and that files of several chunks are encoded as if at once.
func TestFolderFiles(t *testing.T) {
	nightly.Long(t)
	long := strings.Repeat("some words and 12345, don't; naïve e\u0301\n", 3*chunkBytes/40)
	for _, family := range []string{"llama3", "nemo", "llama2", "metafirst1", "qwen", "smollm", "gemma"}[:nightly.Of(4, 7)] {
		eos := map[string]string{"llama3": "<|eot_id|>", "qwen": "<|im_end|>", "smollm": "<|endoftext|>"}[family]
		if eos == "" {
			eos = "</s>"
		}
		dir := tree(t, map[string]string{"a": long, "b": "the end", "c": ""})
		ownFolder(t, filepath.Join(dir, "tok"), family, map[string]string{"tokenizer_config.json": `{"eos_token": {"content": "` + eos + `"}}`})
		set := open(t, Source{Text: []string{"[abc]"}, Dir: dir, Tokenizer: "tok", Context: 4})
		tok := set.Tokenizer.(*Folder)
		end, ok := tok.ID(eos)
		if !ok || tok.Separator() != end {
			t.Fatalf("%s: separator %d", family, tok.Separator())
		}
		var want []int32
		for _, text := range []string{long, "the end"} {
			want = append(want, tok.Encode([]byte(text))...)
			if want[len(want)-1] != end { // nemo's template ends with it
				want = append(want, end)
			}
		}
		if !slices.Equal(all(set), want) || len(set.Notes) > 0 {
			t.Errorf("%s: different ids; notes %q", family, set.Notes)
		}
	}
}

func TestFolderRefusesBytes(t *testing.T) {
	dir := tree(t, map[string]string{"a": "fine\nand \xe9 not", "b": "<|eot_id|> and <|eot_id|>"})
	ownFolder(t, filepath.Join(dir, "tok"), "llama3", nil)
	s := Source{Text: []string{"a"}, Dir: dir, Tokenizer: "tok", Context: 4}
	if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "a: line 2, byte 9 is 0xe9, which is not UTF-8") {
		t.Errorf("%v", err)
	}
	s.Text = []string{"b"}
	set := open(t, s)
	if want := []string{"the text contains special tokens 2 times; they are encoded as those tokens, as by Hugging Face tokenizers"}; !slices.Equal(set.Notes, want) {
		t.Errorf("notes %q", set.Notes)
	}
	if set.Tokenizer.Separator() != -1 {
		t.Error("a separator that no file defines")
	}
	s.Vocab = 421 // without <|eot_id|>
	if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "b: token 1, at byte 2, has id 421, but the vocabulary has ids 0 to 420") {
		t.Errorf("%v", err)
	}
	s.Vocab = 419
	if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "tok has 420 tokens, but the model's vocabulary is 419") {
		t.Errorf("%v", err)
	}
}

// TestFolderConflicts checks that the other files must not contradict tokenizer.json.
func TestFolderConflicts(t *testing.T) {
	added := `"added_tokens_decoder": {"421": {"content": "<|eot_id|>", "lstrip": false, "rstrip": false, "single_word": false, "normalized": false, "special": true}}`
	for name, c := range map[string]struct {
		file, text string
		fails      bool
	}{
		"none":       {"special_tokens_map.json", `{}`, false},
		"agrees":     {"tokenizer_config.json", `{"tokenizer_class": "X", "add_bos_token": true, "add_eos_token": false, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", ` + added + `}`, false},
		"bos":        {"tokenizer_config.json", `{"add_bos_token": false, "bos_token": "<|begin_of_text|>"}`, true},
		"eos":        {"tokenizer_config.json", `{"add_eos_token": true, "eos_token": "<|eot_id|>"}`, true},
		"special":    {"tokenizer_config.json", `{"pad_token": "<pad>"}`, true},
		"map":        {"special_tokens_map.json", `{"pad_token": "<pad>"}`, true},
		"code":       {"tokenizer_config.json", `{"auto_map": {"AutoTokenizer": ["a.B", null]}}`, true},
		"lower case": {"tokenizer_config.json", `{"do_lower_case": true}`, true},
		"added":      {"added_tokens.json", `{"<|eot_id|>": 5}`, true},
		"decoder":    {"tokenizer_config.json", "{" + strings.Replace(added, `"rstrip": false`, `"rstrip": true`, 1) + "}", true},
	} {
		dir := t.TempDir()
		ownFolder(t, dir, "llama3", map[string]string{c.file: c.text})
		_, err := NewTokenizer(dir)
		said.Fails(t, name, err, c.fails)
	}
}

// TestFolderIsRecorded checks that the record of a folder's tokenizer consists of its files.
func TestFolderIsRecorded(t *testing.T) {
	dir, again := t.TempDir(), filepath.Join(t.TempDir(), "again")
	ownFolder(t, dir, "qwen", map[string]string{"tokenizer_config.json": `{"eos_token": "<|im_end|>"}`, "chat_template.jinja": "{{ x }}"})
	a, err := NewTokenizer(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeTokenizer(again, "folder", a); err != nil {
		t.Fatal(err)
	}
	b, err := NewTokenizer(again)
	if err != nil || !SameTokenizer(a, b) || SameTokenizer(a, gpt2()) || a.Separator() != b.Separator() {
		t.Fatalf("%v", err)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		was, err := os.ReadFile(filepath.Join(dir, name))
		is, err2 := os.ReadFile(filepath.Join(again, name))
		if err != nil || err2 != nil || !bytes.Equal(was, is) {
			t.Errorf("%s: %v %v", name, err, err2)
		}
	}
}

// TestStream checks that drawn ids decoded one by one have the text of all decoded at once, for every
// kind of tokenizer, and whatever of them preceded the stream.
func TestStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all, err := filepath.Glob(filepath.Join("tokenizer", "testdata", "*.json.gz"))
	if err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	kinds := map[string]Tokenizer{"bytes": Bytes{}, "gpt2": gpt2()}
	for _, path := range all {
		family, dir := strings.TrimSuffix(filepath.Base(path), ".json.gz"), t.TempDir()
		ownFolder(t, dir, family, nil)
		if kinds[family+" folder"], err = NewTokenizer(dir); err != nil {
			t.Fatal(err)
		}
	}
	n, compared := nightly.Of(600, 100_000)/len(kinds), 0
	for kind, tok := range kinds {
		for range n {
			ids := drawnIDs(rng, tok)
			before := rng.IntN(2) * rng.IntN(len(ids))
			known, want := string(tok.Decode(ids[:before])), string(tok.Decode(ids))
			s, got := NewStream(tok, ids[:before]), known
			for _, id := range ids[before:] {
				got += string(s.Next(id))
			}
			got += string(s.Rest())
			if !strings.HasPrefix(want, known) {
				continue // the ids after it change it
			}
			if compared++; got != want {
				t.Fatalf("%s: %v after %d: %q, want %q", kind, ids[before:], before, got, want)
			}
		}
	}
	if compared < n*len(kinds)*8/10 {
		t.Errorf("%d compared", compared)
	}
}

// drawnIDs draws ids of a tokenizer: of texts, of bytes, and any.
func drawnIDs(rng *rand.Rand, tok Tokenizer) (ids []int32) {
	for range 1 + rng.IntN(12) {
		text := []byte([]string{"Hello  wörld", ", 你好 𝒳 ", "👩\u200d👩", "ភាសាខ្មែរ", " and   so on ", "\n"}[rng.IntN(6)])
		more := tok.Encode(text)
		if f, ok := tok.(*Folder); ok {
			more = f.Plain(text)
		}
		ids = append(ids, more[:len(more)-rng.IntN(2)*rng.IntN(len(more)+1)]...)
		if rng.IntN(6) == 0 {
			ids = append(ids, int32(rng.IntN(tok.Vocab()+3))-1)
		}
	}
	return append(ids, 0)
}

// TestStreamAfterBytes checks that the text before the stream is not repeated when ids after it
// garble the run of bytes in which it ends.
func TestStreamAfterBytes(t *testing.T) {
	dir := t.TempDir()
	ownFolder(t, dir, "llama2", nil)
	tok, err := NewTokenizer(dir)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.(*Folder).Plain([]byte("a\nភ"))
	s, got := NewStream(tok, ids[:len(ids)-3]), ""
	for _, id := range ids[len(ids)-3 : len(ids)-1] {
		got += string(s.Next(id))
	}
	if got += string(s.Rest()); got != replacement+replacement {
		t.Errorf("%q after a line feed", got)
	}
}
