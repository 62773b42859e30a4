package job

import (
	"os"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
)

// TestJobsThatAreNoFiles checks that only regular files are read, without blocking on others.
func TestJobsThatAreNoFiles(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	jobtest.Pipe(t, "pipe")
	if err := os.Symlink("job.yaml", "link.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := spec.Load("link.yaml", nil); err != nil {
		t.Errorf("a link to a job: %v", err)
	}
	for path, want := range map[string]string{
		"/dev/zero": "it is a device, not a regular file", "pipe": "it is a pipe, not a regular file", ".": "it is a folder, not a regular file",
	} {
		loads := map[string]func() error{
			"a job":     func() error { _, err := spec.Load(path, nil); return err },
			"a machine": func() error { _, err := forecast.OpenHardware(path); return err },
			"a model":   func() error { _, err := spec.Draft("", []string{"model.from=" + path}); return err },
		}
		for of, load := range loads {
			says := want
			if of == "a model" && path == "." {
				says = "config.json"
			}
			if err := jobtest.Soon(t, load); err == nil || !strings.Contains(err.Error(), says) || !input.IsInput(err) {
				t.Errorf("%s as %s: %v", path, of, err)
			}
		}
	}
}
