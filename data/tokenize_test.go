package data

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/input"
)

// TestEncodeFiles: a token file has the ids that text is trained on, in the format
// that is read, and is trained on as the text is.
func TestEncodeFiles(t *testing.T) {
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
		left, _ := filepath.Glob("*.tmp-*")
		if len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
}

// TestEncodeRefuses: all that is wrong at once, and no file then.
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
	left, _ := filepath.Glob("new*")
	if raw, _ := os.ReadFile("there.bin"); string(raw) != "x" || len(left) > 0 {
		t.Errorf("left %v, there.bin is %q", left, raw)
	}
}
