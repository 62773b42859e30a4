package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zeroth/tests/nightly"
)

// screen returns what a terminal would show after receiving out. It knows text, line feeds,
// carriage returns, cursor up, and erasing to the end of the line or screen.
func screen(out string) string {
	lines, row, col := []string{""}, 0, 0
	for len(out) > 0 {
		var n int
		var what byte
		if k, err := fmt.Sscanf(out, "\x1b[%d%c", &n, &what); k == 2 && err == nil {
			out = out[strings.IndexByte(out, what)+1:]
			if what == 'A' {
				row = max(0, row-n)
			}
			continue
		}
		erase := strings.HasPrefix(out, "\x1b[J")
		switch {
		case erase || strings.HasPrefix(out, "\x1b[K"):
			lines[row] = lines[row][:min(col, len(lines[row]))]
			if erase {
				lines = lines[:row+1]
			}
			out = out[3:]
			continue
		case out[0] == '\n':
			row++
		case out[0] == '\r':
			col = 0
		default:
			line := fmt.Sprintf("%-*s", col+1, lines[row])
			lines[row] = line[:col] + out[:1] + line[col+1:]
			col++
		}
		for len(lines) <= row {
			lines = append(lines, "")
		}
		out = out[1:]
	}
	return strings.Join(lines, "\n")
}

// frame matches the progress of a run that has begun.
var frame = regexp.MustCompile(`step +\d+/`)

// TestInterruptOnATerminal checks that on a terminal the message about Ctrl-C has a line of its
// own, and that the echoed ^C and the progress are erased.
func TestInterruptOnATerminal(t *testing.T) {
	nightly.Long(t)
	s := inShell(t, "TERM=xterm", "NO_COLOR=1")
	user, program := terminal(t)
	err := unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("train", "tiny.yaml", "--set", "train.steps=1000000", "--set", "data.validation=0", "--out", "r")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	program.Close()
	var out bytes.Buffer
	read := func() error {
		b := make([]byte, 1<<12)
		n, err := user.Read(b)
		out.Write(b[:n])
		return err
	}
	for !frame.MatchString(out.String()) {
		if err := read(); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
	}
	time.Sleep(300 * time.Millisecond) // one or two frames later
	if _, err := user.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		if err = read(); err != nil && !errors.Is(err, syscall.EIO) && err != io.EOF {
			t.Fatal(err)
		}
	}
	cmd.Wait()
	shown := screen(out.String())
	for _, line := range []string{"stopping after this step; press Ctrl-C again to quit at once", "saved to r"} {
		if !strings.Contains("\n"+shown+"\n", "\n"+line+"\n") {
			t.Errorf("%q is on no line of its own in\n%s", line, shown)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != 130 || strings.Contains(shown, "^C") {
		t.Errorf("exit code %d\n%s", code, shown)
	}
}
