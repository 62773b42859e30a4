package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/data/tokenizer"
	"zeroth/tests/nightly"
)

// writeTokenizer writes a tokenizer's files to a folder that it creates.
func writeTokenizer(dir, kind string, t Tokenizer) error {
	err := os.MkdirAll(dir, 0o777)
	for _, f := range RecordTokenizer(kind, t) {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, f.Name), f.Text, 0o666))
	}
	return err
}

// TestGPT2IsOpenAIs checks that the files written for the built-in vocabulary are OpenAI's, by
// the checksums in tiktoken_ext/openai_public.py.
func TestGPT2IsOpenAIs(t *testing.T) {
	dir := t.TempDir()
	if err := writeTokenizer(dir, "gpt2", gpt2()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
		"merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if sum := sha256.Sum256(text); err != nil || hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: %d bytes with the sum %x, %v", name, len(text), sum, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		t.Fatal(err)
	}
	tok, err := NewTokenizer(dir) // known by its tokens
	if err != nil {
		t.Fatal(err)
	}
	if !SameTokenizer(tok, gpt2()) || tok.Vocab() != 50257 || tok.Separator() != 50256 {
		t.Errorf("vocabulary %d, separator %d", tok.Vocab(), tok.Separator())
	}
	for _, text := range slices.Concat(nasty, broken) {
		if got, want := tok.Encode([]byte(text)), gpt2().Encode([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// written returns a vocabulary of the bytes and additional tokens, each with its merge.
func written(tokens ...string) (vocab map[string]int, merges string) {
	vocab = map[string]int{}
	for b, r := range tokenizer.Alphabet {
		vocab[string(r)] = b
	}
	for i, s := range tokens {
		vocab[strings.ReplaceAll(s, "+", "")] = 256 + i
		if left, right, ok := strings.Cut(s, "+"); ok {
			merges += left + " " + right + "\n"
		}
	}
	return vocab, merges
}

func mustJSON(t *testing.T, x any) string {
	t.Helper()
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTokenizersAreWritten reads back the files it writes.
func TestTokenizersAreWritten(t *testing.T) {
	nightly.Long(t)
	folder := t.TempDir()
	vocab, merges := written("t+h", "th+e", "Ġ+the", "é+a", "</s>", "<end of text>", "日本")
	vocab["far"] = 1000
	write(t, filepath.Join(folder, "vocab.json"), mustJSON(t, vocab))
	write(t, filepath.Join(folder, "merges.txt"), merges)
	for eos, id := range map[string]int32{"</s>": 260, "<end of text>": 261, "é": 0xe9, "日本": 262} {
		write(t, filepath.Join(folder, "tokenizer_config.json"), mustJSON(t, map[string]any{"tokenizer_class": "GPT2TokenizerFast", "eos_token": map[string]any{"content": eos, "lstrip": false}}))
		custom, err := NewTokenizer(folder)
		if err != nil {
			t.Fatal(err)
		}
		if custom.Separator() != id {
			t.Errorf("separator %d, want %d", custom.Separator(), id)
		}
		for kind, want := range map[string]Tokenizer{"bytes": Bytes{}, "gpt2": gpt2(), "files": custom} {
			dir := filepath.Join(t.TempDir(), "new", "folder")
			if err := writeTokenizer(dir, kind, want); err != nil {
				t.Fatal(err)
			}
			got, err := NewTokenizer(dir)
			if err != nil {
				t.Fatal(err)
			}
			if !SameTokenizer(got, want) || got.Vocab() != want.Vocab() || got.Separator() != want.Separator() {
				t.Errorf("%s: %d tokens and separator %d, want %d and %d", kind, got.Vocab(), got.Separator(), want.Vocab(), want.Separator())
			}
			for _, text := range slices.Concat(nasty, broken, []string{" the théa 日本"}) {
				ids := got.Encode([]byte(text))
				if want := want.Encode([]byte(text)); !slices.Equal(ids, want) || string(got.Decode(ids)) != text {
					t.Errorf("%s: %q: %v, want %v", kind, text, ids, want)
				}
			}
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	vocab, merges := written("t+h", "h+e")
	folder := t.TempDir()
	writeFolder(t, folder, mustJSON(t, vocab), merges)
	tok, err := NewTokenizer(folder)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string][2]string{
		"vocab.json": {`"th": 256, "he": 257`, `"th": 257, "he": 256`},
		"merges.txt": {"t h\nh e", "h e\nt h"},
	} {
		dir := t.TempDir()
		if err := writeTokenizer(dir, "files", tok); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Contains(text, []byte(damage[0])) {
			t.Fatalf("%s: %s, %v", name, text, err)
		}
		write(t, filepath.Join(dir, name), strings.Replace(string(text), damage[0], damage[1], 1))
		if _, err := NewTokenizer(dir); err == nil || !strings.Contains(err.Error(), "was changed") {
			t.Errorf("%s damaged: %v", name, err)
		}
	}
	if SameTokenizer(Bytes{}, tok) || SameTokenizer(gpt2(), tok) {
		t.Error("different tokenizers are considered the same")
	}
}

// whole returns a tokenizer.json of GPT-2's kind with changes, each a path of keys and a value.
func whole(t *testing.T, vocab map[string]int, merges any, changes ...any) string {
	t.Helper()
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil,
		"added_tokens":   []any{map[string]any{"id": 257, "content": EndOfText, "special": true, "normalized": true}},
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
		"decoder":        map[string]any{"type": "ByteLevel", "add_prefix_space": true},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": "",
			"fuse_unk": false, "vocab": vocab, "merges": merges},
	}
	for ; len(changes) > 0; changes = changes[2:] {
		keys, in := strings.Split(changes[0].(string), "."), file
		for _, k := range keys[:len(keys)-1] {
			in = in[k].(map[string]any)
		}
		in[keys[len(keys)-1]] = changes[1]
	}
	return mustJSON(t, file)
}

// TestRecognizedTokenizers checks that folders are read if their tokenizer is known to be
// GPT-2's kind, and refused otherwise.
func TestRecognizedTokenizers(t *testing.T) {
	vocab, merges := written("t+h", EndOfText, "[PAD]")
	base := maps.Clone(vocab)
	delete(base, EndOfText)
	delete(base, "[PAD]")
	two := []any{map[string]any{"id": 257, "content": EndOfText, "special": true}, map[string]any{"id": 258, "content": "[PAD]", "special": true}}
	pairs, lines := [][]string{{"t", "h"}}, []string{"t h"}
	other := maps.Clone(vocab)
	other["th"], other["[PAD]"] = 258, 256
	swapped := maps.Clone(vocab)
	swapped["ht"] = 259
	class := `{"tokenizer_class": "GPT2Tokenizer"}`
	split := map[string]any{"type": "Sequence", "pretokenizers": []any{map[string]any{"type": "Digits"}}}
	type files map[string]string
	for name, c := range map[string]struct {
		files files
		fails bool
	}{
		"class":        {files{"tokenizer_config.json": class}, false},
		"fast class":   {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": false, "auto_map": null, "pad_token": "[PAD]", "model_max_length": 1e30}`}, false},
		"whole":        {files{"tokenizer.json": whole(t, vocab, pairs)}, false},
		"old whole":    {files{"tokenizer.json": whole(t, base, lines, "added_tokens", two, "model.type", "", "pre_tokenizer", map[string]any{"type": "ByteLevel", "add_prefix_space": false})}, false},
		"v5":           {files{"tokenizer.json": whole(t, vocab, pairs), "tokenizer_config.json": `{"tokenizer_class": "TokenizersBackend"}`}, false},
		"both":         {files{"tokenizer.json": whole(t, vocab, pairs), "tokenizer_config.json": class}, false},
		"added":        {files{"tokenizer_config.json": class, "added_tokens.json": `{"[PAD]": 258}`, "special_tokens_map.json": `{"pad_token": {"content": "[PAD]"}, "eos_token": "<|endoftext|>", "additional_special_tokens": ["[PAD]"]}`}, false},
		"decoder":      {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"258": {"content": "[PAD]", "special": true}}}`}, false},
		"nothing":      {files{}, true},
		"generic":      {files{"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`}, true},
		"Qwen2":        {files{"tokenizer_config.json": `{"tokenizer_class": "Qwen2Tokenizer"}`}, true},
		"whole Qwen2":  {files{"tokenizer_config.json": `{"tokenizer_class": "Qwen2Tokenizer"}`, "tokenizer.json": whole(t, vocab, pairs)}, true},
		"prefix space": {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}`}, true},
		"bos":          {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true}`}, true},
		"eos":          {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "add_eos_token": true}`}, true},
		"code":         {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["x.Y", null]}}`}, true},
		"new pad":      {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>"}`}, true},
		"map":          {files{"tokenizer_config.json": class, "special_tokens_map.json": `{"mask_token": {"content": "<mask>"}}`}, true},
		"new word":     {files{"tokenizer_config.json": class, "added_tokens.json": `{"<new>": 259}`}, true},
		"other id":     {files{"tokenizer_config.json": class, "added_tokens.json": `{"[PAD]": 3}`}, true},
		"a word":       {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"256": {"content": "th", "special": false}}}`}, true},
		"no JSON":      {files{"tokenizer_config.json": `{"tokenizer_class": 5}`}, true},
		"no record":    {files{"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer", "zeroth": {"sha256": "x"}}`}, true},

		"normalizer":  {files{"tokenizer.json": whole(t, vocab, pairs, "normalizer", map[string]any{"type": "Nmt"})}, true},
		"digits":      {files{"tokenizer_config.json": class, "tokenizer.json": whole(t, vocab, pairs, "pre_tokenizer", split)}, true},
		"no cut":      {files{"tokenizer.json": whole(t, vocab, pairs, "pre_tokenizer", nil)}, true},
		"no template": {files{"tokenizer.json": whole(t, vocab, pairs, "post_processor", map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"Sequence": map[string]any{"id": "A"}}}})}, false},
		"template":    {files{"tokenizer.json": whole(t, vocab, pairs, "post_processor", map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": EndOfText}}}})}, true},
		"unigram":     {files{"tokenizer.json": whole(t, vocab, pairs, "model.type", "Unigram")}, true},
		"dropout":     {files{"tokenizer.json": whole(t, vocab, pairs, "model.dropout", 0.1)}, true},
		"suffix":      {files{"tokenizer.json": whole(t, vocab, pairs, "model.end_of_word_suffix", "</w>")}, true},
		"other ids":   {files{"tokenizer.json": whole(t, other, pairs)}, true},
		"more tokens": {files{"tokenizer.json": whole(t, func() map[string]int { m := maps.Clone(vocab); m["more"] = 259; return m }(), pairs)}, true},
		"no merges":   {files{"tokenizer.json": whole(t, vocab, [][]string{})}, true},
		"other merge": {files{"tokenizer.json": whole(t, swapped, [][]string{{"h", "t"}})}, true},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "vocab.json"), mustJSON(t, vocab))
		write(t, filepath.Join(dir, "merges.txt"), merges)
		for name, text := range c.files {
			write(t, filepath.Join(dir, name), text)
		}
		tok, err := NewTokenizer(dir)
		if said.Fails(t, name, err, c.fails); err == nil && (tok.Separator() != 257 || !slices.Equal(tok.Encode([]byte("th<|")), []int32{256, '<', '|'})) {
			t.Errorf("%s: separator %d, th<| is %v", name, tok.Separator(), tok.Encode([]byte("th<|")))
		}
	}
}

