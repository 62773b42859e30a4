//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
	"unicode"

	"zeroth/tests/nightly"
)

// TestNamesCommandNoTerminal checks that every command escapes control characters and
// bidirectional overrides in the names of folders.
func TestNamesCommandNoTerminal(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	const mark = "\x1b[31m\u202e\u0085\u200b"
	in := "evil" + mark
	if err := os.Mkdir(in, 0o777); err != nil {
		t.Fatal(err)
	}
	zeroth(t, 0, "train", "tiny.yaml", "--out", "r", "--set", "checkpoint={every: 1, keep: 9}")
	if err := os.Rename("r", in+"/r"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename("tiny.yaml", in+"/tiny.yaml"); err != nil {
		t.Fatal(err)
	}
	r, first := in+"/r", in+"/r/ckpt/step-00000001"
	for _, c := range []struct {
		code int
		args []string
	}{
		{0, []string{"ckpt", "ls", r}}, {0, []string{"ckpt", "ls", r, "--json"}}, {0, []string{"ckpt", "inspect", r}}, {0, []string{"ckpt", "inspect", r, "--json"}},
		{0, []string{"ckpt", "verify", r}}, {0, []string{"ckpt", "verify", r, "--json"}}, {0, []string{"ckpt", "diff", r, r}}, {1, []string{"ckpt", "diff", r, first}},
		{0, []string{"ckpt", "export", r, "--to", in + "/m"}}, {0, []string{"ckpt", "import", in + "/m", "--to", in + "/c"}}, {2, []string{"ckpt", "import", in + "/m", "--to", r + "/ckpt"}},
		{0, []string{"ckpt", "prune", r, "--keep", "3", "--dry-run"}}, {0, []string{"ckpt", "prune", r, "--keep", "3", "--json"}},
		{0, []string{"plan", in + "/tiny.yaml"}}, {0, []string{"plan", in + "/tiny.yaml", "--json"}}, {0, []string{"plan", "--model", in + "/m"}},
		{0, []string{"plot", r, "--out", in + "/x.svg"}}, {0, []string{"model", in + "/m"}}, {0, []string{"doctor", in}},
		{0, []string{"eval", in + "/tiny.yaml", "--run", r, "--set", "train.eval_batches=1"}}, {0, []string{"sample", "--run", r, "--tokens", "1"}}, {0, []string{"init", "quickstart", in + "/j.yaml"}},
		{0, []string{"tokenize", in + "/tiny.yaml", "--tokenizer", "bytes", "--out", in + "/t.bin"}}, {0, []string{"train", in + "/tiny.yaml", "--out", in + "/again"}},
		{2, []string{"train", in + "/tiny.yaml", "--out", r}}, {2, []string{"flight", r}}, {2, []string{"plan", in + "/none"}}, {2, []string{"init", mark}}, {2, []string{mark}},
	} {
		out, errs := zeroth(t, c.code, c.args...)
		if strings.Contains(c.args[0], "sample") {
			out = "" // raw bytes
		}
		if i := strings.IndexFunc(out+errs, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 {
			t.Errorf("%q: writes %q", c.args, (out + errs)[i:min(i+20, len(out+errs))])
		}
	}
}

// TestEmptyArguments checks that an empty argument, as from "$UNSET", is an error rather than the
// default.
func TestEmptyArguments(t *testing.T) {
	inFolder(t)
	for _, args := range [][]string{
		{"plan", ""}, {"train", ""}, {"fit", "", "--gpus", "8", "--gpu-memory", "80GiB"}, {"ckpt", "ls", ""}, {"ckpt", "diff", "", ""}, {"plot", "", "--out", "x.svg"}, {"model", ""},
		{"init", "quickstart", ""}, {"man", ""}, {"flight", ""}, {"doctor", ""}, {"help", ""}, {"tokenize", "", "--tokenizer", "bytes", "--out", "x"}, {"launch", "--", "train", ""}, {"bench", ""},
	} {
		if out, errs := zeroth(t, 2, args...); out != "" || !strings.HasPrefix(errs, "zeroth: an argument is empty; give it a value or leave it out") && args[0] != "bench" {
			t.Errorf("%q: %s%s", args, out, errs)
		}
	}
}
