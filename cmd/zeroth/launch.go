package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/state"
)

func (a *app) launch() *cobra.Command {
	var n, restarts, minRanks int
	var hostList, hostfile, ssh, addr string
	var copied bool
	var env []string
	cmd := &cobra.Command{
		Use:   "launch -n PROCESSES -- train JOB.yaml ...",
		Short: "Train in several processes on this machine or on hosts",
		Long: `Start several processes of 'zeroth train' and divide the job's ranks evenly among
them; or start 'zeroth bench collective' or 'zeroth doctor --cluster', which
measure the connections between processes. Signals are forwarded. When a
process is lost, the others end.

With --hosts or --hostfile, ssh starts the processes on those hosts, in the folder
of the same name: it must contain the job, its data and the run folder, as on a
shared file system. If checkpoints go to object storage, copies of the job and the
data are enough. Each host needs this program at the same path; --copy copies it.
launch generates the token with which processes authenticate each other, and passes
it in no argument. With --min-ranks, a restart continues without a lost host, and
uses it again when it answers; without --min-ranks, a restart waits for the host.

With --restarts, all processes are restarted after one was lost, at most that many
times, and continue from the last checkpoint. With --min-ranks, a process that fails
twice in a row is dropped: the others take over its ranks' state, and compute more
micro-batches so that the global batch stays the same.

Exit codes: 0 all processes finished, 2 the job file is wrong, 75 there is a
checkpoint to resume from; otherwise that of the first process that failed.`,
		Example: `  zeroth launch -n 2 -- train examples/quickstart.yaml
  zeroth launch -n 2 -- bench collective
  zeroth launch -n 4 --restarts 3 -- train job.yaml --set parallel.ranks=8 --set checkpoint.every=100 --out run1
  zeroth launch -n 4 --restarts 5 --min-ranks 2 -- train job.yaml --set checkpoint.every=100 --out run1
  zeroth launch --hosts node1,node2:4 -- train job.yaml
  zeroth launch --hostfile hosts --copy --ssh="ssh -p 2222" -- train job.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > launch.MaxProcesses || restarts < 0 {
				return input.BadInput(fmt.Errorf("-n %d --restarts %d; want 1 to %d processes and at least 0 restarts", n, restarts, launch.MaxProcesses))
			}
			if cmd.Flags().Changed("min-ranks") && (minRanks < 1 || restarts == 0) {
				return input.BadInput(fmt.Errorf("--min-ranks %d --restarts %d; want at least 1 rank, and at least 1 restart that may leave processes out", minRanks, restarts))
			}
			if cmd.Flags().Changed("ssh") && len(args) > 0 && !slices.Contains(launchable, args[0]) {
				return input.BadInput(fmt.Errorf("%q is not a command to launch; if it is for --ssh, want --ssh=%[1]q", args[0]))
			}
			l, err := launched(args)
			if err == nil && args[0] != "train" && restarts > 0 {
				err = fmt.Errorf("--restarts %d: %s has no checkpoint to continue from; leave it out", restarts, args[0])
			}
			if err != nil {
				return input.BadInput(err)
			}
			var hosts launch.Remote
			if hostList != "" || hostfile != "" {
				if !cmd.Flags().Changed("processes") {
					n = 1
				}
				hosts, err = a.reach(hostList, hostfile, n, ssh, addr, copied, env)
				n = hosts.Processes()
			} else if copied || addr != "" || cmd.Flags().Changed("ssh") || env != nil {
				err = input.BadInput(errors.New("--copy, --ssh, --addr and --env are about hosts; want --hosts or --hostfile, too"))
			}
			if err != nil {
				return err
			}
			a.open = 64 + 8*n
			s := launch.New(n, hosts)
			s.Args, s.Resumes, s.Ranks = l.args, l.resumes, l.ranks
			s.Survives, s.Joins = func() bool { return l.job().Faults.Survive }, func() bool { return l.job().Faults.Join }
			s.Saved = func() bool { return l.saved() } // in the folder that follows
			s.Restarts, s.MinRanks, s.Out, s.Errs = restarts, minRanks, a.out, a.errs
			if l.unnamed { // one run folder for all processes and restarts
				own, undo := ownFolder(defaultFolder(l.file, time.Now()))
				defer undo()
				s.Args, l.out = append(s.Args, "--out", own), own
			}
			a.trains = args[0] == "train"
			defer onSignals(s.Pass, append(slices.Clone(launch.DumpSignals), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)...)()
			defer a.handle(func(os.Signal) {})() // from here on the supervisor forwards them
			return s.Run()
		}),
	}
	cmd.Flags().SetInterspersed(false) // flags after train belong to train, with or without --
	n = 2
	cmd.Flags().VarP(decimal[int]{&n, strconv.Atoi}, "processes", "n", "number of `processes` to start; with --hosts, on each host without a number (default 1)")
	cmd.Flags().StringVar(&hostList, "hosts", "", "start the processes on these `hosts`, such as node1,user@node2:4")
	cmd.Flags().StringVar(&hostfile, "hostfile", "", "like --hosts, from a `file` with one host per line, as for DeepSpeed and MPI: node1 slots=4")
	cmd.Flags().StringVar(&ssh, "ssh", "ssh", "`command` that reaches a host, with its options")
	cmd.Flags().Lookup("ssh").NoOptDefVal = "ssh"
	cmd.Flags().StringVar(&addr, "addr", "", "name or address at which the hosts reach the first `host` (default its name)")
	cmd.Flags().BoolVar(&copied, "copy", false, "copy this program to hosts that do not have it, into .cache/zeroth in the home folder")
	cmd.Flags().StringSliceVar(&env, "env", nil, "`names` of variables to pass to hosts, in addition to ZEROTH_* and NCCL_*, such as HF_TOKEN,AWS_*")
	intVar(cmd.Flags(), &restarts, "restarts", 0, "how many `times` to restart all processes after one was lost")
	intVar(cmd.Flags(), &minRanks, "min-ranks", 0, "continue without lost processes, with at least this many `ranks` (default all)")
	return cmd
}

// reach returns how to reach the hosts that flags name.
func (a *app) reach(list, file string, slots int, ssh, addr string, copied bool, env []string) (launch.Remote, error) {
	var hosts []launch.Host
	var err error
	switch {
	case list != "" && file != "":
		err = errors.New("--hosts and --hostfile name the hosts; want one of them")
	case list != "":
		hosts, err = launch.ParseHosts(list, slots)
	default:
		hosts, err = launch.ReadHostfile(file, slots)
	}
	if err != nil {
		return launch.Remote{}, input.BadInput(err)
	}
	return launch.Reach(hosts, ssh, addr, copied, env, state.Version(), a.errs)
}

// launchable lists the commands that launch can start.
var launchable = []string{"train", "bench", "doctor"}

// command is the command that each process runs.
type command struct {
	args    []string // of zeroth
	resumes bool     // args contain --resume
	file    string   // train: the job file
	sets    []string // train: values of --set
	out     string   // train: value of --out
	unnamed bool     // train: there is no --out
}

// launched parses the command to launch.
func launched(args []string) (c command, err error) {
	if len(args) == 0 || !slices.Contains(launchable, args[0]) {
		return c, errors.New("want train, bench or doctor to launch, such as: zeroth launch -n 2 -- train examples/quickstart.yaml")
	}
	train, flags, err := new(app).root().Find(args)
	if err != nil {
		return c, err
	}
	if err := train.ParseFlags(flags); err != nil {
		return c, fmt.Errorf("%w; write launch's own flags before %s: zeroth launch -n 2 %[2]s JOB.yaml", err, args[0])
	}
	if args[0] != "train" {
		return command{args: args}, nil
	}
	if err := oneJob(train, train.Flags().Args()); err != nil {
		return c, err
	}
	c.args, c.resumes, c.file = slices.Clone(args), train.Flags().Changed("resume"), train.Flags().Arg(0)
	if c.file == "-" {
		return c, errors.New("every process reads the job file, so it cannot be standard input; want a file")
	}
	c.unnamed, c.out = !train.Flags().Changed("out"), train.Flags().Lookup("out").Value.String()
	c.sets, err = train.Flags().GetStringArray("set")
	return c, err
}

// agent returns the command that launch runs on other hosts, one for each process.
func (a *app) agent() *cobra.Command {
	return &cobra.Command{
		Use:    "agent",
		Short:  "Run a process of a launch on this host",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: a.do(func(*cobra.Command, []string) error {
			defer a.handle(func(os.Signal) {})() // signals come through the input
			return launch.Agent(os.Stdin, state.Version())
		}),
	}
}

// job returns the job of train, an empty one if there is none or it cannot be loaded, which the processes report.
func (c command) job() *spec.Job {
	if c.file != "" {
		if job, err := setup.ThisMachine(1, 0).Load(c.file, c.sets); err == nil {
			return job
		}
	}
	return new(spec.Job)
}

// saved reports whether there is a checkpoint to continue from.
func (c command) saved() bool {
	job := c.job()
	if !setup.Saves(job) {
		return false
	}
	_, err := checkpoint.Resolve(cmp.Or(job.Checkpoint.Dir, filepath.Join(c.out, state.CheckpointFolder)), "latest")
	return err == nil
}

// ranks returns the number of ranks that the job has in a number of processes.
func (c command) ranks(processes int) (int, error) {
	job, err := setup.ThisMachine(processes, 0).Load(c.file, c.sets)
	if err != nil {
		return 0, err
	}
	return job.Parallel.Ranks, nil
}
