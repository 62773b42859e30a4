package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// base returns a byte-level tokenizer with changes, each a path of keys and a value in JSON; an
// empty value removes the key.
func base(t testing.TB, changes ...string) []byte {
	t.Helper()
	vocab := map[string]any{}
	for b, r := range Alphabet {
		vocab[string(r)] = b
	}
	vocab["th"] = 256
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "added_tokens": []any{},
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": nil, "decoder": map[string]any{"type": "ByteLevel", "add_prefix_space": true},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "vocab": vocab, "merges": []any{"t h"}},
	}
	for ; len(changes) > 0; changes = changes[2:] {
		keys, in := strings.Split(changes[0], "."), file
		for _, k := range keys[:len(keys)-1] {
			in = in[k].(map[string]any)
		}
		last := keys[len(keys)-1]
		if changes[1] == "" {
			delete(in, last)
			continue
		}
		in[last] = json.RawMessage(changes[1])
	}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestRefused checks that errors name unsupported parts and their position.
func TestRefused(t *testing.T) {
	added := func(more string) string {
		return `[{"id": 257, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true` + more + `}]`
	}
	for _, c := range []struct{ key, value, want string }{
		{"version", `"1.0"`, ""},
		{"version", `"2.0"`, `the version is "2.0"; want "1.0"`},
		{"truncation", `{"max_length": 5}`, ""},
		{"surprise", `1`, `"surprise": unknown key; want added_tokens, decoder, model, `},
		{"model", ``, "no model"},
		{"model.type", `"WordPiece"`, `model: type "WordPiece" is not supported; only BPE and Unigram are`},
		{"model.type", `"WordPiece"`, `type "WordPiece" is not supported`},
		{"model.unk_id", `0`, "model: scores and unk_id are not valid for BPE"},
		{"model.dropout", `0.1`, "model: dropout 0.1 is not supported"},
		{"model.dropout", `0.0`, ""},
		{"model.end_of_word_suffix", `"</w>"`, "marking parts of words"},
		{"model.continuing_subword_prefix", `"##"`, "marking parts of words"},
		{"model.byte_fallback", `true`, "byte_fallback with a byte-level vocabulary"},
		{"model.more", `1`, `model."more": unknown key`},
		{"model.vocab", `{}`, "no vocabulary"},
		{"model.vocab", `{"a": 0}`, "is not in the vocabulary"},
		{"model.vocab", `{"t": 0, "h": 1, "th": 2}`, "no token for the byte 0x00"},
		{"model.vocab", `{"t": 0, "h": 0, "th": 2}`, `id 0 is given to "h" and to "t"`},
		{"model.vocab", `{"t": 0, "t": 1}`, `model.vocab: duplicate key "t"`},
		{"model.vocab", `{"t": 1048576}`, "1048576 where a number from 0 to 1048575 is expected"},
		{"model.vocab", `{"": 1}`, "id 1 is an empty token"},
		{"model.vocab", `{"` + strings.Repeat("x", 1025) + `": 1}`, "longer than 1024 bytes"},
		{"model.merges", `["t h h"]`, `"t h h" is not two tokens`},
		{"model.merges", `[["t"]]`, "a merge of 1 tokens"},
		{"model.merges", `[["t", "h", "h"]]`, "a merge of more than two tokens"},
		{"model.merges", `[["h", "t"]]`, `the merge of "h" and "t": "ht" is not in the vocabulary`},
		{"model.merges", `[["t", "h"]]`, ""},
		{"normalizer", `{"type": "Nmt"}`, `normalizer: type "Nmt" is not supported`},
		{"normalizer", `{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}`, `normalizer.normalizers[1]: type "Nmt" is not supported`},
		{"normalizer", `{"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}`, "replacing by a regular expression"},
		{"normalizer", `{"type": "Replace", "pattern": {"String": ""}, "content": ""}`, "replacing an empty text"},
		{"normalizer", `{"type": "NFC", "form": 1}`, `unknown key "form" of NFC`},
		{"normalizer", `5`, "normalizer is a number, not an object"},
		{"pre_tokenizer", `{"type": "Whitespace"}`, `type "Whitespace" is not supported`},
		{"pre_tokenizer", `{"type": "Digits", "individual_digits": false}`, "individual_digits: false at this place is not supported"},
		{"pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false}`, `the regular expression "\\w+"`},
		{"pre_tokenizer", `{"type": "Split", "pattern": {"String": "x"}, "behavior": "Isolated", "invert": false}`, `splitting at "x"`},
		{"pre_tokenizer", `{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits", "individual_digits": true}]}`, "pre_tokenizer.pretokenizers[1]: individual_digits: true at this place"},
		{"pre_tokenizer", `{"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "▁"}, {"type": "ByteLevel"}]}`, "Metaspace combined with other steps"},
		{"pre_tokenizer", `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"}`, `the scheme "last"`},
		{"pre_tokenizer", `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "add_prefix_space": false}`, "add_prefix_space is false"},
		{"pre_tokenizer", `{"type": "ByteLevel", "add_prefix_space": 1}`, "add_prefix_space is a number"},
		{"pre_tokenizer", `null`, "no token <0x00> and no unk_token"},
		{"post_processor", `{"type": "RobertaProcessing"}`, `type "RobertaProcessing" is not supported`},
		{"post_processor", `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {}}`, `special_tokens has no "<x>"`},
		{"post_processor", `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<x>": {"ids": [999]}}}`, "the unknown id \"999\""},
		{"post_processor", `{"type": "TemplateProcessing", "single": []}`, "has the text 0 times"},
		{"decoder", `{"type": "WordPiece"}`, `type "WordPiece" is not supported`},
		{"decoder", `{"type": "Strip", "content": " ", "start": -1, "stop": 0}`, "decoder.start is not a number from 0 to 1024"},
		{"added_tokens", added(""), ""},
		{"added_tokens", added(`, "x": 1`), `added_tokens."x": unknown key`},
		{"added_tokens", strings.Replace(added(""), "257", "300", 1), `"<x>" has id 300, but the reference gives it id 257`},
		{"added_tokens", strings.Replace(added(""), "<x>", "", 1), "id 257 is an empty token"},
		{"added_tokens", "[" + strings.Trim(added(""), "[]") + "," + strings.Trim(added(""), "[]") + "]", `duplicate token "<x>"`},
	} {
		_, err := Parse(base(t, c.key, c.value))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %.100s: %v, want %s", c.key, c.value, err, c.want)
		}
	}
}

