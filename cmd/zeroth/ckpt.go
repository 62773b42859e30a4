package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/internal/show"
	"zeroth/job/report"
	"zeroth/job/state"
)

const aboutCheckpoints = `List, inspect, verify, compare, convert and delete checkpoints.

DIR is one checkpoint (run1/ckpt/step-00001000), a folder of checkpoints (run1/ckpt)
or a run folder (run1); the latter two mean their newest checkpoint.

Progress goes to standard error, results to standard output, with --json as one JSON
value. After Ctrl-C nothing is half done.

Exit codes: 0 done; 1 failed, or found damage, a difference or a folder that must not
be deleted; 2 a mistake in the command line; 130 stopped by Ctrl-C.`

func (a *app) ckpt() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "ckpt",
		Short:      "List, verify, compare, convert and delete checkpoints",
		Long:       aboutCheckpoints,
		SuggestFor: []string{"checkpoint", "checkpoints", "export", "import", "convert", "verify", "diff", "prune"},
		Args:       knownCommand,
		RunE:       func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(a.ckptLs(), a.ckptInspect(), a.ckptVerify(), a.ckptDiff(), a.ckptExport(), a.ckptImport(), a.ckptPrune())
	return cmd
}

// folders accepts exactly n folders. The error shows the command's Use line.
func folders(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fmt.Errorf("%s given; usage: zeroth ckpt %s", count(len(args), "folder"), cmd.Use)
	}
}

// onlyFolders completes up to n folders.
func onlyFolders(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}

// onFolders returns a command that works on n folders.
func (a *app) onFolders(n int, use, short string, work func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: folders(n), RunE: a.do(work), ValidArgsFunction: onlyFolders(n),
		DisableFlagsInUseLine: true}
}

func jsonFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "print JSON")
}

// stepFlag declares --step.
func stepFlag(cmd *cobra.Command, p *string, without string) {
	cmd.Flags().StringVar(p, "step", "", "`checkpoint` of a run or a folder of checkpoints: latest, best or a step (default "+without+")")
	must(cmd.RegisterFlagCompletionFunc("step", cobra.FixedCompletions([]string{"latest", "best"}, cobra.ShellCompDirectiveNoFileComp)))
}

// openAt opens the checkpoint of a step, or the one that DIR means.
func openAt(dir, step string) (*checkpoint.Checkpoint, error) {
	dir, err := state.At(dir, step)
	if err != nil {
		return nil, err
	}
	return state.OpenCheckpoint(dir)
}

func toFlag(cmd *cobra.Command, p *string, usage string) {
	cmd.Flags().StringVar(p, "to", "", usage)
	must(cmd.MarkFlagRequired("to"))
	must(cmd.MarkFlagDirname("to"))
}

// writeJSON writes the result as JSON.
func (a *app) writeJSON(v any) error { return writeJSON(a.out, v) }

// long runs work that reads or writes total bytes, with a progress bar, until a signal
// stops it. speed describes the amount and the time.
func (a *app) long(cmd *cobra.Command, verb string, total int64, work func(ctx context.Context, done func(int64)) error) (speed string, err error) {
	ctx, release := a.untilSignal(cmd.Context(), func() { afterEcho(a.side()) }, nil)
	defer release()
	bar := report.NewBytes(a.side(), verb, total)
	err = work(ctx, bar.Add)
	speed = bar.Close()
	return speed, stopped(ctx, err)
}

// print writes a table that fits the width of the terminal.
func (a *app) print(t *show.Columns) error {
	return show.Print(a.out, t.Within(show.Width(a.out)))
}
