package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/bench"
	"zeroth/job/spec"
)

// comparing holds the flags of bench parallel.
type comparing struct {
	file           string
	sets, ways     []string
	steps          int
	machine        string
	json, markdown bool
}

func (a *app) benchParallel() *cobra.Command {
	var o comparing
	cmd := &cobra.Command{
		Use:   "parallel JOB.yaml",
		Short: "Compare all ways to train a job on several ranks",
		Long: `Train a job for a few steps with each kind of parallelism, and compare tokens
per second, memory, bytes sent and time spent waiting, each with its prediction by
'zeroth plan --machine here'. All ways have the job's model, ranks and global batch:

  master            one rank gathers the gradients, updates and sends parameters back
  ddp               every rank stores all state (ZeRO stage 0)
  zero1 zero2 zero3 ZeRO stages 1, 2 and 3
  hybrid            stage 3 with two replicas of the shards
  tensor            ranks divide the matrices
  context           ranks divide the sequences
  expert            ranks divide the experts of a mixture
  gpipe 1f1b interleaved1f1b zbh1
                    ranks divide the layers: the schedules of a pipeline

The last seven use as many ranks as the job allows; the others shard the optimizer
state (stage 1). Ways that the job does not allow are listed with the reason.

The ways run in turns, three times each, as 'zeroth train' in a temporary folder. Figures
are medians without the first two steps of a run, and the spread is the difference
between the fastest and the slowest turn. Ways whose speeds differ less are equally
fast. Memory and bytes are those of the rank with the most. Waiting is the share of a
step in which a rank communicates without computing, or is idle. All
ways must learn the same: the last column is the largest difference of the losses from
those of the first way, caused by a different order of sums.`,
		Example: `  zeroth bench parallel examples/quickstart.yaml
  zeroth bench parallel examples/quickstart.yaml --ways ddp,zero1,zero3 --set parallel.ranks=2 --steps 10
  zeroth bench parallel examples/quickstart.yaml --markdown > table.md`,
		Args: arguments(1, 1),
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			return a.runParallel(cmd.Context(), &o)
		}),
		ValidArgsFunction: completeJob,
	}
	f := cmd.Flags()
	setsFlag(cmd, &o.sets)
	f.StringSliceVar(&o.ways, "ways", nil, "`names` of the ways to compare, such as ddp,zero1 (default all)")
	intVar(f, &o.steps, "steps", 5, "steps to measure in a turn, after two that do not count")
	f.StringVar(&o.machine, "machine", "here", "simulate the step time on: here, "+strings.Join(forecast.HardwareNames(), ", ")+", or a `file`")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	must(cmd.RegisterFlagCompletionFunc("ways", oneOf(bench.Ways()...)))
	must(cmd.RegisterFlagCompletionFunc("machine", wordsOrFile(append([]string{"here"}, forecast.HardwareNames()...)...)))
	return cmd
}

// check reports all invalid flags at once.
func (o *comparing) check() (hardware *forecast.Hardware, err error) {
	if o.ways == nil {
		o.ways = bench.Ways()
	}
	var wrong input.Problems
	for _, name := range o.ways {
		wrong.If(!slices.Contains(bench.Ways(), name), "--ways: unknown way %q; want one or more of %s", name, strings.Join(bench.Ways(), ", "))
	}
	wrong.If(o.steps < 1 || o.steps > 1000, "--steps %d; want 1 to 1000", o.steps)
	wrong.If(o.file == "-", "the job is read once for each way, so it cannot be standard input; want a file")
	if o.machine != "here" {
		hardware, err = openHardware(o.machine, forecast.Machine{})
	}
	return hardware, append(wrong, err).Err()
}

// runParallel compares the ways and prints the results.
func (a *app) runParallel(ctx context.Context, o *comparing) error {
	hardware, err := o.check()
	if err != nil {
		return err
	}
	var late *time.Timer // a step may take long
	ctx, release := a.untilSignal(ctx, func() { late = time.AfterFunc(patientWrite, func() { quit(exitStopped) }) }, nil)
	defer func() {
		release()
		if late != nil {
			late.Stop()
		}
	}()
	progress, erase := a.showProgress(5 * time.Second)
	load := func(sets []string) (*spec.Job, error) {
		return setup.ThisMachine(1, 0).Load(o.file, slices.Concat(o.sets, sets))
	}
	x, err := bench.Compare(ctx, load, o.ways, o.steps, hardware, progress)
	if erase(); x == nil || ctx.Err() != nil {
		return stopped(ctx, err)
	}
	show := func() error { return x.Table(a.out, o.markdown) }
	if o.json {
		show = func() error { return a.writeJSON(x) }
	}
	return cmp.Or(err, show(), found(x.Ran()))
}
