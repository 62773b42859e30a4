// Package hubtest serves models as the Hugging Face Hub does: the list of a revision's files, small
// files, and redirects of large ones to another host, with tokens and ranges.
package hubtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"
)

// Hub is a server with one model, org/tiny.
type Hub struct {
	URL    string
	Commit string                                            // of main
	Files  map[string][]byte                                 // by name; *.safetensors and *.bin are on the other host
	Token  string                                            // that requests must have; "" is none
	Gated  bool                                              // files need Token, the list of them does not
	Claim  int64                                             // added to the sizes in the list
	Fault  func(w http.ResponseWriter, r *http.Request) bool // handles a request instead, if it returns true

	mu   sync.Mutex
	seen []string
	cdn  string
}

// Serve starts a server with files and sets the environment of the test so that downloads go from
// there to a cache in a temporary folder.
func Serve(t *testing.T, files map[string][]byte) *Hub {
	t.Helper()
	h := &Hub{Files: files, Commit: strings.Repeat("c0ffee0", 6)[:40]}
	cdn := httptest.NewServer(http.HandlerFunc(h.content))
	api := httptest.NewServer(http.HandlerFunc(h.serve))
	h.URL, h.cdn = api.URL, cdn.URL
	t.Cleanup(func() { api.Close(); cdn.Close() })
	for key, value := range map[string]string{"HF_HOME": t.TempDir(), "HF_ENDPOINT": h.URL, "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_TOKEN": "", "HF_TOKEN_PATH": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""} {
		t.Setenv(key, value)
	}
	return h
}

// Folder returns the files of a folder.
func Folder(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	in, err := os.ReadDir(folder)
	for _, e := range in {
		if err == nil {
			files[e.Name()], err = os.ReadFile(path.Join(folder, e.Name()))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Requests returns and forgets the requests so far: host (hub or cdn), path, range and whether there was a token.
func (h *Hub) Requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

func (h *Hub) note(host string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := host + " " + r.URL.Path
	if s := r.Header.Get("Range"); s != "" {
		line += " " + s
	}
	if r.Header.Get("Authorization") != "" {
		line += " token"
	}
	h.seen = append(h.seen, line)
}

// Move lets main be another commit, while the server is in use.
func (h *Hub) Move(commit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Commit = commit
}

func (h *Hub) main() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Commit
}

// SHA256 returns the checksum of a file on the other host.
func SHA256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// GitSum returns the checksum of a file in git.
func GitSum(b []byte) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(b), b))
	return hex.EncodeToString(sum[:])
}

func large(name string) bool { return path.Ext(name) == ".safetensors" || path.Ext(name) == ".bin" }

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	http.Error(w, code, status)
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	h.note("hub", r)
	if h.Fault != nil && h.Fault(w, r) {
		return
	}
	authorized := h.Token == "" || r.Header.Get("Authorization") == "Bearer "+h.Token
	_, api := strings.CutPrefix(r.URL.Path, "/api/models/")
	switch {
	case !strings.Contains(r.URL.Path, "/org/tiny/") || !authorized && !h.Gated:
		fail(w, http.StatusUnauthorized, "RepoNotFound")
	case api:
		h.list(w, path.Base(r.URL.Path))
	case !authorized:
		fail(w, http.StatusUnauthorized, "GatedRepo")
	default:
		h.resolve(w, r)
	}
}

// list answers with the files of a revision.
func (h *Hub) list(w http.ResponseWriter, revision string) {
	commit := h.main()
	if revision != "main" && revision != commit {
		fail(w, http.StatusNotFound, "RevisionNotFound")
		return
	}
	var files []map[string]any
	for name, b := range h.Files {
		size := int64(len(b)) + h.Claim
		f := map[string]any{"rfilename": name, "size": size, "blobId": GitSum(b)}
		if large(name) {
			f["lfs"] = map[string]any{"sha256": SHA256(b), "size": size, "pointerSize": 130}
		}
		files = append(files, f)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/tiny", "sha": commit, "siblings": files}) // the client has gone
}

// resolve answers with a file, or redirects to it.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request) {
	revision, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/org/tiny/resolve/"), "/")
	b, ok := h.Files[name]
	commit := h.main()
	if !ok || revision != "main" && revision != commit {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if !large(name) {
		w.Header().Set("ETag", `"`+GitSum(b)+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+SHA256(b)+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(b)))
	http.Redirect(w, r, h.cdn+"/"+name+"?signature=secret", http.StatusFound)
}

// content serves large files, as the other host does.
func (h *Hub) content(w http.ResponseWriter, r *http.Request) {
	h.note("cdn", r)
	if h.Fault != nil && h.Fault(w, r) {
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.Files[strings.TrimPrefix(r.URL.Path, "/")]))
}
