package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"zeroth/config"
	"zeroth/config/words"
	"zeroth/job/spec"

	"zeroth/job/jobtest"
)

// TestSchemaAcceptsJobs checks that every example, every goal and a run's own job file satisfy the
// schema.
func TestSchemaAcceptsJobs(t *testing.T) {
	s, jobs := config.SchemaJSON(t), map[string]string{}
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		jobs[file] = string(raw)
	}
	for _, g := range spec.Goals() {
		jobs["goal "+g.Name] = g.Text
	}
	jobtest.InFolder(t, jobtest.Least)
	for i, sets := range [][]string{nil, {"model.family=llama", "optimizer.type=sgd"}, {"zero.offload.optimizer=disk", "zero.offload.path=.", "parallel.memory=1GiB"}, {"checkpoint.keep={last: 2, best: val_loss}"}} {
		c, err := spec.Load("job.yaml", sets)
		if err != nil {
			t.Fatal(err)
		}
		jobs[fmt.Sprint("written ", i)] = string(c.YAML())
	}
	for _, key := range config.Keys() {
		k, _ := config.Explain(key)
		set := strings.Replace(words.Nest(key), "...", k.Example, 1)
		if jobs["example of "+key] = "{" + set + "}"; !strings.HasPrefix(key, "data.") {
			jobs["example of "+key] = "{data: null, " + set + "}"
		}
	}
	for name, text := range jobs {
		if why := config.Invalid(t, s, config.AsJSON(t, text), name); why != "" {
			t.Error(why)
		}
	}
}
