package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/internal/input"
	"zeroth/internal/input/hub/hubtest"
	"zeroth/tests/nightly"
)

// weights are random bytes, as many as several reads of a connection take.
func weights() []byte {
	b := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}

// serve starts a Hub with a model of all kinds of files, and makes retries quick.
func serve(t *testing.T) *hubtest.Hub {
	t.Helper()
	pause = time.Millisecond
	t.Cleanup(func() { pause, stall = time.Second, 30*time.Second })
	return hubtest.Serve(t, map[string][]byte{
		"config.json": []byte(`{"model_type": "gpt2"}`), "tokenizer.json": []byte("{}"), "additional_chat_templates/tools.jinja": []byte("{{ tools }}"),
		"README.md": []byte("# Tiny"), "onnx/config.json": []byte("{}"), "model.safetensors": weights(), "pytorch_model.bin": []byte("pickle"),
	})
}

func fetchAll(t *testing.T, files Files) (folder string) {
	t.Helper()
	pinned, err := Fetch(t.Context(), "hf://org/tiny", files, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	return Folder(pinned)
}

// refused checks that a download fails by the user's mistake, with the words in its error.
func refused(t *testing.T, name string, files Files, words ...string) {
	t.Helper()
	_, err := Fetch(t.Context(), name, files, nil)
	if err == nil || !input.IsInput(err) {
		t.Fatalf("%s: %v", name, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in: %v", w, err)
		}
	}
}

// TestFetch checks that a download has huggingface_hub's layout and is not repeated.
func TestFetch(t *testing.T) {
	h := serve(t)
	folder := fetchAll(t, Config)
	root := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--tiny")
	if want := filepath.Join(root, "snapshots", h.Commit); folder != want {
		t.Errorf("%s, want %s", folder, want)
	}
	if got := h.Requests(); !slices.Equal(got, []string{"hub /api/models/org/tiny/revision/main", "hub /org/tiny/resolve/" + h.Commit + "/config.json"}) {
		t.Errorf("for config.json: %q", got)
	}
	fetchAll(t, Weights)
	for name, to := range map[string]string{
		"config.json": "../../blobs/" + hubtest.GitSum(h.Files["config.json"]), "tokenizer.json": "../../blobs/" + hubtest.GitSum(h.Files["tokenizer.json"]),
		"model.safetensors":                     "../../blobs/" + hubtest.SHA256(h.Files["model.safetensors"]),
		"additional_chat_templates/tools.jinja": "../../../blobs/" + hubtest.GitSum(h.Files["additional_chat_templates/tools.jinja"]),
	} {
		path := filepath.Join(folder, name)
		link, err := os.Readlink(path)
		content, wrong := os.ReadFile(path)
		if err != nil || wrong != nil || link != to || !bytes.Equal(content, h.Files[name]) {
			t.Errorf("%s: %v, %v, a link to %s, want %s", name, err, wrong, link, to)
		}
	}
	for _, name := range []string{"README.md", "onnx", "pytorch_model.bin"} {
		if input.Exists(filepath.Join(folder, name)) {
			t.Errorf("%s was downloaded", name)
		}
	}
	if ref, err := os.ReadFile(filepath.Join(root, "refs", "main")); err != nil || string(ref) != h.Commit {
		t.Errorf("refs/main: %s, %v", ref, err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "blobs", "*.incomplete")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	h.Requests()
	pinned, err := Fetch(t.Context(), "hf://org/tiny@"+h.Commit, Weights, nil)
	if got := h.Requests(); err != nil || pinned != "hf://org/tiny@"+h.Commit || len(got) > 0 {
		t.Errorf("a complete commit: %s, %v, requests %q", pinned, err, got)
	}
}

// TestResume checks that after broken connections and temporary errors the rest is requested.
func TestResume(t *testing.T) {
	h := serve(t)
	var cuts, busy int
	h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/") && busy < 2:
			busy++
			w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[busy-1])
			return true
		case r.URL.Path == "/model.safetensors" && cuts == 0:
			cuts++
			w.Header().Set("Content-Length", fmt.Sprint(len(h.Files["model.safetensors"])))
			_, _ = w.Write(h.Files["model.safetensors"][:1<<20]) // the client counts
			return true
		}
		return false
	}
	folder := fetchAll(t, Weights)
	got := h.Requests()
	if !slices.Contains(got, "cdn /model.safetensors bytes=1048576-") {
		t.Errorf("requests %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(folder, "model.safetensors")); err != nil || !bytes.Equal(b, h.Files["model.safetensors"]) {
		t.Errorf("the file differs: %v", err)
	}
}

