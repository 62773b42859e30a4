// Package program is the command of programs that bring their own network, data or update rule: Main trains, evaluates,
// plans and fits the job of a file, as 'zeroth' does for jobs without a program.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/generate"
	"zeroth/job/report"
	"zeroth/job/spec"
)

// Main does what the program's arguments say, and exits with zeroth's exit codes.
func Main(o job.Options) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Command(ctx, o, os.Args[1:], os.Stdout)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(exitCode(err, interrupted))
}

const usage = `usage: PROGRAM train JOB.yaml [--set key=value]... [--out FOLDER] [--resume latest]
       PROGRAM plan JOB.yaml [--set key=value]...
       PROGRAM eval JOB.yaml --run FOLDER [--step best] [--set key=value]...
       PROGRAM fit JOB.yaml [--set key=value]... [--ranks N] [--memory 24GiB]`

// Command does what arguments say, and writes progress and results to out.
func Command(ctx context.Context, o job.Options, args []string, out io.Writer) error {
	p := own{&o}
	if len(args) < 2 {
		return input.BadInput(errors.New(usage))
	}
	var sets []string
	limits, memory, run, step := forecast.Limits{}, "", "", ""
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("set", "", func(s string) error { sets = append(sets, s); return nil })
	do := p.train
	switch args[0] {
	case "train":
		f.StringVar(&o.Out, "out", o.Out, "")
		f.StringVar(&o.Resume, "resume", o.Resume, "")
	case "plan":
		do = p.plan
	case "eval":
		f.StringVar(&run, "run", "", "")
		f.StringVar(&step, "step", "", "")
		do = func(ctx context.Context, file string, sets []string, out io.Writer) error {
			return p.eval(ctx, file, sets, run, step, out)
		}
	case "fit":
		f.IntVar(&limits.Ranks, "ranks", 0, "")
		f.StringVar(&memory, "memory", "", "")
		do = func(_ context.Context, file string, sets []string, out io.Writer) error {
			return p.fit(file, sets, limits, memory, out)
		}
	default:
		return input.BadInput(fmt.Errorf("there is no command %q\n%s", args[0], usage))
	}
	err := f.Parse(args[2:])
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("an argument too many: %s", f.Arg(0))
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("%w\n%s", err, usage))
	}
	return do(ctx, args[1], sets, out)
}

// own does the commands for a program's options.
type own struct{ *job.Options }

func (o own) train(ctx context.Context, file string, sets []string, out io.Writer) error {
	if o.Out == "" {
		return input.BadInput(errors.New("--out is missing: name the run folder"))
	}
	if o.Observer == nil {
		progress := report.NewProgress(out)
		defer progress.Close()
		o.Observer = progress
	}
	c, leave, err := o.Enter(ctx, file, sets)
	if err != nil {
		return err
	}
	defer leave()
	return job.Run(ctx, c, *o.Options)
}

func (o own) plan(_ context.Context, file string, sets []string, out io.Writer) error {
	c, err := setup.ThisMachine(1, 0).Load(file, sets)
	if err == nil {
		c, err = o.Complete(c)
	}
	if err != nil {
		return err
	}
	p, err := forecast.NewPlan(c, forecast.Machine{GPU: c.On() == "cuda"})
	if err != nil {
		return err
	}
	return p.Print(out)
}

// eval prints the loss and the metrics of a run's parameters.
func (o own) eval(ctx context.Context, file string, sets []string, run, step string, out io.Writer) error {
	if run == "" {
		return input.BadInput(errors.New("--run is missing: name the run folder or a checkpoint"))
	}
	c, err := setup.ThisMachine(1, 0).Load(file, sets)
	if err == nil {
		c, err = o.Complete(c)
	}
	if err != nil {
		return err
	}
	note := func(line string) { fmt.Fprintln(out, line) }
	src, err := generate.OpenOwn(run, step, spec.Network(c), note)
	if err != nil {
		return err
	}
	defer src.Close()
	e, err := job.Evaluate(ctx, c, job.Evaluating{Model: src}, note)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "loss %.6f\n", e.Loss)
	for i, name := range spec.Network(c).Metrics {
		fmt.Fprintf(out, "%s %.6f\n", name, e.Metrics[i])
	}
	return nil
}

// fit searches for settings that fit the job's ranks and their part of this machine's memory, or those that are given.
func (o own) fit(file string, sets []string, l forecast.Limits, memory string, out io.Writer) error {
	c, err := setup.ThisMachine(1, l.Ranks).Load(file, sets)
	if err == nil {
		c, err = o.Complete(c)
	}
	if err == nil && memory != "" {
		if l.Memory, err = config.ParseSize(memory); err != nil {
			err = input.BadInput(fmt.Errorf("--memory: %w", err))
		}
	}
	if err != nil {
		return err
	}
	if l.Ranks == 0 {
		l.Ranks = c.Parallel.Ranks
	}
	if l.GPU = c.On() == "cuda"; l.Memory == 0 {
		if l.Memory = machine.Machine().Free / int64(l.Ranks); l.GPU || l.Memory == 0 {
			return input.BadInput(errors.New("--memory is missing: name the bytes of a rank's device, such as 24GiB"))
		}
	}
	found, err := forecast.Search(c, l)
	if err != nil {
		return err
	}
	return found.Print(out)
}

// exitCode returns the exit code of the command zeroth for an error.
func exitCode(err error, interrupted bool) int {
	var stopped *job.Stopped
	var lost *job.Lost
	switch {
	case err == nil:
		return 0
	case input.IsInput(err):
		return 2
	case errors.As(err, new(job.Slow)):
		return 69
	case errors.As(err, &lost) && lost.Checkpoint != "", errors.As(err, &stopped) && stopped.Checkpoint != "" && !interrupted:
		return 75
	case interrupted:
		return 130
	}
	return 1
}
