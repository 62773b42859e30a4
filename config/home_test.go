package config

import (
	"slices"
	"strings"
	"testing"
	"zeroth/config/tree"
)

func TestPathAtHome(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	for in, want := range map[string]string{
		"~": "/home/me", "~/a b": "/home/me/a b", "~/": "/home/me", "": "", "a/~": "a/~", "./~": "./~", "/~/a": "/~/a",
		"~you/a": "", "~~": "",
	} {
		got, err := Path(in)
		if got != want || (err == nil) != (want != "" || in == "") {
			t.Errorf("%q is %q (%v), want %q", in, got, err, want)
		}
	}
	t.Setenv("HOME", "")
	if got, err := Path("~/a"); err == nil {
		t.Errorf("without a home %q", got)
	}
}

// TestPathsRefuseAddresses checks that every key for files or folders refuses addresses that it cannot use.
func TestPathsRefuseAddresses(t *testing.T) {
	count := 0
	for _, f := range new(Config).fields("") {
		if !f.value.path {
			continue
		}
		schemes, many := f.value.schemes, f.value.schema["type"] == "array"
		count++
		for _, s := range []string{"gs://b/x", "s3:/b/x", "S3://b/x", "node:/x", "s3://b/x", "hf://a/b"} {
			n := &tree.Node{Kind: tree.Scalar, Text: s}
			if many {
				n = &tree.Node{Kind: tree.List, Items: []*tree.Node{n}}
			}
			wrong := f.value.set(n)
			refused := strings.HasPrefix(wrong, tree.Quote(s)+" is an address")
			if scheme, _, _ := strings.Cut(s, "//"); refused == slices.Contains(schemes, scheme+"//") {
				t.Errorf("%s %s: %s", f.key, s, wrong)
			}
		}
	}
	if count < 18 {
		t.Errorf("only %d keys", count)
	}
}
