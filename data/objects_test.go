package data

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"zeroth/internal/input/s3/s3test"
)

// TestObjects checks that files in object storage give the same data as on disk, in the same order,
// and are fetched once.
func TestObjects(t *testing.T) {
	server := s3test.Serve(t)
	packed := func(text string) string {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(w.EncodeAll([]byte(text), nil))
	}
	files := map[string]string{"b.jsonl.zst": packed(records(t, map[string]any{"text": "second document"})), "deep/a.jsonl.zst": packed(records(t, map[string]any{"text": "third"})),
		"a.jsonl.zst": packed(records(t, map[string]any{"text": "the first"})), "other.txt": "words"}
	dir := tree(t, files)
	for name, text := range files {
		server.Put(t, "corpus/"+name, []byte(text))
	}
	for _, pattern := range []string{"*.jsonl.zst", "**/*.jsonl.zst", "b.jsonl.zst"} {
		source := Source{Documents: Documents{Format: "text", Files: []string{pattern}}, Dir: dir, Tokenizer: "bytes", Context: 16}
		want := open(t, source)
		source.Documents.Files = []string{"s3://runs/corpus/" + pattern}
		if got := open(t, source); got.Fingerprint != want.Fingerprint || got.Files != want.Files {
			t.Errorf("%s: %d files, fingerprint %s, want %d, %s", pattern, got.Files, got.Fingerprint, want.Files, want.Fingerprint)
		}
	}
	if gets := slices.DeleteFunc(server.Seen(), func(s string) bool { return !strings.HasPrefix(s, "GET /runs/corpus/") }); len(gets) != 3 {
		t.Errorf("%q", gets)
	}
	open(t, Source{Text: []string{"s3://runs/corpus/other.txt"}, Tokenizer: "bytes", Context: 2})
}

// Problems with objects name them and their key; Check downloads nothing.
func TestObjectProblems(t *testing.T) {
	server := s3test.Serve(t)
	server.Put(t, "list.json", []byte("[1, 2]"))
	server.Put(t, "empty.jsonl", nil)
	server.Put(t, "twice/a.jsonl", []byte(`{"text": "one"}`))
	server.Put(t, "twice//a.jsonl", []byte(`{"text": "other"}`))
	wrong := map[string]string{"s3://runs/none-*.jsonl": "no object matches", "s3://runs/list.json": "JSON array", "s3://runs/empty.jsonl": "is empty",
		"s3://nowhere/a.jsonl": "the bucket does not exist", "s3:///a": "want s3://BUCKET/KEY"}
	if os.Getenv("ZEROTH_VERSITYGW") == "" { // there, both keys are one file
		wrong["s3://runs/twice/**"] = "s3://runs/twice//a.jsonl: the local copy would be that of s3://runs/twice/a.jsonl;"
	}
	for pattern, want := range wrong {
		_, err := Open(t.Context(), Source{Documents: Documents{Format: "text", Files: []string{pattern}}, Tokenizer: "bytes", Context: 4})
		if p := (*Problem)(nil); err == nil || !errors.As(err, &p) || p.Key != "documents[0]" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	server.Fail(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
	source := Source{Text: []string{"s3://runs/a"}, Tokenizer: "bytes", Context: 4}
	if _, err := source.Check(); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Error(err)
	}
	server.Fail(nil)
	server.Put(t, "a", bytes.Repeat([]byte("words "), 10))
	if _, err := source.Check(); err != nil {
		t.Error(err)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if found, _ := filepath.Glob(filepath.Join(cache, "zeroth/s3/*/files/runs/a")); len(found) > 0 {
		t.Errorf("Check downloaded %q", found)
	}
}
