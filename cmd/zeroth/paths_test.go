//go:build unix

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// notPaths are the kinds of values of flags that are not paths.
var notPaths = []string{"tokens", "address", "bytes", "command", "format", "host", "host:port", "hosts", "json", "key=value", "level", "name=key", "names",
	"rules", "text", "transport", "type", "string", "model, seq or micro_batch"}

// TestPathsRefuseAddresses checks that no argument and no flag that names a file or folder accepts an address that
// the command would create as a folder.
func TestPathsRefuseAddresses(t *testing.T) {
	count := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		if err := paths(c, []string{"gs://b/x"}); (err == nil) != (c.Name() == "launch") {
			t.Errorf("%s gs://b/x: %v", c.CommandPath(), err)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			kind, _ := pflag.UnquoteUsage(f)
			if !strings.HasPrefix(f.Value.Type(), "string") || slices.Contains(notPaths, kind) {
				return
			}
			count++
			for _, name := range []string{"gs://b/x", "s3:/b/x", "host:/x"} {
				if err := c.Flags().Set(f.Name, name); err != nil {
					t.Fatal(err)
				}
				if err := paths(c, nil); err == nil || !strings.Contains(err.Error(), "--"+f.Name+" ") {
					t.Errorf("%s --%s %s (%s): %v", c.CommandPath(), f.Name, name, kind, err)
				}
			}
		})
	}
	visit((&app{}).root())
	if count < 30 {
		t.Errorf("only %d flags", count)
	}
}

// TestAddressesMakeNoFolders checks that nothing is created where an address is refused.
func TestAddressesMakeNoFolders(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--set", "checkpoint.every=1", "--out", "r")
	t.Setenv("BUCKET", "gs://b")
	before, _ := os.ReadDir(".")
	for _, args := range [][]string{
		{"train", "tiny.yaml", "--out", "s3://b/runs/a"}, {"train", "tiny.yaml", "--out", "r2", "--set", "checkpoint.dir=gs://b/x"},
		{"train", "tiny.yaml", "--out", "r2", "--set", "checkpoint.dir=s3:/b"}, {"train", "tiny.yaml", "--set", "checkpoint={dir: s3://b/x, local: s3://b/y}", "--out", "r2"},
		{"ckpt", "export", "r", "--to", "s3://b/m"}, {"ckpt", "import", "r/model", "--to", "S3://b/m"}, {"bench", "disk", "--dir", "gs://b"},
		{"init", "quickstart", "s3://b/job.yaml"}, {"man", "s3://b/man"}, {"train", "tiny.yaml", "--out", "r2", "--trace", "s3://b/t.json"},
		{"train", "tiny.yaml", "--out", "r2", "--set", "data.text=['${BUCKET}/x.txt']"},
	} {
		if _, errs := zeroth(t, 2, args...); !strings.Contains(errs, "is an address") {
			t.Errorf("%q: %s", args, errs)
		}
	}
	if after, _ := os.ReadDir("."); len(after) != len(before) {
		t.Errorf("%v became %v", before, after)
	}
}
