//go:build unix

package job

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestRunFolderIsItsOwn checks that a resumed run writes through no link in its folder and blocks
// on no pipe there: it refuses both by name before it does anything.
func TestRunFolderIsItsOwn(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	run := func(steps string) error {
		return Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=1", "checkpoint.keep=9", "train.steps="+steps), Options{Out: "run", Resume: "latest", Observer: &heard{}})
	}
	if err := run("2"); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "victim", "precious")
	if err := os.MkdirAll("victims", 0o777); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "victims/config.json", "precious")
	link := func(to string) func(string) error {
		return func(name string) error { return os.Symlink(to, name) }
	}
	pipe := func(name string) error { return syscall.Mkfifo(name, 0o600) }
	for _, c := range []struct {
		name string
		put  func(string) error
		what string
	}{
		{"job.yaml", link("../victim"), "a link"}, {"metrics.jsonl", link("../victim"), "a link"}, {"loss.svg", link("../victim"), "a link"},
		{"job.yaml", pipe, "a pipe"}, {"loss.svg", pipe, "a pipe"},
		{"model", link("../victims"), "a link"}, {"adapter", link("../victims"), "a link"}, {"flight", link("../victims"), "a link"},
		{"model/config.json", link("../../victim"), "a link"}, {"model/model.safetensors", pipe, "a pipe"}, {"model/model.safetensors.tmp", link("../../victim"), "a link"},
		{"model/additional_chat_templates", link("../../victims"), "a link"},
	} {
		before := everything(t, "run")
		path := "run/" + c.name
		_ = os.Rename(path, "aside") // if it is there
		if err := c.put(path); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- run("3") }()
		select {
		case err := <-done:
			if !input.IsInput(err) || !strings.Contains(err.Error(), path+": it is "+c.what) {
				t.Errorf("%s in the place of %s: %v", c.what, c.name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s in the place of %s is waited for", c.what, c.name)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		_ = os.Rename("aside", path)
		if after := everything(t, "run"); after != before {
			t.Errorf("%s in the place of %s: the folder has changed:\n%s\n%s", c.what, c.name, before, after)
		}
	}
	for _, name := range []string{"victim", "victims/config.json"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != "precious" {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	for _, name := range []string{"job.yaml.tmp", "metrics.jsonl.new", "loss.svg.tmp"} { // names that could be foreseen
		if err := os.Symlink("../victim", "run/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("3"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile("victim"); err != nil || string(text) != "precious" {
		t.Errorf("the victim is %q, %v", text, err)
	}
}

// tree is the names and contents in a folder.
func everything(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	var walk func(string)
	walk = func(dir string) {
		in, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range in {
			path := dir + "/" + e.Name()
			if e.IsDir() {
				walk(path)
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(path + "\n" + string(text))
		}
	}
	walk(folder)
	return all.String()
}
