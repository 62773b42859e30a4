package spec

import (
	"errors"
	"testing"
	"zeroth/config"

	"github.com/google/go-cmp/cmp"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/job/jobtest"
)

// TestKeepProblems checks that problems of a retention rule are reported at the rule's place.
func TestKeepProblems(t *testing.T) {
	for _, yaml := range []string{
		"keep: 0",
		"keep: all",
		"keep: [3]",
		"keep: {}",
		"keep: {last: 2, evry_steps: 10}",
		"keep: {last: 2, every_steps: -10}",
		"keep: {last: 2, best: lost}",
		"keep: {last: x}",
		"keep: {best: val_loss}",
		"async: yes",
		"compress: zip",
		"on_error: ignore",
		"evry: 3",
	} {
		jobtest.InFolder(t, "data: {text: [a.txt], validation: 0}\ncheckpoint: {"+yaml+"}\n")
		_, err := Load("job.yaml", nil)
		said.Same(t, yaml, err)
	}
	_, err := Load("job.yaml", []string{"checkpoint=null", "checkpoint.keep={last: 2, best: lost}"})
	said.Same(t, "a set", err)
}

// TestKeepRoundTrip checks that rules of retention are written so that they read back unchanged.
func TestKeepRoundTrip(t *testing.T) {
	for yaml, want := range map[string]checkpoint.Keep{
		"5":                     {Last: 5},
		"{last: 5}":             {Last: 5},
		"{every_steps: 1000}":   {Every: 1000},
		"{best: loss, last: 1}": {Last: 1, Best: "loss"},
		"{last: 3, every_steps: 1000, best: val_loss}": {Last: 3, Every: 1000, Best: "val_loss"},
	} {
		jobtest.InFolder(t, jobtest.Least+"checkpoint: {keep: "+yaml+"}\n")
		c := mustLoad(t)
		jobtest.Write(t, "job.yaml", string(c.YAML()))
		again := mustLoad(t)
		if d := cmp.Diff(want, c.Checkpoint.Keep) + cmp.Diff(c, again, equal); d != "" {
			t.Errorf("%s (-want +got):\n%s", yaml, d)
		}
		k, err := config.ParseKeep(yaml)
		if err != nil || k != want {
			t.Errorf("ParseKeep %s: %+v, %v", yaml, k, err)
		}
	}
	// A rule may be set alone.
	jobtest.InFolder(t, jobtest.Least+"checkpoint: {keep: {last: 2}}\n")
	if c := mustLoad(t, "checkpoint.keep.every_steps=50"); c.Checkpoint.Keep != (checkpoint.Keep{Last: 2, Every: 50}) {
		t.Errorf("got %+v", c.Checkpoint.Keep)
	}
	for _, s := range []string{"", "{", "- 3", "3\n---\n4", "{last: 0}"} {
		if k, err := config.ParseKeep(s); err == nil || !input.IsInput(err) || errors.Unwrap(err) == nil {
			t.Errorf("ParseKeep %q: %+v, %v", s, k, err)
		}
	}
}
