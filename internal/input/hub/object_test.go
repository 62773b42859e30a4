package hub

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/internal/input/s3/s3test"
)

// TestObjects checks that a model in object storage is downloaded like one on the Hub: first its
// description, then its weights, each file once.
func TestObjects(t *testing.T) {
	server := s3test.Serve(t)
	for name, text := range map[string]string{"config.json": "{}", "tokenizer.json": "{}", "notes.pdf": "no", "model.safetensors.index.json": `{"weight_map": {"x": "a.safetensors"}}`,
		"a.safetensors": "weights", "spare.safetensors": "no"} {
		server.Put(t, "models/tiny/"+name, []byte(text))
	}
	const name = "s3://runs/models/tiny"
	for _, c := range []struct {
		files Files
		want  []string
	}{{Config, []string{"config.json", "model.safetensors.index.json"}}, {Weights, []string{"a.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.json"}}} {
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		if pinned, err := Fetch(t.Context(), name, c.files, nil); err != nil || pinned != name {
			t.Fatalf("%s, %v", pinned, err)
		}
		in, err := os.ReadDir(Folder(name))
		var got []string
		for _, e := range in {
			got = append(got, e.Name())
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q (%v)", c.files, got, c.want, err)
		}
	}
	server.Seen()
	if _, err := Fetch(t.Context(), name, Weights, nil); err != nil || len(server.Seen()) != 1 { // one listing
		t.Errorf("fetched again: %v", err)
	}
	server.Put(t, "models/tiny/a.safetensors", []byte("other weights"))
	if _, err := Fetch(t.Context(), name, Weights, nil); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(Folder(name), "a.safetensors")); string(b) != "other weights" {
		t.Errorf("%q, %v", b, err)
	}
	for _, method := range []string{"LIST", http.MethodGet} {
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		reason := errors.New("enough")
		ctx, stop := context.WithCancelCause(t.Context())
		server.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
			if (method == "LIST") == r.URL.Query().Has("list-type") {
				stop(reason)
				<-r.Context().Done()
			}
			return false
		})
		if _, err := Fetch(ctx, name, Weights, nil); !errors.Is(err, reason) || input.IsInput(err) {
			t.Errorf("stopped during %s: %v", method, err)
		}
	}
	server.Fail(nil)
	for bad, want := range map[string]string{"s3://runs/none": "config.json", "s3://nowhere/tiny": "bucket", "s3://": "s3://BUCKET/KEY"} {
		if _, err := Fetch(t.Context(), bad, Config, nil); !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
