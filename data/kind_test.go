package data

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
)

// compressed returns a text compressed with gzip and with zstd.
func compressed(t *testing.T, text string) (gz, zst string) {
	t.Helper()
	var a, b bytes.Buffer
	g := gzip.NewWriter(&a)
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []interface {
		Write([]byte) (int, error)
		Close() error
	}{g, z} {
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return a.String(), b.String()
}

// TestFilesAreNamed checks that files are identified, whichever key they are given to.
func TestFilesAreNamed(t *testing.T) {
	text := strings.Repeat("To be, or not to be: that is the question.\n", 30)
	gz, zst := compressed(t, text)
	var utf string
	for _, u := range utf16.Encode([]rune("Være eller ikke være " + text)) {
		utf += string([]byte{byte(u), byte(u >> 8)})
	}
	for _, c := range []struct{ name, content, text, tokens string }{
		{"a.txt", text, "", "is text, not token ids; give it as data.text"},
		{"kana.txt", strings.Repeat("日本語", 99), "", "is text, not token ids"},
		{"latin.txt", strings.Repeat("na\xefve caf\xe9 ", 20), "", ""},
		{"a.gz", gz, "compressed with gzip; unpack it: gzip -dc FILE > NEW", "compressed with gzip"},
		{"gz.txt", gz, "compressed with gzip", "compressed with gzip"},
		{"zst.txt", zst, "compressed with zstd", "compressed with zstd"},
		{"x.parquet", text, "", "is text"},
		{"ids.npy", "\x01\x00\x02\x00", "seems to be text in UTF-16: byte 1 is 0; convert it: iconv -f UTF-16LE -t UTF-8; token ids are given as data.tokens", ""},
		{"ids.gz", "\xff\xfe\x00\x00\x05\x00\x00\x00", "text in UTF-32", ""},
		{"be16.txt", "\x00t\x00e\x00x\x00t", "seems to be text in UTF-16: byte 0 is 0; convert it: iconv -f UTF-16BE", ""},
		{"parquet.txt", "PAR1\x15\x04\x15" + text + "PAR1", "a parquet file; give it as data.documents", "a parquet file"},
		{"lines.JSONL", text, "a file of JSON records, one per line", "a file of JSON records"},
		{"lines.txt", "{\"text\": \"to be\"}\n{\"text\": \"or not\"}\n", "a file of JSON records", "is text"},
		{"long.txt", "{\"text\": \"" + strings.Repeat("to be ", 9999) + "\"}\n{}", "a file of JSON records", "is text"},
		{"one.json", "{\n  \"name\": \"x\",\n  \"text\": \"to be, or not to be\"\n}\n", "", "is text"},
		{"array.bin", "\x93NUMPY\x01\x00v\x00{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", "a NumPy array", "a NumPy array; write only its elements: numpy.load(FILE).tofile(NEW), and give that as data.tokens, with data.dtype"},
		{"page.txt", "\n <!DOCTYPE HTML><html>" + text, "is an HTML page; extract its text first", "is text"},
		{"page2.txt", "\ufeff<html lang=en>" + text, "is an HTML page", "is text"},
		{"utf16.txt", "\xff\xfe" + utf, "text in UTF-16; convert it: iconv", ""},
		{"plain16.txt", utf, "seems to be text in UTF-16: byte 1 is 0", ""},
		{"lfs.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer", "a Git LFS pointer"},
		{"model.zip.txt", "PK\x03\x04\x14\x00" + text, "a zip archive", "a zip archive"},
		{"index.bin", "MMIDIDX\x00\x00\x01", "the index of a Megatron data set", "the index of a Megatron data set"},
		{"nul.txt", text + "\x00", "is a binary file, not text: byte 1290 is 0", ""},
		{"prog", "\x7fELF\x02\x01\x01", "a program", "a program"},
		{"bom.txt", "\ufeff" + text, "", "is text"},
	} {
		dir := tree(t, map[string]string{c.name: c.content})
		for key, want := range map[string]string{"text": c.text, "tokens": c.tokens} {
			err := checkKind(key, filepath.Join(dir, c.name))
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), filepath.Join(dir, c.name)+" "+want) && !strings.Contains(err.Error(), filepath.Join(dir, c.name)+" is "+want)) {
				t.Errorf("%s as %s: %v, want %q", c.name, key, err, want)
			}
		}
	}
}