// TestResumeLater checks that the next process continues the download of a killed one, even if its
// file is damaged or too long.
func TestResumeLater(t *testing.T) {
	for name, left := range map[string]func([]byte) []byte{
		"whole":   func(b []byte) []byte { return b[:2<<20] },
		"damaged": func(b []byte) []byte { return append([]byte{b[0] ^ 1}, b[1:2<<20]...) },
		"long":    func(b []byte) []byte { return append(slices.Clone(b), 7) },
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t)
			b := h.Files["model.safetensors"]
			part := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--tiny", "blobs", hubtest.SHA256(b)+".incomplete")
			if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o777), os.WriteFile(part, left(b), 0o666)); err != nil {
				t.Fatal(err)
			}
			folder := fetchAll(t, Weights)
			if got, err := os.ReadFile(filepath.Join(folder, "model.safetensors")); err != nil || !bytes.Equal(got, b) {
				t.Errorf("the file differs: %v", err)
			}
			if got := h.Requests(); name != "long" && !slices.Contains(got, "cdn /model.safetensors bytes=2097152-") {
				t.Errorf("requests %q", got)
			}
		})
	}
}

// TestDamage checks that a file with a wrong bit gets no name, whether it is in git or not.
func TestDamage(t *testing.T) {
	for _, name := range []string{"config.json", "model.safetensors"} {
		t.Run(name, func(t *testing.T) {
			h := serve(t)
			h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, name) || strings.HasPrefix(r.URL.Path, "/org") && name == "model.safetensors" {
					return false
				}
				b := bytes.Clone(h.Files[name])
				b[len(b)-1] ^= 1
				_, _ = w.Write(b) // the client checks
				return true
			}
			_, err := Fetch(t.Context(), "hf://org/tiny", Weights, nil)
			if err == nil || !strings.Contains(err.Error(), name+" arrived damaged") {
				t.Error(err)
			}
			in, _ := filepath.Glob(filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--tiny", "blobs", "*"))
			for _, path := range in {
				if b, err := os.ReadFile(path); err != nil || len(b) == len(h.Files[name]) {
					t.Errorf("%s was kept", path)
				}
			}
		})
	}
}

// A server that sends too much, nothing or nonsense is an error.
func TestBrokenServers(t *testing.T) {
	nightly.Long(t)
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"sends more than":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("x"), 100)) },
		"after 0 of 22 bytes": func(http.ResponseWriter, *http.Request) {},
		"no data for":         func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-r.Context().Done() },
		"answers 500":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t)
			if name == "no data for" {
				stall = 200 * time.Millisecond
			}
			h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "config.json") {
					answer(w, r)
					return true
				}
				return false
			}
			if _, err := Fetch(t.Context(), "hf://org/tiny", Config, nil); err == nil || !strings.Contains(err.Error(), name) || input.IsInput(err) {
				t.Error(err)
			}
		})
	}
	h := serve(t)
	h.Fault = func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, "<html>"); return true }
	refused(t, "hf://org/tiny", Config, "does not answer like a Hub; check HF_ENDPOINT")
}

// TestToken checks that the token is sent only to the endpoint, and that no message contains the
// signature of a redirect.
func TestToken(t *testing.T) {
	h := serve(t)
	h.Token = "hf_test"
	t.Setenv("HF_TOKEN", "hf_test")
	fails := true
	h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/model.safetensors" && fails {
			fails = false
			panic(http.ErrAbortHandler)
		}
		return false
	}
	var notes []string
	if _, err := Fetch(t.Context(), "hf://org/tiny", Weights, func(s string) { notes = append(notes, s) }); err != nil {
		t.Fatal(err)
	}
	for _, r := range h.Requests() {
		if strings.HasPrefix(r, "hub") != strings.Contains(r, "token") {
			t.Errorf("%q", r)
		}
	}
	if all := strings.Join(notes, "\n"); !strings.Contains(all, "trying again") || strings.Contains(all, "secret") || strings.Contains(all, "hf_test") {
		t.Errorf("notes: %s", all)
	}
	file := filepath.Join(os.Getenv("HF_HOME"), "token")
	t.Setenv("HF_TOKEN", "")
	if err := os.WriteFile(file, []byte("hf_test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(os.Getenv("HF_HOME"), "hub")); err != nil {
		t.Fatal(err)
	}
	fetchAll(t, Config)
}

