//go:build unix

package main

import (
	"os"
	"strings"
	"testing"

	"zeroth/job/jobtest"
)

// TestPlot checks that finished and unfinished runs are drawn, and that errors are reported
// before a file is written.
func TestPlot(t *testing.T) {
	inFolder(t)
	zeroth(t, 0, "train", "tiny.yaml", "--out", "run1")
	out, _ := zeroth(t, 0, "plot", "run1", "--out", "p.svg")
	contains(t, out, "lowest validation loss", "\nrun1 ", "drawn to p.svg\n")
	if err := os.Mkdir("run2", 0o777); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "run2/metrics.jsonl", "{\"step\":1,\"loss\":3.5,\"lr\":1}\nx\n{\"step\":2,\"loss\":3.2")
	out, _ = zeroth(t, 0, "plot", "run1", "run2", "--out", "both.svg")
	contains(t, out, "metrics: run2/metrics.jsonl:2: ", "; skipped 1 lines that cannot be read\n", "\nrun2 ")
	drawing, err := os.ReadFile("both.svg")
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(drawing), ">run1<", ">run2<", ">Gradient norm<")
	for want, args := range map[string][]string{
		"want 1 to 8 run folders, such as: zeroth plot run1 --out run1.svg (0 given)\n--out is missing": {"plot"},
		"--out q.png: want a file name that ends in .svg":                                               {"plot", "run1", "--out", "q.png"},
		"nowhere/metrics.jsonl: no such file or directory; want a":                                      {"plot", "nowhere", "run1", "--out", "q.svg"},
	} {
		if out, errs := zeroth(t, 2, args...); !strings.Contains(errs, want) || out != "" {
			t.Errorf("zeroth %v: %s%s\nwant %s", args, out, errs, want)
		}
	}
	if _, err := os.Stat("q.svg"); err == nil {
		t.Error("a drawing of nothing is left behind")
	}
}
