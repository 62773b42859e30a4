package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"zeroth/input"
	"zeroth/job/setup"
)

func (a *app) launch() *cobra.Command {
	var n, restarts, least int
	cmd := &cobra.Command{
		Use:   "launch -n PROCESSES -- train JOB.yaml ...",
		Short: "Train in several processes of this machine",
		Long: `Start so many processes of 'zeroth train' on this machine, as one world: the
ranks of the job are split evenly over them; or of 'zeroth bench collective' or
'zeroth doctor --cluster', which measure what is between them. Signals are passed on. When a process
is lost the others end by themselves, and what does not is ended. With --restarts
all of them are started again, so often at most, and go on from the last
checkpoint. With --min-ranks a process that ends two starts in a row is then left
out: its ranks' state is spread over the others, which keep the global batch by more
micro-batches. Where the job does not allow that it goes on with fewer still.

The exit code is 0 if all have finished, 2 if the job file is wrong, 75 if there is
a checkpoint to resume from, else that of the first process that failed.`,
		Example: `  zeroth launch -n 2 -- train examples/quickstart.yaml
  zeroth launch -n 2 -- bench collective
  zeroth launch -n 4 --restarts 3 -- train job.yaml --set parallel.ranks=8 --set checkpoint.every=100 --out run1
  zeroth launch -n 4 --restarts 5 --min-ranks 2 -- train job.yaml --set checkpoint.every=100 --out run1`,
		Args: cobra.ArbitraryArgs,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > mostProcesses || restarts < 0 {
				return input.BadInput(fmt.Errorf("-n %d --restarts %d: want 1 to %d processes, and at least 0 restarts", n, restarts, mostProcesses))
			}
			if cmd.Flags().Changed("min-ranks") && (least < 1 || restarts == 0) {
				return input.BadInput(fmt.Errorf("--min-ranks %d --restarts %d: want at least 1 rank, and restarts to leave others out", least, restarts))
			}
			l, err := launched(args)
			if err == nil && args[0] != "train" && restarts > 0 {
				err = fmt.Errorf("--restarts %d: %s has no checkpoint to go on from; leave it out", restarts, args[0])
			}
			if err != nil {
				return input.BadInput(err)
			}
			s := newSupervisor(n, l)
			s.restarts, s.least, s.out, s.errs = restarts, least, a.out, a.errs
			a.trains = args[0] == "train"
			defer a.by(func(os.Signal) {})() // the processes hear it
			return s.inFolder()
		}),
	}
	cmd.Flags().SetInterspersed(false) // what follows train is train's, with or without --
	cmd.Flags().IntVarP(&n, "processes", "n", 2, "`processes` to start")
	cmd.Flags().IntVar(&restarts, "restarts", 0, "`times` to start all again when one was lost")
	cmd.Flags().IntVar(&least, "min-ranks", 0, "go on without processes that are lost for good, with so many `ranks` at least (default all)")
	return cmd
}

// mostProcesses is how many a machine is asked to run.
const mostProcesses = 4096

// launchable are the commands that several processes can be of.
var launchable = []string{"train", "bench", "doctor"}

// command is what each process runs, with a folder that is the same at every start.
type command struct {
	args    []string // of zeroth
	resumes bool     // they say from where
	file    string   // the job, of train
	sets    []string // what they replace in it
	unnamed bool     // they train, and nobody has said in which folder
}

// launched is the command that launch is given.
func launched(args []string) (c command, err error) {
	if len(args) == 0 || !slices.Contains(launchable, args[0]) {
		return c, errors.New("launch starts zeroth train, bench or doctor, like: zeroth launch -n 2 -- train examples/quickstart.yaml")
	}
	train, flags, err := new(app).root().Find(args)
	if err != nil {
		return c, err
	}
	if err := train.ParseFlags(flags); err != nil {
		return c, fmt.Errorf("%w; flags of launch go before %s, as in: zeroth launch -n 2 %[2]s JOB.yaml", err, args[0])
	}
	if args[0] != "train" {
		return command{args: args}, nil
	}
	if err := oneJob(train, train.Flags().Args()); err != nil {
		return c, err
	}
	c.args, c.resumes, c.file = slices.Clone(args), train.Flags().Changed("resume"), train.Flags().Arg(0)
	if c.file == "-" {
		return c, errors.New("launch: every process reads the job file, and the standard input can be read once: give a file")
	}
	c.unnamed = !train.Flags().Changed("out")
	c.sets, err = train.Flags().GetStringArray("set")
	return c, err
}

// inFolder runs the world in a folder of its own, if it needs one and has none: it is
// made once, for all processes and starts.
func (s *supervisor) inFolder() error {
	if s.unnamed {
		own, undo := ownFolder(defaultFolder(s.file, time.Now()))
		defer undo()
		s.args = append(s.args, "--out", own)
	}
	return s.run()
}

// ranks is how many the job has in so many processes.
func (c command) ranks(processes int) (int, error) {
	job, err := setup.Here(processes, 0).Load(c.file, c.sets)
	if err != nil {
		return 0, err
	}
	return job.Parallel.Ranks, nil
}