// TestOddities covers cases in which randomly generated tokenizers differed from the reference;
// the expected ids and texts are the reference's.
func TestOddities(t *testing.T) {
	token := func(id int, content, more string) string {
		flags := map[string]any{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}
		for _, flag := range strings.Fields(more) {
			flags[flag] = true
		}
		text, err := json.Marshal(flags)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	characters := func(fuse bool) []string {
		return []string{"pre_tokenizer", "null", "decoder", "null", "model", fmt.Sprintf(`{"type": "BPE", "dropout": null, "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": %v,
			"vocab": {"a": 0, "<unk>": 1, "<0xC3>": 2, "<0xA9>": 3, "b": 4}, "merges": []}`, fuse)}
	}
	stripped := []string{"added_tokens", "[" + token(257, "\n", "lstrip rstrip") + "," + token(258, "[R]", "rstrip") + "]"}
	normalized := []string{"normalizer", `{"type": "Replace", "pattern": {"String": "x"}, "content": "y"}`,
		"added_tokens", "[" + token(257, "<x>", "special normalized") + "," + token(258, "<z>", "special normalized") + "]"}
	respaced := []string{"normalizer", `{"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "Replace", "pattern": {"String": "e"}, "content": " "}]}`,
		"pre_tokenizer", `{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}`, "decoder", "null",
		"model", `{"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, " ": 2, " a": 3, "▁": 4}, "merges": [[" ", "a"]]}`}
	scored := func(pieces string) []string {
		return []string{"pre_tokenizer", "null", "decoder", "null", "model", `{"type": "Unigram", "unk_id": 0, "ignore_merges": true, "vocab": [["<unk>", 20], ` + pieces + `]}`}
	}
	for _, c := range []struct {
		changes []string
		text    string
		want    []uint32
	}{
		{respaced, "aea a", []uint32{1, 2, 1, 4, 1}},
		{scored(`["a", -1], ["b", -1], ["ab", -3]`), "ab", []uint32{1, 2}},
		{scored(`["b", 50], ["ab", 55]`), "ab", []uint32{0, 1}},
		{stripped, "a\n\n\nb [R]\n c", []uint32{97, 257, 98, 32, 258, 99}},
		{normalized, "a<x><y>", []uint32{97, 257, 257}},
		{characters(false), "a!éb??éé!!", []uint32{0, 2, 3, 1, 4, 1, 2, 3, 2, 3, 1, 1, 1}},
		{characters(true), "a!éb??éé!!", []uint32{0, 2, 3, 1, 4, 2, 3, 2, 3, 1}},
	} {
		tok, err := Parse(base(t, c.changes...))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode([]byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
	}
	for _, replace := range []string{`{"String": "_"}, "content": ""`, `{"String": "ab"}, "content": "cd"`} {
		removing := base(t, "normalizer", `{"type": "Replace", "pattern": `+replace+`}`, "pre_tokenizer", `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}`)
		if _, err := Parse(removing); err == nil || !strings.Contains(err.Error(), "marking the first piece of a text whose first character the normalizer may remove") {
			t.Errorf("%s: %v", replace, err)
		}
	}
	for _, c := range []struct {
		changes []string
		ids     []int32
		want    string
	}{
		{[]string{"decoder", `{"type": "Sequence", "decoders": []}`}, []int32{97, 256, 98}, "athb"},
		{[]string{"decoder", "null"}, []int32{97, 256, 98}, "a th b"},
		{normalized, []int32{97, 257, 258, 98}, "a<y>b"},
	} {
		tok, err := Parse(base(t, c.changes...))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Decode(c.ids, true); got != c.want {
			t.Errorf("%v: %q, want %q", c.ids, got, c.want)
		}
	}
}

// TestUnusualText checks that any bytes are encoded, and fast enough.
func TestUnusualText(t *testing.T) {
	tok, err := Parse(base(t, "normalizer", `{"type": "NFC"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"\xff\xfeth", "e\u0301\xff\u0301", strings.Repeat("\u0301", 1<<16), strings.Repeat("x", 1<<20), strings.Repeat(" ", 1<<20)} {
		if got := tok.Decode(signed(tok.Encode([]byte(text))), false); len(got) == 0 {
			t.Errorf("%.20q: no ids", text)
		}
	}
	if got := fmt.Sprint(tok.Encode([]byte("th\xff"))); got != "[256 255]" {
		t.Errorf("%s", got)
	}
	for _, id := range []int32{-1, 257, 1 << 30} {
		if got := tok.Decode([]int32{id}, false); got != "" {
			t.Errorf("id %d is %q", id, got)
		}
	}
}

// FuzzParse checks that no file panics, and that a parsed tokenizer encodes text.
func FuzzParse(f *testing.F) {
	f.Add(string(base(f)), "the text")
	f.Add(string(gunzip(f, "testdata/llama2odd.json.gz")), " [L] x")
	f.Add(string(gunzip(f, "testdata/qwen.json.gz")), "e\u0301")
	f.Fuzz(func(t *testing.T, file, text string) {
		tok, err := Parse([]byte(file))
		if err != nil {
			return
		}
		for _, id := range tok.Encode([]byte(text)) {
			if int(id) >= tok.Vocab() {
				t.Fatalf("id %d of %d", id, tok.Vocab())
			}
		}
	})
}
