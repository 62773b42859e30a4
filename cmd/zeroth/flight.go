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
	"zeroth/input"
)

func (a *app) flight() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "flight RUN | FILE...",
		Short: "Tell from what ranks did last where they parted",
		Long: `Every rank keeps its last 4,096 collective operations. They are dumped into the
folder flight of the run folder, a file for each rank, when a run ends because a
rank was lost, came late or did something else than the others, and when any process
gets SIGUSR1: all processes then dump, and training goes on. This command puts the
dumps of one start together and says which rank did not reach which operation, and who
differs in what. Ranks of a run that goes on are dumped at different moments: only who
has waited for longer than 10 s is taken to be stuck.

RUN is a run folder or its folder of dumps; files may come from several hosts. A dump
has at most 32 MiB, all together 2 GiB and 65,536 files.

The exit code is 0 if all ranks have done the same or are in motion, 1 if they parted,
2 if a file is no dump.`,
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
			if err := a.tellFlight(r, asJSON); err != nil || !r.Parted {
				return err
			}
			return errFound
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the report as JSON")
	return cmd
}

func (a *app) tellFlight(r *flight.Report, asJSON bool) error {
	if asJSON {
		return writeJSON(a.out, r)
	}
	var text strings.Builder
	r.Text(&text)
	a.say("%s", text.String())
	return nil
}

// dumpFiles are the dumps that arguments name: files, or those in folders.
func dumpFiles(args []string) (files []string, err error) {
	var wrong []error
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			files = append(files, arg) // what is wrong with it is said when it is read
			continue
		}
		found, err := filepath.Glob(filepath.Join(escapeGlob(arg), "rank-*.json"))
		if err == nil && found == nil {
			found, err = filepath.Glob(filepath.Join(escapeGlob(arg), flight.Folder, "rank-*.json"))
		}
		if err == nil && found == nil {
			err = errors.New("there are no dumps of ranks in it, nor in a folder " + flight.Folder + " there: a run writes them when a rank is lost, and on SIGUSR1")
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", arg, err))
		}
		files = append(files, found...)
	}
	return files, errors.Join(wrong...)
}

// escapeGlob is a path as a pattern that matches it alone.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// whenAsked is a channel on which each signal that asks for dumps arrives, unless one
// is waiting there; done gives the signals back.
func whenAsked() (asked chan struct{}, done func()) {
	signals := make(chan os.Signal, 1)
	asked = make(chan struct{})
	if len(dumpSignals) > 0 {
		signal.Notify(signals, dumpSignals...)
	}
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-signals:
				select {
				case asked <- struct{}{}:
				case <-over:
					return
				}
			case <-over:
				return
			}
		}
	}()
	return asked, func() {
		close(over) // signals stay caught: one that comes late must not kill the process
	}
}
