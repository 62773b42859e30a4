package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
)

// TestPathsAtHome checks that every key for a file or folder accepts ~, but not a home folder whose
// name could be a pattern.
func TestPathsAtHome(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	home := filepath.Join(t.TempDir(), "m[e]*")
	t.Setenv("HOME", home)
	for _, folder := range []string{"hf", "texts", "disk"} {
		if err := os.MkdirAll(filepath.Join(home, folder), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	jobtest.Write(t, filepath.Join(home, "texts", "a.txt"), strings.Repeat("to be or not to be, ", 100))
	jobtest.Write(t, filepath.Join(home, "hf", "config.json"), string(hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 8, Context: 8, Vocab: 16, Eps: 1e-5}}.ConfigJSON()))
	jobtest.Write(t, "job.yaml", "data: {text: [~/texts/*.txt]}\n")
	c := spectest.MustLoad(t, "checkpoint.dir=~/ck", "zero.offload={optimizer: disk, path: ~/disk}", "data.validation=0", "model.context=8")
	if c.Checkpoint.Dir != home+"/ck" || c.Zero.Offload.Path != home+"/disk" || c.Data.Text[0] != "${HOME}/texts/*.txt" {
		t.Errorf("%q %q %q", c.Checkpoint.Dir, c.Zero.Offload.Path, c.Data.Text)
	}
	if set, _, err := openInputs(setup.Planned(c), t.Context(), inputs{}, report.Observers{&heard{}}); err != nil {
		t.Errorf("%v", err)
	} else {
		_ = set.Close() // only read from
	}
	jobtest.Write(t, "job.yaml", "data: {tokens: [~/a.bin]}\nmodel: {from: ~/hf}\n")
	if _, err := spec.Load("job.yaml", nil); err == nil || strings.Contains(err.Error(), "model.from") || !strings.Contains(err.Error(), "no file matches "+home[:5]) {
		t.Errorf("%v", err)
	}
	for key, value := range map[string]string{"model.from": "~you/hf", "data.vocab": "~you/v", "checkpoint.dir": "~you/c", "data.text": "[~you/*.txt]"} {
		if _, err := spec.Load("job.yaml", []string{key + "=" + value}); err == nil || !strings.Contains(err.Error(), key+`: "`+strings.Trim(value, "[]")+`": the home folders of other users`) {
			t.Errorf("%s: %v", key, err)
		}
	}
}