// TestZerosAnywhere checks that zero bytes are found anywhere in a file, when it is read.
func TestZerosAnywhere(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": strings.Repeat("x", 3*headBytes) + "\x00" + "y", "b.txt": "text", "sub/c.gz": "\x1f\x8b\x08\x00"})
	for _, tok := range []string{"bytes", "gpt2"} {
		s := Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: tok, Context: 1}
		if _, err := s.Check(); err != nil {
			t.Error(err)
		}
		if _, err := Open(t.Context(), s); err == nil || !strings.Contains(err.Error(), "a.txt is a binary file, not text: byte 24576 is 0") {
			t.Errorf("%s: %v", tok, err)
		}
	}
	many := map[string]string{}
	for i := range 30 {
		many[fmt.Sprintf("%02d.txt", i)] = "\x00"
	}
	_, err := Source{Text: []string{"sub/*", "[0-9]*"}, Dir: dir + "x", Tokenizer: "bytes", Context: 1}.Check()
	if err == nil {
		t.Error("no files, no error")
	}
	dir = tree(t, many)
	_, err = Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 1}.Check()
	if got := problems(err); !slices.Equal(got, []string{"text[0]"}) || strings.Count(err.Error(), "is a binary file") != 8 || !strings.Contains(err.Error(), "and 22 more files") {
		t.Errorf("%v", err)
	}
}

// TestOneFileOnce checks that a file with several names is read once.
func TestOneFileOnce(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": "text a ", "b/b.txt": "text b "})
	t.Setenv("HOME", dir)
	for link, to := range map[string]string{"c.txt": "a.txt", "d.txt": "b/b.txt"} {
		if err := os.Symlink(filepath.Join(dir, to), filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a.txt"), filepath.Join(dir, "e.txt")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	set := open(t, Source{Text: []string{"a.txt", dir + "/a.txt", "./b/../a.txt", "*.txt", "${HOME}/b/*.txt", "**/*.txt"}, Tokenizer: "bytes", Context: 1})
	if got := string(Bytes{}.Decode(all(set))); got != "text a text b " || set.Files != 2 {
		t.Errorf("%d files: %q", set.Files, got)
	}
}

// TestSpelledSeparators checks that special tokens in a text are encoded as text, with a note.
func TestSpelledSeparators(t *testing.T) {
	spelledOut := strings.Repeat("word ", chunkBytes/5) + EndOfText + " and " + EndOfText
	dir := tree(t, map[string]string{"a.txt": spelledOut, "b.txt": EndOfText, "c.txt": "<|endoftext|"})
	set := open(t, Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: "gpt2", Context: 1})
	if want := []string{`the text contains "<|endoftext|>" 3 times; it is encoded as text, not as the token that ends a document`}; !slices.Equal(set.Notes, want) {
		t.Errorf("notes %q, want %q", set.Notes, want)
	}
	ends := 0
	for _, id := range all(set) {
		if id == 50256 {
			ends++
		}
	}
	if ends != 3 { // one a file
		t.Errorf("%d separators", ends)
	}
	if set := open(t, Source{Text: []string{"*.txt"}, Dir: dir, Tokenizer: "bytes", Context: 1}); set.Notes != nil {
		t.Errorf("notes %q", set.Notes)
	}
}

// TestFormat checks that the format of records is found by their outermost keys.
func TestFormat(t *testing.T) {
	for record, want := range map[string]string{
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}`: "chat",
		`{"conversations": [{"from": "human", "value": "a"}]}`:                         "chat",
		`{"instruction": "a", "output": "b"}`:                                          "chat",
		`{"prompt": "a", "completion": "b"}`:                                           "prompt",
		`{"text": "a"}`:                                                                "text",
		`{"other": "a"}`:                                                               "",
	} {
		dir := tree(t, map[string]string{"a.jsonl": record})
		if got := Format(filepath.Join(dir, "a.jsonl")); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
}
