package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"zeroth/input"
)

func (a *app) launch() *cobra.Command {
	var n, restarts int
	cmd := &cobra.Command{
		Use:   "launch -n PROCESSES -- train JOB.yaml ...",
		Short: "Train in several processes of this machine",
		Long: `Start so many processes of 'zeroth train' on this machine, as one world: the
ranks of the job are split evenly over them; or of 'zeroth bench collective' or
'zeroth doctor --cluster', which measure what is between them. Signals are passed on. When a process
is lost the others end by themselves, and what does not is ended. With --restarts
all of them are started again, so often at most, and go on from the last
checkpoint.

The exit code is 0 if all have finished, 2 if the job file is wrong, 75 if there is
a checkpoint to resume from, else that of the first process that failed.`,
		Example: `  zeroth launch -n 2 -- train examples/quickstart.yaml
  zeroth launch -n 2 -- bench collective
  zeroth launch -n 4 --restarts 3 -- train job.yaml --set parallel.ranks=8 --set checkpoint.every=100 --out run1`,
		Args: cobra.ArbitraryArgs,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > mostProcesses || restarts < 0 {
				return input.BadInput(fmt.Errorf("-n %d --restarts %d: want 1 to %d processes, and at least 0 restarts", n, restarts, mostProcesses))
			}
			args, resumes, err := launched(args)
			if err == nil && args[0] != "train" && restarts > 0 {
				err = fmt.Errorf("--restarts %d: %s has no checkpoint to go on from; leave it out", restarts, args[0])
			}
			if err != nil {
				return input.BadInput(err)
			}
			s := &supervisor{n: n, restarts: restarts, args: args, resumes: resumes, out: a.out, errs: a.errs}
			return s.run()
		}),
	}
	cmd.Flags().IntVarP(&n, "processes", "n", 2, "`processes` to start")
	cmd.Flags().IntVar(&restarts, "restarts", 0, "`times` to start all again when one was lost")
	return cmd
}

// mostProcesses is how many a machine is asked to run.
const mostProcesses = 4096

// launchable are the commands that several processes can be of.
var launchable = []string{"train", "bench", "doctor"}

// launched is the command of each process, with a folder that is the same at every
// start, and whether it says from where to go on.
func launched(args []string) (all []string, resumes bool, err error) {
	if len(args) == 0 || !slices.Contains(launchable, args[0]) {
		return nil, false, errors.New("launch starts zeroth train, bench or doctor, like: zeroth launch -n 2 -- train examples/quickstart.yaml")
	}
	train, flags, err := new(app).root().Find(args)
	if err != nil {
		return nil, false, err
	}
	if err := train.ParseFlags(flags); err != nil {
		return nil, false, err
	}
	if args[0] != "train" {
		return args, false, nil
	}
	if err := oneJob(train, train.Flags().Args()); err != nil {
		return nil, false, err
	}
	file := train.Flags().Arg(0)
	if file == "-" {
		return nil, false, errors.New("launch: every process reads the job file, and the standard input can be read once: give a file")
	}
	all = slices.Clone(args)
	if !train.Flags().Changed("out") {
		all = append(all, "--out", defaultFolder(file, time.Now()))
	}
	return all, train.Flags().Changed("resume"), nil
}