// TestTokenizerJSONAlone covers transformers 5, which writes no vocab.json and merges.txt.
func TestTokenizerJSONAlone(t *testing.T) {
	vocab, _ := written("t+h", EndOfText, "[PAD]")
	base := maps.Clone(vocab)
	delete(base, EndOfText)
	delete(base, "[PAD]")
	two := []any{map[string]any{"id": 257, "content": EndOfText, "special": true}, map[string]any{"id": 258, "content": "[PAD]", "special": true}}
	lines := []string{"t h"}
	for name, c := range map[string]struct {
		file, class string
		fails       bool
	}{
		"whole":       {whole(t, vocab, lines), "GPT2Tokenizer", false},
		"added":       {whole(t, base, lines, "added_tokens", two), "GPT2Tokenizer", false},
		"Llama":       {whole(t, vocab, lines), "LlamaTokenizer", false},
		"unigram":     {whole(t, nil, nil, "model", map[string]any{"type": "Unigram", "vocab": []any{[]any{"a", -1.5}}}), "LlamaTokenizer", true},
		"no tokens":   {whole(t, nil, lines), "", true},
		"other added": {whole(t, vocab, lines, "added_tokens", []any{map[string]any{"id": 3, "content": "[PAD]", "special": true}}), "", true},
		"no merge":    {whole(t, vocab, []string{"t x"}), "", true},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "tokenizer.json"), c.file)
		write(t, filepath.Join(dir, "tokenizer_config.json"), `{"tokenizer_class": "`+c.class+`"}`)
		tok, err := NewTokenizer(dir)
		if said.Fails(t, name, err, c.fails); err == nil && (tok.Separator() != 257 || !slices.Equal(tok.Encode([]byte("th<|")), []int32{256, '<', '|'})) {
			t.Errorf("%s: %v", name, tok)
		}
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tokenizer.json"), "{}")
	write(t, filepath.Join(dir, "tokenizer_config.json"), "{}")
	if got := TokenizerFiles(dir); !slices.Equal(got, []string{"tokenizer.json", "tokenizer_config.json"}) || TokenizerFiles(t.TempDir()) != nil {
		t.Errorf("files %v", got)
	}
}