// TestRefusals checks that users who may not download are told why, and what to do.
func TestRefusals(t *testing.T) {
	h := serve(t)
	for _, name := range []string{"hf://", "hf://a/b/c", "hf://org/../tiny", "hf://org/tiny@", "hf://org/tiny@../main", "hf://org/tiny@a//b", "hf://models--org/x", "hf://org/tiny@\x1b[31m"} {
		refused(t, name, Config, "is not a model on the Hub; want hf://org/name")
	}
	refused(t, "hf://org/none", Config, "no such model, or a private one", h.URL+"/org/none", "set HF_TOKEN")
	refused(t, "hf://org/tiny@v2", Config, `there is no revision "v2"`, h.URL+"/org/tiny/tree/main")
	h.Gated, h.Token = true, "hf_good"
	refused(t, "hf://org/tiny", Config, "is gated: ask for access at "+h.URL+"/org/tiny, then set HF_TOKEN")
	t.Setenv("HF_TOKEN", "hf_bad")
	refused(t, "hf://org/tiny", Config, "the account of the token (HF_TOKEN) has no access")
	refused(t, "hf://org/none", Config, "no such model", "HF_TOKEN")
	t.Setenv("HF_TOKEN", "hf_good")
	delete(h.Files, "model.safetensors")
	h.Commit = strings.Repeat("d", 40)
	refused(t, "hf://org/tiny", Weights, "has pytorch_model.bin, but no safetensors; convert it with 'zeroth ckpt export hf://org/tiny@"+h.Commit+" --to FOLDER'")
	if folder := fetchAll(t, AnyWeights); !input.Exists(filepath.Join(folder, "pytorch_model.bin")) {
		t.Error("no pytorch_model.bin")
	}
	t.Setenv("HF_ENDPOINT", "huggingface.co")
	refused(t, "hf://org/tiny", Config, "HF_ENDPOINT is not the address of a server")
}

// TestIndex checks that an index may list only files with weights.
func TestIndex(t *testing.T) {
	h := serve(t)
	delete(h.Files, "model.safetensors")
	h.Files["model-00001-of-00002.safetensors"], h.Files["model-00002-of-00002.safetensors"], h.Files["consolidated.safetensors"] = []byte("1"), []byte("2"), []byte("3")
	for i, c := range []struct{ files, want string }{
		{`"../x"`, "names the file"}, {`"model-3.safetensors"`, "names the file"}, {`"README.md"`, "names the file"}, {``, "names no files"},
		{`"model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"`, ""},
	} {
		h.Commit = strings.Repeat(fmt.Sprint(i), 40)
		text := `{"weight_map": {"a": ` + c.files + `}}`
		if c.files == "" {
			text = "{}"
		}
		h.Files["model.safetensors.index.json"] = []byte(text)
		if c.want != "" {
			refused(t, "hf://org/tiny", Weights, c.want)
			continue
		}
		folder := fetchAll(t, Weights)
		found, _ := filepath.Glob(filepath.Join(folder, "*.safetensors"))
		if len(found) != 2 {
			t.Errorf("%q", found)
		}
		h.Requests()
		if _, err := Fetch(t.Context(), "hf://org/tiny@"+h.Commit, Weights, nil); err != nil || len(h.Requests()) > 0 {
			t.Errorf("it is complete: %v", err)
		}
	}
}

