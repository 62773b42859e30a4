package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"zeroth/job/report"
	"zeroth/job/show"
)

const aboutCheckpoints = `Look at, check, compare, convert and delete checkpoints.

DIR is a checkpoint's own folder (ckpt/step-00001000), a folder of checkpoints
(ckpt), or the folder of a run; of the latter two the newest checkpoint is meant.

Progress goes to the standard error, results to the standard output, with --json
as one JSON value. Ctrl-C ends long work early and leaves nothing half done.

Exit codes: 0 done, nothing wrong; 1 damage, a difference or something that is
not to be deleted was found, or the work failed; 2 a mistake in the command line;
130 stopped.`

func (a *app) ckpt() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "ckpt",
		Short:      "Look at, check, convert and delete checkpoints",
		Long:       aboutCheckpoints,
		SuggestFor: []string{"checkpoint", "checkpoints", "export", "import", "convert", "verify", "diff", "prune"},
		Args:       knownCommand,
		RunE:       func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(a.ckptLs(), a.ckptInspect(), a.ckptVerify(), a.ckptDiff(), a.ckptExport(), a.ckptImport(), a.ckptPrune())
	return cmd
}

// folders is the arguments of a command that takes so many folders, named by
// its Use line.
func folders(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fmt.Errorf("the form is: zeroth ckpt %s (%d folders were given)", cmd.Use, len(args))
	}
}

// onlyFolders completes folders, as many as the command takes.
func onlyFolders(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}

// onFolders is a command that works on so many folders.
func (a *app) onFolders(n int, use, short string, work func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: folders(n), RunE: a.do(work), ValidArgsFunction: onlyFolders(n),
		DisableFlagsInUseLine: true}
}

func jsonFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "write the result as JSON, for programs")
}

func toFlag(cmd *cobra.Command, p *string, usage string) {
	cmd.Flags().StringVar(p, "to", "", usage)
	must(cmd.MarkFlagRequired("to"))
	must(cmd.MarkFlagDirname("to"))
}

// writeJSON writes the result for programs. JSON leaves control characters
// beyond ASCII as they are; here they are escaped, as a terminal may obey them.
func (a *app) writeJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(a.out, show.Escape(b.String()))
	return err
}

// long does work over many bytes with a bar, until a signal. It returns what
// was done in which time.
func (a *app) long(cmd *cobra.Command, verb string, total int64, work func(ctx context.Context, done func(int64)) error) (speed string, err error) {
	ctx, release := a.untilSignal(cmd.Context(), func() { afterEcho(a.side()) }, nil)
	defer release()
	bar := report.NewBytes(a.side(), verb, total)
	err = work(ctx, bar.Add)
	speed = bar.Close()
	return speed, stopped(ctx, err)
}

// print writes a table as wide as the terminal has room for.
func (a *app) print(t *show.Columns) error {
	return show.Print(a.out, t.Within(show.Width(a.out)))
}
