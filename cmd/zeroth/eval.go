package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/input"
	"zeroth/job"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/state"
)

func (a *app) eval() *cobra.Command {
	var run string
	var sets []string
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "eval JOB.yaml --run FOLDER",
		Short: "Compute the loss and perplexity of a model on a job's data",
		Long: `Compute the loss and perplexity of a model on the validation data of a job, whole,
or with --all on all of its data. The model is the one that a run has written at
its end, or that of a Hugging Face folder; of a checkpoint 'zeroth ckpt export'
makes one. Of the job only data, model.context, the sizes of batches, ranks, device
and precision count.`,
		Example: `  zeroth eval examples/quickstart.yaml --run run1
  zeroth eval job.yaml --run ./Qwen3-0.6B --set 'data={text: ["test/*.txt"]}' --all`,
		Args: arguments(1, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			ctx, release := a.untilSignal(cmd.Context(), func() {}, nil)
			defer release()
			var e job.Evaluation
			c, err := evaluated(args[0], run, sets)
			if err == nil {
				e, err = job.Evaluate(ctx, c, all, a.note)
			}
			if err != nil {
				return stopped(ctx, ofRun(err, run))
			}
			return a.tellEvaluation(e, asJSON)
		}),
		ValidArgsFunction: completeJob,
	}
	f := cmd.Flags()
	f.StringVar(&run, "run", "", "`folder` of a run that has ended, or of a Hugging Face model")
	f.StringArrayVar(&sets, "set", nil, "`key=value` of the job that counts instead of the file's")
	f.BoolVar(&all, "all", false, "evaluate all of the data, not only what is held out")
	f.BoolVar(&asJSON, "json", false, "print a JSON object")
	must(cmd.MarkFlagRequired("run"))
	must(cmd.MarkFlagDirname("run"))
	return cmd
}

// apart are the sections of a job that an evaluation has no use for: what is trained, and how.
var apart = []string{"train.lora", "train.freeze", "train.early_stop", "optimizer", "schedule", "checkpoint", "sample"}

// evaluated is the job with the model of a folder in place of its own.
func evaluated(path, run string, sets []string) (*config.Config, error) {
	folder, err := modelFolder(run)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--run %s: %w", run, err))
	}
	for _, key := range append(config.Shape(), apart...) {
		sets = append(sets, key+"=null")
	}
	return setup.Here(1, 0).Load(path, append(sets, fmt.Sprintf("%s%q", setFrom, folder)))
}

// setFrom is how an evaluation gives the job its model.
const setFrom = "model.from="

// modelFolder is the folder of the model that --run means.
func modelFolder(run string) (string, error) {
	folders := []string{filepath.Join(run, state.ModelDir), run}
	for _, folder := range folders {
		if input.Exists(filepath.Join(folder, "config.json")) {
			return folder, nil
		}
	}
	for _, folder := range folders {
		if input.Exists(filepath.Join(folder, "model.safetensors")) {
			return "", fmt.Errorf("%s has parameters and no config.json that describes their model, as is so for a module of a program's own: eval cannot build that", folder)
		}
	}
	return "", errors.New("there is no config.json in it or in its folder model; want the folder of a run that has ended or of a Hugging Face model; 'zeroth ckpt export' makes one of a checkpoint")
}

// ofRun blames --run, which the user has given, for what is wrong with its model.
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

func (a *app) tellEvaluation(e job.Evaluation, asJSON bool) error {
	speed := float64(e.Tokens) / e.Seconds
	if asJSON {
		return json.NewEncoder(a.out).Encode(map[string]any{"loss": e.Loss, "perplexity": e.Perplexity(), "tokens": e.Tokens,
			"seconds": e.Seconds, "tokens_per_second": speed})
	}
	a.say("loss        %.6f nats a token\nperplexity  %.4f\ntokens      %d in %.1f s, %.0f tokens/s\n", e.Loss, e.Perplexity(), e.Tokens, e.Seconds, speed)
	return nil
}
