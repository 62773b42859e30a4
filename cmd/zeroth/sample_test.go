//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
)

// Prompts come from flags and from a file; with --json each has a line.
func TestSampleMany(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r")
	if err := os.WriteFile("prompts", []byte("to be\n\n\"a\\n\\u00e9\"\r\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	args := []string{"sample", "--run", "r", "--tokens", "3", "--temperature", "0", "--prompts", "prompts"}
	out, _ := zeroth(t, 0, args...)
	if !strings.HasPrefix(out, "to be") || !strings.Contains(out, "\na\né") || len(out) != len("to be")+len("a\né")+2*(3+1) {
		t.Errorf("%q", out)
	}
	out, _ = zeroth(t, 0, append(args, "--prompt", "x", "--json", "--cpuprofile", "p")...)
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], `{"prompt":"x","text":"`) || !strings.HasPrefix(lines[1], `{"prompt":"to be","text":"`) ||
		!strings.HasPrefix(lines[2], `{"prompt":"a\né","text":"`) || !strings.HasSuffix(lines[2], `,"tokens":3,"finish_reason":"length"}`) {
		t.Errorf("%q", out)
	}
	if info, err := os.Stat("p"); err != nil || info.Size() == 0 {
		t.Errorf("profile: %v %v", info, err)
	}
	if err := os.WriteFile("prompts", []byte("fine\n\"open\nfine\n\"a\"b\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, told := zeroth(t, 2, args...); !strings.Contains(told, `prompts:2: begins with "`) || !strings.Contains(told, `prompts:4: begins with "`) {
		t.Errorf("%q", told)
	}
}
