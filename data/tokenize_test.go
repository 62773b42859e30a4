package data

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"zeroth/internal/input"
	"zeroth/tests/nightly"
)

// TestEncodeFiles checks that a token file has the same ids as training on the text, in the
// format that is read, and trains the same.
func TestEncodeFiles(t *testing.T) {
	nightly.Long(t)
	long := strings.Repeat("some text of several chunks\n", 2*chunkBytes/20)
	dir := tree(t, map[string]string{"a.txt": long, "b.txt": "<|endoftext|> end"})
	vocab, merges := written("t+h", EndOfText)
	vocab["far"] = 70000
	writeFolder(t, filepath.Join(dir, "wide"), mustJSON(t, vocab), merges)
	ownFolder(t, filepath.Join(dir, "own"), "llama3", map[string]string{"tokenizer_config.json": `{"eos_token": "<|eot_id|>"}`})
	t.Chdir(dir)
	for tokenizer, want := range map[string]struct {
		magic uint32
		width int
		notes int
	}{"bytes": {20240520, 2, 0}, "gpt2": {20240520, 2, 1}, "wide": {20240801, 4, 1}, "own": {20240520, 2, 0}} {
		out := tokenizer + ".bin"
		last := int64(0)
		done, err := Encoding{Text: []string{"*.txt"}, Tokenizer: tokenizer, Out: out, Progress: func(d, of int64) { last = d }}.Encode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(out)
		if err != nil || binary.LittleEndian.Uint32(raw) != want.magic || done.Width != want.width || len(done.Notes) != want.notes || done.Documents != 2 || last != done.Bytes {
			t.Errorf("%s: %+v, magic %d, %v", tokenizer, done, binary.LittleEndian.Uint32(raw), err)
		}
		text := open(t, Source{Text: []string{"*.txt"}, Tokenizer: tokenizer, Context: 4})
		tokens := open(t, Source{Tokens: []string{out}, Tokenizer: tokenizer, Context: 4})
		if !slices.Equal(all(text), all(tokens)) || done.Tokens != text.Tokens || done.Vocab != text.Vocab {
			t.Errorf("%s: %d tokens of %d, vocabulary %d", tokenizer, tokens.Tokens, text.Tokens, done.Vocab)
		}
		leftovers, _ := filepath.Glob(".zeroth-tmp-*")
		if len(leftovers) > 0 {
			t.Errorf("leftovers %v", leftovers)
		}
	}
}

// TestEncodeRefuses checks that all problems are reported at once and no file is created.
func TestEncodeRefuses(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": "text", "latin.txt": "\xe9", "there.bin": "x"})
	ownFolder(t, filepath.Join(dir, "own"), "llama3", nil)
	t.Chdir(dir)
	_, err := Encoding{Text: []string{"none.txt", "a.txt"}, Tokenizer: "nope", Out: "there.bin"}.Encode(t.Context())
	for _, want := range []string{`--tokenizer: "nope" is neither`, "no file matches none.txt", "there.bin exists; remove it"} {
		if err == nil || !strings.Contains(err.Error(), want) || !input.IsInput(err) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := (Encoding{Text: []string{"*.txt"}, Tokenizer: "own", Out: "new.bin"}).Encode(t.Context()); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "latin.txt: line 1, byte 0 is 0xe9") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := (Encoding{Text: []string{"a.txt"}, Tokenizer: "gpt2", Out: "new.bin"}).Encode(ctx); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	leftovers, _ := filepath.Glob("new*")
	if raw, _ := os.ReadFile("there.bin"); string(raw) != "x" || len(leftovers) > 0 {
		t.Errorf("leftovers %v, there.bin is %q", leftovers, raw)
	}
}

// A file that another process creates during encoding is not replaced.
func TestEncodeReplacesNothing(t *testing.T) {
	t.Chdir(tree(t, map[string]string{"a.txt": "text"}))
	other := sync.OnceFunc(func() { write(t, "new.bin", "other") })
	_, err := Encoding{Text: []string{"a.txt"}, Tokenizer: "bytes", Out: "new.bin", Progress: func(int64, int64) { other() }}.Encode(t.Context())
	other()
	if raw, _ := os.ReadFile("new.bin"); !input.IsInput(err) || string(raw) != "other" {
		t.Errorf("%v, new.bin is %q", err, raw)
	}
}

