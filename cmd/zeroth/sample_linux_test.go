package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: what is written to slave can be read from master.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skip(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// TestSampleOnATerminal checks that control characters in sampled text are escaped on a terminal
// and written as they are to a pipe.
func TestSampleOnATerminal(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r")
	args := []string{"sample", "--run", "r", "--prompt", "\x1b[2Jto be\x9b\x07", "--tokens", "3", "--temperature", "100"}
	raw, _ := zeroth(t, 0, args...)
	if !strings.HasPrefix(raw, "\x1b[2Jto be\x9b\x07") || len(raw) != 11+3+1 {
		t.Errorf("in a pipe: %q", raw)
	}
	master, slave := terminal(t)
	var errs bytes.Buffer
	if code := run(args, slave, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	seen := make([]byte, 1000)
	n, err := master.Read(seen)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(seen[:n]), "\r\n", "\n") // a terminal ends lines with CR LF
	if !strings.HasPrefix(text, `\x1b[2Jto be\x9b\a`) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0xfffd }) {
		t.Errorf("on a terminal: %q", text)
	}
}
