package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"zeroth/input"
	"zeroth/job/bench"
)

func (a *app) bench() *cobra.Command {
	var o benching
	cmd := &cobra.Command{
		Use:   "bench [" + strings.Join(bench.Groups(), "|") + "]...",
		Short: "Measure this machine's limits and what kernels reach of them",
		Long: `Measure this machine's own limits (multiply-adds in registers, passes over
memory) and what matrix products, attention, update rules, collectives, whole
training steps and the disk reach of them, and steps beside what 'zeroth plan
--machine here' simulates of them.

Each sample lies between two runs of a loop that only computes in registers. If
that is slower than 0.93 of its best, somebody else had a processor, and the
sample is dropped; shown are medians of the others. A line without one sample
left is marked noisy and is the best of what was dropped.

Of a GPU, in a zeroth that is built for them, 'gpu' measures copies, launches,
matrix products and kernels; the other groups are of the processors. Its sizes grow
with its speed, up to those of GPT-2 with 124 million parameters.

Several processes, which a launcher has started, measure collectives between them:
for each size the time, and the bytes that a rank has to send over it, beside a
stream of the same bytes over the same wire, taken in turns. Process 0 tells.

Shapes are those of a GPT of 10.8 million parameters (6 layers of width 384),
one of 29.5 million, and GPT-2 with 124 million.`,
		Example: `  zeroth bench gemm
  zeroth bench step --seconds 4
  zeroth launch -n 2 -- bench collective
  zeroth bench --json > bench.json
  zeroth bench gpu --write-machine gpu.json && zeroth plan job.yaml --machine gpu.json`,
		ValidArgs: bench.Groups(),
		Args: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if !slices.Contains(cmd.ValidArgs, arg) {
					return fmt.Errorf("there is no bench %q; want some of %s", arg, strings.Join(cmd.ValidArgs, ", "))
				}
			}
			return nil
		},
		RunE: a.do(func(cmd *cobra.Command, args []string) error {
			o.Groups = args
			return a.runBench(cmd.Context(), o)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "write JSON: rates in units a second, without prefixes")
	f.BoolVar(&o.markdown, "markdown", false, "write the table as Markdown")
	f.Float64Var(&o.Seconds, "seconds", 2, "most `time` for a line, and 15 times that for the steps of a precision")
	f.IntSliceVar(&o.Workers, "workers", nil, "`numbers` of workers of kernels (default 1 and all processors)")
	f.StringVar(&o.machineFile, "write-machine", "", "describe the GPU in a `file` for 'zeroth plan --machine'; with gpu")
	f.StringVar(&o.Dir, "dir", "", "`folder` on the disk that is measured (default that for temporary files)")
	o.in.options(f)
	must(cmd.MarkFlagDirname("dir"))
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	return cmd
}

// benching is what the flags of bench say.
type benching struct {
	bench.Options
	in             joining
	json, markdown bool
	machineFile    string
}

// runBench measures, here or between processes, and writes what that has found.
func (a *app) runBench(ctx context.Context, o benching) error {
	if err := checkBench(o.Options, o.machineFile); err != nil {
		return err
	}
	if err := o.in.check(); err != nil {
		return err
	}
	ctx, release := untilSignal(ctx, func() {})
	defer release()
	clean := tellProgress(a.side(), &o.Options)
	show := func(r *bench.Report) error {
		if o.json {
			return r.JSON(a.out)
		}
		return r.Table(a.out, o.markdown)
	}
	if o.in.World > 1 {
		return a.benchAcross(ctx, &o.in, o.Options, func(r *bench.Report) error { clean(); return show(r) })
	}
	report, err := bench.Run(ctx, o.Options)
	clean()
	err = errors.Join(err, show(report))
	if err == nil && o.machineFile != "" {
		err = writeFile(o.machineFile, func(w io.Writer) error { return writeJSON(w, report.Machine()) })
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return errStopped
	}
	return err
}

// checkBench refuses all flags that make no sense, at once.
func checkBench(o bench.Options, machineFile string) error {
	var wrong []error
	if machineFile != "" && !o.Asks("gpu") {
		wrong = append(wrong, errors.New("--write-machine describes a GPU; want it with the group gpu"))
	}
	if err := o.CheckGPU(); err != nil {
		wrong = append(wrong, err)
	}
	if !(o.Seconds > 0) || o.Seconds > 3600 {
		wrong = append(wrong, fmt.Errorf("--seconds %v; want more than 0 and at most 3600", o.Seconds))
	}
	if n := runtime.GOMAXPROCS(0); slices.ContainsFunc(o.Workers, func(w int) bool { return w < 1 || w > n }) {
		wrong = append(wrong, fmt.Errorf("--workers %v; want numbers from 1 to %d, the processors there are", o.Workers, n))
	}
	if info, err := os.Stat(o.Dir); o.Dir != "" && (err != nil || !info.IsDir()) {
		wrong = append(wrong, fmt.Errorf("--dir %s; want a folder that is there", o.Dir))
	}
	if len(wrong) == 0 {
		return nil
	}
	return input.BadInput(errors.Join(wrong...))
}

// tellProgress shows on a terminal what is being measured; clean takes that
// away again.
func tellProgress(w io.Writer, o *bench.Options) (clean func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return func() {}
	}
	const wipe = "\r\x1b[K"
	o.Tell = func(doing string) { fmt.Fprintf(f, "%smeasuring %s", wipe, doing) }
	return func() { fmt.Fprint(f, wipe) }
}
