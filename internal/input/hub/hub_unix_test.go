//go:build unix

package hub

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"zeroth/internal/input/hub/hubtest"
)

// TestPredictableNames checks that a link or a pipe under a name that a download opens is refused: the
// cache may be shared with others.
func TestPredictableNames(t *testing.T) {
	for _, name := range []string{"models--org--tiny/blobs/PART.incomplete", ".locks/models--org--tiny/model.lock", ".locks/models--org--tiny/PART.lock"} {
		for kind, plant := range map[string]func(path, victim string) error{
			"it is a link": func(path, victim string) error { return os.Symlink(victim, path) },
			"it is a pipe": func(path, _ string) error { return syscall.Mkfifo(path, 0o666) },
		} {
			h := serve(t)
			sum := hubtest.SHA256(h.Files["model.safetensors"])
			path := filepath.Join(os.Getenv("HF_HOME"), "hub", filepath.FromSlash(name))
			if filepath.Base(name) != "model.lock" {
				path = filepath.Join(filepath.Dir(path), sum+filepath.Ext(name))
			}
			victim := filepath.Join(t.TempDir(), "mine")
			if err := os.WriteFile(victim, []byte("mine"), 0o666); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := plant(path, victim); err != nil {
				t.Fatal(err)
			}
			refused(t, "hf://org/tiny", Weights, filepath.Base(path), kind, "HF_HOME")
			if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
				t.Errorf("%s: the file behind the link is now %q, %v", name, b, err)
			}
		}
	}
}
