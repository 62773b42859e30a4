//go:build unix

package world_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"zeroth/internal/world"
)

// session creates a private folder and makes processes use it as the session's.
func session(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	return dir
}

// TestUserToken checks that processes that start concurrently share one token, which only their
// user can read.
func TestUserToken(t *testing.T) {
	dir := filepath.Join(session(t), "zeroth")
	var all sync.WaitGroup
	tokens := make([]string, 16)
	for i := range tokens {
		all.Go(func() {
			token, _, err := world.UserToken()
			if err != nil {
				t.Error(err)
			}
			tokens[i] = string(token)
		})
	}
	all.Wait()
	for _, token := range tokens {
		if token != tokens[0] || len(token) != 64 {
			t.Fatalf("tokens %q", tokens)
		}
	}
	for name, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, filepath.Join(dir, "token"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", name, info.Mode(), err, want)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v (%v)", files, err)
	}
}

// TestUserTokenIsTheUsersAlone checks that a token file is refused if others can read it or own
// it.
func TestUserTokenIsTheUsersAlone(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir, file string) error
		want  string
	}{
		"file for all":     {func(_, file string) error { return os.Chmod(file, 0o644) }, "it has mode 0644"},
		"folder for all":   {func(dir, _ string) error { return os.Chmod(dir, 0o755) }, "it has mode 0755"},
		"another's file":   {func(_, file string) error { return os.Chown(file, 65534, -1) }, "it belongs to user 65534"},
		"another's folder": {func(dir, _ string) error { return os.Chown(dir, 65534, -1) }, "it belongs to user 65534"},
		"short":            {func(_, file string) error { return os.Truncate(file, 5) }, "has 5 bytes, want 64"},
		"link to a file": {func(dir, file string) error {
			if err := os.Rename(file, file+"2"); err != nil {
				return err
			}
			return os.Symlink(file+"2", file)
		}, "is not a file"},
		"link to a folder": {func(dir, _ string) error {
			if err := os.Rename(dir, dir+"2"); err != nil {
				return err
			}
			return os.Symlink(dir+"2", dir)
		}, "it is not a folder"},
	} {
		if os.Getuid() != 0 && strings.HasPrefix(name, "another's") {
			continue // only root can change the owner
		}
		session(t)
		_, file, err := world.UserToken()
		if err == nil {
			err = c.spoil(filepath.Dir(file), file)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := world.UserToken(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestUserTokenWithoutASession checks that a session folder of another user, which sudo can leave
// in the environment, is not used.
func TestUserTokenWithoutASession(t *testing.T) {
	if err := os.Chmod(session(t), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if _, file, err := world.UserToken(); err != nil || strings.HasPrefix(file, os.Getenv("XDG_RUNTIME_DIR")) {
		t.Errorf("%s %v", file, err)
	}
}