// Sizes are compared with limits and the disk before anything is downloaded.
func TestSizes(t *testing.T) {
	h := serve(t)
	h.Claim = 1 << 30
	refused(t, "hf://org/tiny", Config, "config.json has 1073741846 bytes; the limit for such a file is 268435456")
	h.Claim = 0
	fetchAll(t, Config)
	h.Commit, h.Claim = strings.Repeat("e", 40), 1<<49
	h.Files = map[string][]byte{"model.safetensors": {}, "config.json": {}}
	list := h.Files
	h.Fault = func(w http.ResponseWriter, r *http.Request) bool { // only the weights are large
		if !strings.HasPrefix(r.URL.Path, "/api/") {
			return false
		}
		sum := hubtest.GitSum(list["config.json"])
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": h.Commit, "siblings": []any{ // the client has gone
			map[string]any{"rfilename": "config.json", "blobId": sum},
			map[string]any{"rfilename": "model.safetensors", "blobId": sum, "lfs": map[string]any{"sha256": strings.Repeat("0", 64), "size": int64(1) << 49}},
		}})
		return true
	}
	h.Requests()
	refused(t, "hf://org/tiny", Weights, "the download needs 562949953 MB", "free some space, or set HF_HOME")
	if got := h.Requests(); slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "safetensors") }) {
		t.Errorf("requests %q", got)
	}
}

// A cache that cannot be written to is an error before the Hub is asked.
func TestUnwritable(t *testing.T) {
	h := serve(t)
	if err := os.WriteFile(filepath.Join(os.Getenv("HF_HOME"), "hub"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	refused(t, "hf://org/tiny", Config, "set HF_HOME to another folder")
	if got := h.Requests(); len(got) > 0 {
		t.Errorf("requests %q", got)
	}
}

// TestOffline checks that only the cache is used without a connection.
func TestOffline(t *testing.T) {
	h := serve(t)
	t.Setenv("HF_HUB_OFFLINE", "1")
	refused(t, "hf://org/tiny", Config, "revision main is not in the cache", "HF_HUB_OFFLINE")
	t.Setenv("HF_HUB_OFFLINE", "0")
	fetchAll(t, Tokenizer)
	h.Requests()
	t.Setenv("HF_HUB_OFFLINE", "1")
	if folder := fetchAll(t, Tokenizer); !strings.HasSuffix(folder, h.Commit) {
		t.Error(folder)
	}
	refused(t, "hf://org/tiny", Weights, "model.safetensors is not in the cache")
	if err := os.RemoveAll(filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--tiny", "trees")); err != nil {
		t.Fatal(err) // as older versions of huggingface_hub leave it
	}
	fetchAll(t, Tokenizer)
	refused(t, "hf://org/tiny", Weights, "model.safetensors is not in the cache")
	if got := h.Requests(); len(got) > 0 {
		t.Errorf("requests %q", got)
	}
}

// TestUnresolved checks that a name that does not resolve is not tried again, while a connection
// that fails is.
func TestUnresolved(t *testing.T) {
	serve(t)
	for endpoint, want := range map[string]struct {
		again int
		words []string
	}{
		"https://hub.invalid": {0, []string{"hub.invalid", "HF_ENDPOINT", "HF_HUB_OFFLINE=1", "local folder"}},
		"http://127.0.0.1:1":  {input.Tries - 1, []string{"127.0.0.1:1", "tried 6 times"}},
	} {
		t.Setenv("HF_ENDPOINT", endpoint)
		again := 0
		_, err := Fetch(t.Context(), "hf://org/tiny", Config, func(string) { again++ })
		if err == nil || again != want.again {
			t.Errorf("%s: %v, after %d more tries", endpoint, err, again)
			continue
		}
		for _, w := range want.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("no %q in: %v", w, err)
			}
		}
	}
}

// TestTogether checks that of several processes that want the same files, one requests and
// downloads them.
func TestTogether(t *testing.T) {
	h := serve(t)
	h.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		time.Sleep(20 * time.Millisecond)
		return false
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := Fetch(context.Background(), "hf://org/tiny", Weights, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got := h.Requests()
	once := slices.Compact(slices.Sorted(slices.Values(got)))
	if len(got) != len(once) {
		t.Errorf("requests %q", got)
	}
}

// TestCancel checks that a download ends with its context.
func TestCancel(t *testing.T) {
	h := serve(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	h.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/model.safetensors" {
			cancel(why)
			<-r.Context().Done()
		}
		return false
	}
	if _, err := Fetch(ctx, "hf://org/tiny", Weights, nil); !errors.Is(err, why) {
		t.Error(err)
	}
}
