package spec

import (
	"errors"
	"strings"
	"testing"
	"zeroth/config"

	"github.com/google/go-cmp/cmp"

	"zeroth/checkpoint"
	"zeroth/input"
	"zeroth/job/jobtest"
)

// TestKeepProblems checks that problems of a retention rule are reported at the rule's place.
func TestKeepProblems(t *testing.T) {
	const want = "; want a number of checkpoints, or {last: 3, every_steps: 1000, best: val_loss}"
	for yaml, problem := range map[string]string{
		"keep: 0":                           "2:20: checkpoint.keep: 0 is less than 1" + want,
		"keep: all":                         "2:20: checkpoint.keep: all is not a whole number" + want,
		"keep: [3]":                         "2:20: checkpoint.keep: a list is not a whole number" + want,
		"keep: {}":                          "2:20: checkpoint.keep: no rule is given" + want,
		"keep: {last: 2, evry_steps: 10}":   `2:30: checkpoint.keep: there is no rule "evry_steps"` + want,
		"keep: {last: 2, every_steps: -10}": "2:43: checkpoint.keep: every_steps: -10 is negative (want a whole number from 1 to 1000000000)" + want,
		"keep: {last: 2, best: lost}":       "2:36: checkpoint.keep: best: lost is not a valid value; did you mean loss? (want val_loss or loss)" + want,
		"keep: {last: x}":                   "2:27: checkpoint.keep: last: x is not a whole number (want a whole number from 1 to 1048576)" + want,
		"keep: {best: val_loss}":            "2:21: checkpoint.keep: keeping the best val_loss needs evaluations, but the job has none; want train.eval_every of at least 1 and data.validation above 0, or best: loss",
		"async: yes":                        "2:21: checkpoint.async: yes is neither true nor false; want true or false",
		"compress: zip":                     "2:24: checkpoint.compress: zip is not a valid value; want auto, always or never",
		"on_error: ignore":                  "2:24: checkpoint.on_error: ignore is not a valid value; want stop or continue",
		"evry: 3":                           "2:14: checkpoint.evry: unknown key; did you mean every?",
	} {
		jobtest.InFolder(t, "data: {text: [a.txt], validation: 0}\ncheckpoint: {"+yaml+"}\n")
		_, err := Load("job.yaml", nil)
		if err == nil || err.Error() != "job.yaml:"+problem {
			t.Errorf("%s:\n%v, want\n%s", yaml, err, "job.yaml:"+problem)
		}
	}
	_, err := Load("job.yaml", []string{"checkpoint=null", "checkpoint.keep={last: 2, best: lost}"})
	if err == nil || !strings.HasPrefix(err.Error(), "--set checkpoint.keep={last: 2, best: lost}: checkpoint.keep: best: lost is not a valid value") {
		t.Errorf("got %v", err)
	}
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
