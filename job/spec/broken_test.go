package spec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/internal/input"
)

// TestBrokenJobs checks that every job file in testdata/broken fails with exactly the message in
// the file next to it.
func TestBrokenJobs(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "testdata/broken/gone.yaml")
	want := []string{"batch", "empty", "gone", "heads", "missing", "nan", "ranks", "stage", "type", "typo", "unreadable"}
	var names []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		names = append(names, name)
		t.Run(name, func(t *testing.T) {
			message, err := os.ReadFile(strings.TrimSuffix(file, ".yaml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			_, err = Load(file, nil)
			if err == nil {
				t.Fatal("taken")
			}
			if d := cmp.Diff(string(message), err.Error()+"\n"); d != "" {
				t.Errorf("message (-want +got):\n%s", d)
			}
			if !input.IsInput(err) {
				t.Error("not the user's to mend: the exit code would be 1")
			}
		})
	}
	slices.Sort(names)
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("job files (-want +are):\n%s", d)
	}
}
