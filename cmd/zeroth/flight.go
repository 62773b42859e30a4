package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/collective/flight"
	"zeroth/internal/input"
	"zeroth/internal/launch"
)

func (a *app) flight() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "flight RUN | FILE...",
		Short: "Find where ranks diverged, from their last operations",
		Long: `Every rank records its last 4,096 collective operations. They are dumped to the
folder flight of the run folder, one file per rank, when a run fails because a
rank was lost, stalled or diverged, and when any process gets SIGUSR1 (training
then continues). This command compares the dumps and reports operations that a rank
did not reach, and ranks that called different ones. Ranks of a running job are
dumped at different moments, so only a rank that has waited for more than 10 s
counts as stuck.

RUN is a run folder or its folder of dumps; files may come from several hosts.
Limits: 32 MiB per dump, 2 GiB and 65,536 files in all.

Exit codes: 0 ranks agree or are moving, 1 ranks diverged, 2 a file is not a dump.`,
		Example: `  zeroth flight run1
  zeroth flight --json node0/rank-0.json node1/rank-1.json`,
		Args: arguments(1, math.MaxInt),
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			files, err := dumpFiles(args)
			if err != nil {
				return input.BadInput(err)
			}
			dumps, err := flight.Read(files)
			if err != nil {
				return input.BadInput(err)
			}
			r, err := flight.Merge(dumps)
			if err != nil {
				return input.BadInput(err)
			}
			if err := a.printFlight(r, asJSON); err != nil || !r.Diverged {
				return err
			}
			return errFound
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the report as JSON")
	return cmd
}

func (a *app) printFlight(r *flight.Report, asJSON bool) error {
	if asJSON {
		return a.writeJSON(r)
	}
	var text strings.Builder
	r.Text(&text)
	a.say("%s", text.String())
	return nil
}

// dumpFiles returns the dumps that arguments name: files, or those in folders.
func dumpFiles(args []string) (files []string, err error) {
	var wrong []error
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			files = append(files, arg) // reading it will report what is wrong
			continue
		}
		found, err := filepath.Glob(filepath.Join(escapeGlob(arg), "rank-*.json"))
		if err == nil && found == nil {
			found, err = filepath.Glob(filepath.Join(escapeGlob(arg), flight.Folder, "rank-*.json"))
		}
		if err == nil && found == nil {
			err = errors.New("no dumps in it or in its folder " + flight.Folder + "; a run writes them when a rank is lost, and on SIGUSR1")
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", arg, err))
		}
		files = append(files, found...)
	}
	return files, errors.Join(wrong...)
}

// escapeGlob returns a pattern that matches only path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// whenAsked returns a channel that receives each signal that asks for dumps, until done is called.
func whenAsked() (asked chan struct{}, done func()) {
	asked = make(chan struct{})
	over := make(chan struct{})
	if len(launch.DumpSignals) > 0 {
		signal.Notify(make(chan os.Signal, 1), launch.DumpSignals...) // for ever: a late one must not kill the process
	}
	end := onSignals(func(os.Signal) {
		select {
		case asked <- struct{}{}:
		case <-over:
		}
	}, launch.DumpSignals...)
	return asked, func() { close(over); end() }
}
