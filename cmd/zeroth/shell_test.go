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

// shell starts the command as processes. Its tests share neither working directory nor
// environment, so those that mostly wait can run in parallel.
type shell struct {
	*testing.T
	dir  string   // "" is the current one
	temp string   // for temporary files
	env  []string // in addition to the environment of the test
}

// inShell returns a shell in a folder with tiny.yaml and its text, with folders for temporary files
// and sockets that no other test uses, and makes its test a parallel one.
func inShell(t *testing.T, env ...string) shell {
	t.Helper()
	t.Parallel()
	s := shell{T: t, dir: t.TempDir(), temp: t.TempDir()}
	session := t.TempDir()
	if err := os.Chmod(session, 0o700); err != nil {
		t.Fatal(err)
	}
	s.env = append([]string{"TMPDIR=" + s.temp, "XDG_RUNTIME_DIR=" + session}, env...)
	for name, content := range tinyFiles {
		if err := os.WriteFile(s.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// tinyFiles are the files of a test's folder, by name.
var tinyFiles = map[string]string{"tiny.yaml": tiny, "a.txt": strings.Repeat("to be, or not to be; ", 500)}

// with returns the shell with more environment.
func (s shell) with(env ...string) shell {
	s.env = append(s.env[:len(s.env):len(s.env)], env...)
	return s
}

// leftNothing checks that no temporary file is left.
func (s shell) leftNothing(after string) {
	s.Helper()
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		s.Errorf("%s: left in the folder for temporary files: %v (%v)", after, left, err)
	}
}

// path joins parts of a path that begins in the shell's folder.
func (s shell) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// command returns a process of the command that is not yet started.
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
	_ = cmd.Run() // its exit code is checked
	if got := cmd.ProcessState.ExitCode(); got != code {
		s.Fatalf("zeroth %q: exit code %d, want %d\n%s%s", args, got, code, &o, &e)
	}
	return o.String(), e.String()
}
