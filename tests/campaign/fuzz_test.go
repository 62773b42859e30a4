//go:build campaign && linux

package campaign

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	fuzzed     = regexp.MustCompile(`execs: (\d+)`)
)

// TestFuzz runs each fuzz target of the tree for the duration of -fuzzing, one after the other,
// on all processors. Failing inputs are saved in the testdata of the package, as by go test
// -fuzz.
func TestFuzz(t *testing.T) {
	if *fuzzing == 0 {
		t.Skip("-fuzzing says how long for each target")
	}
	counts := tallyOf(t.Name())
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range fuzzTarget.FindAllSubmatch(source, -1) {
			fuzz(t, counts, filepath.Dir(path), string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func fuzz(t *testing.T, counts *tally, folder, target string) {
	kind := strings.TrimPrefix(filepath.Clean(folder), "../../") + " " + target
	t.Run(strings.ReplaceAll(kind, " ", "."), func(t *testing.T) {
		cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+target+"$", "-fuzztime", fuzzing.String(), ".")
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		if err != nil {
			counts.count(kind, failure, 1)
			t.Errorf("%s: %v\n%s", kind, err, brief(string(out)))
		}
		if all := fuzzed.FindAllStringSubmatch(string(out), -1); len(all) > 0 {
			n, _ := strconv.Atoi(all[len(all)-1][1])
			counts.count(kind, "executions in "+fuzzing.String(), n)
		}
	})
}