// TestVocabularyLimits checks that invalid vocabularies are refused before memory is
// allocated for them.
func TestVocabularyLimits(t *testing.T) {
	good, _ := written()
	with := func(more string) string { return strings.TrimSuffix(mustJSON(t, good), "}") + more + "}" }
	for i, c := range []struct {
		vocab, merges string
		fails         bool
	}{
		{with(`, "a": 7`), "", true},
		{with(`, "": 300`), "", true},
		{with(`, "` + strings.Repeat("x", maxToken+1) + `": 300`), "", true},
		{with(`, "` + strings.Repeat("x", maxToken) + `": 300`), "", false},
		{with(`, "` + strings.Repeat("Ġ", maxToken) + `": 300`), "", false},
		{with(`, "far": 1048576`), "", true},
		{with(`, "far": 1048575`), "", false},
		{with(`, "far": 18446744073709551617`), "", true},
		{with(`, "far": 1.0`), "", true},
		{with(`, "far": "5"`), "", true},
		{with(`, "far": [[[[`), "", true},
		{with(`, "\ud800": 300`), "", true},
		{with(`, "日本": 300, "æĹ¥æľ¬": 301`), "", true},
		{with("") + "x", "", true},
		{with("") + "{}", "", true},
		{"[]", "", true},
		{"", "", true},
		{"\xff{}", "", true},
		{strings.Repeat("[", 1<<20), "", true},
		{with(""), strings.Repeat("x", 1<<20), true},
	} {
		dir := t.TempDir()
		writeFolder(t, dir, c.vocab, c.merges)
		_, err := NewTokenizer(dir)
		said.Fails(t, fmt.Sprint(i), err, c.fails)
	}
	for _, name := range []string{"vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json"} {
		dir := t.TempDir()
		writeFolder(t, dir, mustJSON(t, good), "")
		path := filepath.Join(dir, name)
		write(t, path, "")
		if err := os.Truncate(path, maxVocabFile+1); err != nil {
			t.Fatal(err)
		}
		if _, err := NewTokenizer(dir); err == nil || !strings.Contains(err.Error(), name+": it is larger than the limit of 67108864 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzVocabulary checks that any files are either refused or give a tokenizer that round-trips
// text, and that writing and reading it again gives the same tokenizer.
func FuzzVocabulary(f *testing.F) {
	vocab, merges := written("t+h", "th+e", EndOfText, "<日 本>")
	good, err := json.Marshal(vocab)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, []byte(merges))
	f.Add(bytes.Replace(good, []byte(`"th":256`), []byte(`"th":70000`), 1), []byte("#version: 0.2\r\nt h\r\n\r\nth e"))
	f.Add([]byte(`{"a": 1, "a": 2}`), []byte("a  b"))
	f.Fuzz(func(t *testing.T, vocab, merges []byte) {
		v, _, err := parseVocabulary(vocab, merges)
		if err != nil {
			return
		}
		for _, text := range append(broken, "the theory", string(vocab), string(merges)) {
			ids := v.Encode([]byte(text))
			for _, id := range ids {
				if id < 0 || int(id) >= v.Vocab() {
					t.Fatalf("%q has id %d of %d", text, id, v.Vocab())
				}
			}
			if got := string(v.Decode(ids)); got != text {
				t.Fatalf("%q decodes to %q", text, got)
			}
		}
		again, _, err := parseVocabulary(v.vocabJSON(), v.mergesTXT())
		if err != nil || fmt.Sprint(again.tokens) != fmt.Sprint(v.tokens) || !slices.Equal(again.order, v.order) {
			t.Fatalf("read again: %v", err)
		}
	})
}

// FuzzDescription checks that any other files, and any tokenizer.json, are read or refused
// without a panic.
func FuzzDescription(f *testing.F) {
	vocab, merges := written("t+h", EndOfText)
	good, err := json.Marshal(vocab)
	if err != nil {
		f.Fatal(err)
	}
	names := []string{"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json"}
	f.Add(uint8(0), []byte(`{"tokenizer_class": "GPT2Tokenizer", "eos_token": {"content": "th"}, "added_tokens_decoder": {"1": {"content": "x"}}}`))
	f.Add(uint8(1), []byte(`{"additional_special_tokens": ["th", null, {"content": "x"}]}`))
	f.Add(uint8(2), []byte(`{"th": 256}`))
	f.Add(uint8(4), fmt.Appendf(nil, `{"added_tokens": [{"id": 300, "content": "<a>", "special": true}], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"vocab": %s, "merges": ["t h"]}}`, good))
	f.Add(uint8(3), []byte(`{"model": {"vocab": {"a": 1}, "merges": [["a", "b"], "t h"]}, "pre_tokenizer": {"type": "ByteLevel"}}`))
	dir, alone := f.TempDir(), f.TempDir()
	for name, text := range map[string][]byte{"vocab.json": good, "merges.txt": []byte(merges)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		folder, name := alone, "tokenizer.json"
		if n := int(which) % (len(names) + 1); n < len(names) {
			folder, name = dir, names[n]
		}
		path := filepath.Join(folder, name)
		write(t, path, string(text))
		defer os.Remove(path)
		if v, err := readFolder(folder); err == nil && (v.Separator() < -1 || int(v.Separator()) >= v.Vocab()) {
			t.Fatalf("separator %d of %d", v.Separator(), v.Vocab())
		}
	})
}
