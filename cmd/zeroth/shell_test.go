//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shell starts the command in processes of its own. Its tests share neither working directory nor
// environment, so they can run in parallel.
type shell struct {
	*testing.T
	dir     string   // "" is the current one
	temp    string   // for temporary files
	session string   // for sockets
	env     []string // added to the environment of the test
}

// inShell returns a shell in a new folder with tiny.yaml and its text, with its own folders for
// temporary files and sockets, and marks the test as parallel.
func inShell(t *testing.T, env ...string) shell {
	t.Helper()
	t.Parallel()
	s := shell{T: t, dir: t.TempDir(), temp: t.TempDir(), session: t.TempDir()}
	if err := os.Chmod(s.session, 0o700); err != nil {
		t.Fatal(err)
	}
	s.env = append([]string{"TMPDIR=" + s.temp, "XDG_RUNTIME_DIR=" + s.session}, env...)
	for name, content := range tinyFiles {
		if err := os.WriteFile(s.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// tinyFiles holds the contents of the files in a test's folder, by name.
var tinyFiles = map[string]string{"tiny.yaml": tiny, "a.txt": strings.Repeat("to be, or not to be; ", 500)}

// with returns a copy of the shell with additional environment variables.
func (s shell) with(env ...string) shell {
	s.env = append(s.env[:len(s.env):len(s.env)], env...)
	return s
}

// leftNothing checks that no temporary files remain.
func (s shell) leftNothing(after string) {
	s.Helper()
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		s.Errorf("%s: left in the folder for temporary files: %v (%v)", after, left, err)
	}
}

// path joins path elements below the shell's folder.
func (s shell) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// command returns an unstarted process of the command.
func (s shell) command(args ...string) *exec.Cmd {
	s.Helper()
	exe, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir, cmd.Env = s.dir, append(append(os.Environ(), "ZEROTH_MAIN=main"), s.env...)
	return cmd
}

// process runs the command to its end and checks its exit code.
func (s shell) process(code int, args ...string) (out, errs string) {
	s.Helper()
	var o, e bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = &o, &e
	_ = cmd.Run() // the exit code is checked below
	if got := cmd.ProcessState.ExitCode(); got != code {
		s.Fatalf("zeroth %q: exit code %d, want %d\n%s%s", args, got, code, &o, &e)
	}
	return o.String(), e.String()
}