// TestEncodeRecords checks that the ids of records equal those of the same texts in files,
// however the records are compressed. Broken records are all reported, and then no file is
// created.
func TestEncodeRecords(t *testing.T) {
	texts := []string{"to be", "or not", "to be: <|endoftext|>", strings.Repeat("that is ", 9000)}
	var lines []any
	files := map[string]string{}
	for i, x := range texts {
		lines = append(lines, map[string]any{"text": x, "id": i})
		files[fmt.Sprintf("t%d.txt", i)] = x
	}
	files["a.jsonl"] = records(t, lines[:2]...)
	files["b.jsonl.gz"] = gzipped(records(t, lines[2:]...))
	files["chat.jsonl"] = records(t, map[string]any{"talk": []any{map[string]any{"role": "user", "content": "a"}, map[string]any{"role": "assistant", "content": "b"}}})
	files["pairs.jsonl"] = records(t, map[string]any{"q": "to", "completion": " be"})
	files["bad.jsonl"] = "{\"text\": \"a\"}\n{\"text\": 1}\n\n{\n"
	dir := tree(t, files)
	ownFolder(t, filepath.Join(dir, "own"), "llama3", map[string]string{"tokenizer_config.json": `{"eos_token": "<|eot_id|>"}`, "chat_template.jinja": "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"})
	t.Chdir(dir)
	encode := func(e Encoding) (Encoded, []byte) {
		t.Helper()
		e.Out = fmt.Sprintf("%s%d.bin", e.Format, len(e.Text))
		defer os.Remove(e.Out)
		done, err := e.Encode(t.Context())
		raw, wrong := os.ReadFile(e.Out)
		if err := errors.Join(err, wrong); err != nil {
			t.Fatal(err)
		}
		return done, raw
	}
	for _, tokenizer := range []string{"bytes", "gpt2", "own"} {
		_, want := encode(Encoding{Text: []string{"t*.txt"}, Tokenizer: tokenizer})
		last := int64(0)
		done, got := encode(Encoding{Text: []string{"a.jsonl", "b.jsonl.gz"}, Format: "text", Tokenizer: tokenizer, Progress: func(d, of int64) { last = d }})
		if !bytes.Equal(got, want) || done.Documents != len(texts) || last != done.Bytes || !slices.Equal(done.Notes, []string{`in the records, but not used: "id" (from a.jsonl:1 on)`}) {
			t.Errorf("%s: %+v, %d bytes, of text %d", tokenizer, done, len(got), len(want))
		}
	}
	for format, e := range map[string]Encoding{"prompt": {Text: []string{"pairs.jsonl"}, Keys: map[string]string{"prompt": "q"}, Tokenizer: "gpt2"},
		"chat": {Text: []string{"chat.jsonl"}, Keys: map[string]string{"messages": "talk"}, Tokenizer: "own"}} {
		e.Format = format
		done, raw := encode(e)
		s := open(t, Source{Documents: Documents{Files: e.Text, Format: format, Keys: e.Keys}, Tokenizer: e.Tokenizer, Context: 64})
		if done.Tokens != s.Tokens || len(raw) != headerBytes+2*int(s.Tokens) || len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "are not meant to be learned") {
			t.Errorf("%s: %+v, of documents %d tokens", format, done, s.Tokens)
		}
	}
	for want, e := range map[string]Encoding{
		"bad.jsonl:2: \"text\" is a number, not a string\nbad.jsonl:4: ": {Format: "text", Text: []string{"*.jsonl"}, Keys: map[string]string{"text": "text"}},
		`--format "json"; want text, prompt or chat`:                     {Format: "json", Text: []string{"a.jsonl"}},
		"--key messages: records of the format text have no such key":    {Format: "text", Text: []string{"a.jsonl"}, Keys: map[string]string{"messages": "m"}},
		"--key applies to records":                                       {Text: []string{"t0.txt"}, Keys: map[string]string{"text": "m"}},
		"--format chat: the tokenizer has no chat template":              {Format: "chat", Text: []string{"chat.jsonl"}},
		"zeroth tokenize: with --format":                                 {Text: []string{"a.jsonl"}},
	} {
		e.Tokenizer, e.Out = "gpt2", "no.bin"
		if _, err := e.Encode(t.Context()); err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if leftovers, _ := filepath.Glob("no.bin*"); len(leftovers) > 0 {
		t.Errorf("leftovers %v", leftovers)
	}
}

// gzipped compresses a text with gzip.
func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // writing to memory cannot fail
	_ = z.Close()
	return b.String()
}
