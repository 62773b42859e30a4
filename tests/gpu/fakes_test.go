//go:build cuda

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zeroth/device/cuda/fake"
)

// TestTableOnTheFakes makes a folder as it is carried to a machine with a GPU and runs
// it, in small sizes, on the fakes: every part holds. Without one of its programs that
// part fails, and the others are there.
func TestTableOnTheFakes(t *testing.T) {
	if testing.Short() {
		t.Skip("two minutes: four programs are built, and all parts run")
	}
	env, err := fake.Environment()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++ here: the fake CUDA libraries cannot be compiled")
	}
	dir, out := t.TempDir(), t.TempDir()
	if text, err := exec.Command("../../scripts/build-gpu-tests", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if mb := bytesIn(t, dir) >> 20; mb > 40 {
		t.Errorf("the folder has %d MiB; it is to be carried", mb)
	}
	run := func(args ...string) (table string, code int) {
		cmd := exec.Command(filepath.Join(dir, "run.sh"), append([]string{"-small", "-limit", "15m"}, args...)...)
		cmd.Env = append(os.Environ(), append(env, "OUT="+out)...)
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, text)
		}
		raw, err := os.ReadFile(filepath.Join(out, "table.md"))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !strings.Contains(string(text), string(raw)) {
			t.Errorf("the table is printed otherwise than it is written:\n%s", text)
		}
		return string(raw), cmd.ProcessState.ExitCode()
	}
	table, code := run()
	if code != 0 || strings.Contains(table, "FAILED") {
		log, _ := os.ReadFile(filepath.Join(out, "log.txt")) // else there is the table
		t.Fatalf("exit code %d\n%s\n%s", code, table, log)
	}
	t.Logf("\n%s", table)
	for _, want := range []string{"Emulated GPU", "copies both ways at once", "load the kernels base", "product logits", "attention gradient", "on a GPU: ", "_dkv_", "embed_grad", "nothing is computed around the host's wait",
		"4 ranks, stage 3: state and losses", "4 ranks: losses", "simulated: ", "by NVML", "offloaded: 0.5", "PyTorch"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in the table", want)
		}
	}
	if exec.Command("python3", "-c", "import torch").Run() == nil {
		for _, how := range []string{"plain", "compiled", "fully_shard"} {
			if !regexp.MustCompile(`\| ` + how + ` +\| \d+ tokens/s, [^|]* loss \d[^|]*\|[^|]*\| zeroth is `).MatchString(table) {
				t.Errorf("no line of PyTorch %s in the table", how)
			}
		}
	}
	for _, name := range partNames() {
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(line string) bool { return strings.HasPrefix(line, "| "+name+" ") }) {
			t.Errorf("no part %s in the table", name)
		}
	}
	if err := os.Remove(filepath.Join(dir, "kernel.test")); err != nil {
		t.Fatal(err)
	}
	table, code = run("-only", "kernels,machine")
	if code != 1 || !strings.Contains(table, "FAILED") || !strings.Contains(table, "auto is cuda here") {
		t.Errorf("without kernel.test: exit code %d\n%s", code, table)
	}
}

func bytesIn(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}
