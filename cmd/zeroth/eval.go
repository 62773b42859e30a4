package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/spec"
	"zeroth/job/state"
)

func (a *app) eval() *cobra.Command {
	var run, step string
	var sets []string
	var o job.Evaluating
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "eval JOB.yaml --run FOLDER",
		Short: "Compute a model's loss and perplexity on a job's data",
		Long: `Compute the loss and perplexity of a model on all validation data of a job, or with
--all on all of its data. The model is that of a run, a checkpoint or a Hugging Face
folder, as for 'zeroth sample'. Only the job's data, model.context, batch sizes, ranks, device
and precision are used.

Texts and documents are read in windows of model.context tokens, and longer documents
are cut (data.too_long). With --stride, windows overlap and nothing is cut: each token
is predicted from at least model.context minus stride tokens before it, as in Hugging
Face's guide to perplexity.`,
		Example: `  zeroth eval examples/quickstart.yaml --run run1
  zeroth eval job.yaml --run ./Qwen3-0.6B --set 'data={text: ["test/*.txt"]}' --all
  zeroth eval job.yaml --run run1 --step best --stride 256`,
		Args: arguments(1, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			ctx, release := a.untilSignal(cmd.Context(), func() {}, nil)
			defer release()
			if o.Stride < 0 {
				return input.BadInput(fmt.Errorf("--stride %d; want at least 0, where 0 is model.context", o.Stride))
			}
			var e job.Evaluation
			c, err := (*spec.Job)(nil), error(nil)
			if run, err = a.local(ctx, run, hub.Weights); err == nil {
				c, o.Model, err = a.evaluated(ctx, args[0], run, step, sets)
			}
			if o.Model != nil {
				defer o.Model.Close()
			}
			if err == nil {
				e, err = job.Evaluate(ctx, c, o, a.note)
			}
			if err != nil {
				return stopped(ctx, ofRun(err, run))
			}
			return a.printEvaluation(e, asJSON)
		}),
		ValidArgsFunction: completeJob,
	}
	f := cmd.Flags()
	f.StringVar(&run, "run", "", "`folder` of a run, a checkpoint or a Hugging Face model, hf://org/name, or s3://bucket/folder")
	stepFlag(cmd, &step, "its model")
	setsFlag(cmd, &sets)
	f.BoolVar(&o.All, "all", false, "evaluate all data, not only the validation data")
	intVar(f, &o.Stride, "stride", 0, "`tokens` from one window to the next; each window predicts only tokens that no earlier one predicted (default model.context)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	must(cmd.MarkFlagRequired("run"))
	must(cmd.MarkFlagDirname("run"))
	return cmd
}

// trainingOnly lists the keys of a job that an evaluation ignores.
var trainingOnly = []string{"model.adapters", "train.lora", "train.freeze", "train.early_stop", "train.final_model", "train.eval_every", "optimizer", "schedule", "checkpoint", "sample"}

// evaluated returns the job with the model of a folder instead of its own, and that model.
func (a *app) evaluated(ctx context.Context, path, run, step string, sets []string) (*spec.Job, *generate.Source, error) {
	src, err := generate.Open(run, step, a.note)
	if err != nil {
		return nil, nil, noConfig(run, err)
	}
	for _, key := range append(config.Shape(), trainingOnly...) {
		sets = append(sets, key+"=null")
	}
	c, err := a.machine(ctx, 1, 0).Load(path, append(sets, fmt.Sprintf("%s%q", setFrom, src.Folder)))
	return c, src, err
}

// setFrom begins the setting that gives a job the model to evaluate.
const setFrom = "model.from="

// noConfig explains why eval cannot use a folder whose model nothing describes.
func noConfig(run string, err error) error {
	for _, folder := range []string{filepath.Join(run, state.ModelDir), run} {
		if !input.Exists(filepath.Join(folder, "config.json")) && input.Exists(filepath.Join(folder, "model.safetensors")) {
			return input.BadInput(fmt.Errorf("--run %s: %s has parameters, but no config.json that describes the model (a program's network has none): evaluate it with the program's own eval", run, folder))
		}
	}
	return err
}

// ofRun attributes problems with the model to --run, which the user gave.
func ofRun(err error, run string) error {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return err
	}
	problems = slices.Clone(problems)
	for i, p := range problems {
		if !strings.HasPrefix(p.At, "--set "+setFrom) {
			continue
		}
		if problems[i].At = "--run " + run; p.Key == "model.from" {
			problems[i].Key = ""
		}
	}
	return problems
}

func (a *app) printEvaluation(e job.Evaluation, asJSON bool) error {
	speed := float64(e.Tokens) / e.Seconds
	if asJSON {
		return json.NewEncoder(a.out).Encode(map[string]any{"loss": e.Loss, "perplexity": e.Perplexity(), "tokens": e.Tokens,
			"seconds": e.Seconds, "tokens_per_second": speed})
	}
	a.say("loss        %.6f nats per token\nperplexity  %.4f\ntokens      %d in %.1f s, %.0f tokens/s\n", e.Loss, e.Perplexity(), e.Tokens, e.Seconds, speed)
	return nil
}
