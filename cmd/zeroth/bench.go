package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/bench"
)

func (a *app) bench() *cobra.Command {
	var o benching
	cmd := &cobra.Command{
		Use:   "bench [" + strings.Join(bench.Groups(), "|") + "]...",
		Short: "Measure this machine's collectives, disk and GPU",
		Long: `Measure this machine: collectives between ranks or processes (collective), the disk
(disk) and a GPU (gpu). Without arguments, measure everything. The table shows medians.

If built for GPUs, 'gpu' measures copies, launches, matrix products and
kernels, in sizes that grow with the GPU's speed up to those of GPT-2 with 124
million parameters.

In several processes, started by a launcher, 'collective' measures collectives
between them: for each size, the time and the bytes per second that a rank sends,
compared with a plain stream of the same bytes over the same connection. The two
alternate, and process 0 reports.`,
		Example: `  zeroth bench disk --dir /data
  zeroth launch -n 2 -- bench collective
  zeroth bench --json > bench.json
  zeroth bench gpu --write-machine gpu.json && zeroth plan job.yaml --machine gpu.json`,
		ValidArgs: bench.Groups(),
		Args: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if !slices.Contains(cmd.ValidArgs, arg) {
					return fmt.Errorf("unknown group %q; want one or more of %s", arg, strings.Join(cmd.ValidArgs, ", "))
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
	f.BoolVar(&o.json, "json", false, "print JSON, with rates in units per second")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.Float64Var(&o.Seconds, "seconds", 2, "maximum `seconds` for each line")
	f.StringVar(&o.machineFile, "write-machine", "", "describe the GPU in a `file` for 'zeroth plan --machine'; with gpu")
	f.StringVar(&o.products, "products", "", "time algorithms for the matrix products in a `file`: a run's algorithms.json; with gpu and --write-algorithms")
	f.StringVar(&o.algorithms, "write-algorithms", "", "write the fastest algorithms to a `file` for parallel.algorithms; with --products")
	f.StringVar(&o.Dir, "dir", "", "`folder` on the disk to measure (default: that of temporary files)")
	o.in.addFlags(f)
	must(cmd.MarkFlagDirname("dir"))
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	cmd.AddCommand(a.benchParallel())
	return cmd
}

// benching holds the flags of bench.
type benching struct {
	bench.Options
	in             joining
	json, markdown bool
	machineFile    string
	products       string
	algorithms     string
}

// runBench measures, here or between processes, and prints the results.
func (a *app) runBench(ctx context.Context, o benching) error {
	if err := checkBench(&o); err != nil {
		return err
	}
	if err := o.in.check(); err != nil {
		return err
	}
	ctx, release := a.untilSignal(ctx, func() {}, nil)
	defer release()
	progress, erase := a.showProgress(0)
	o.Progress = func(doing string) { progress("measuring " + doing) }
	show := func(r *bench.Report) error {
		if o.json {
			return a.writeJSON(r)
		}
		return r.Table(a.out, o.markdown)
	}
	if o.in.World > 1 {
		return stopped(ctx, a.benchAcross(ctx, &o.in, o.Options, func(r *bench.Report) error { erase(); return show(r) }))
	}
	report, err := bench.Run(ctx, o.Options)
	erase()
	err = errors.Join(err, show(report))
	if err == nil && o.machineFile != "" {
		err = writeFile(o.machineFile, func(w io.Writer) error { return writeJSON(w, report.Machine()) })
	}
	if err == nil && o.algorithms != "" {
		err = writeFile(o.algorithms, func(w io.Writer) error { _, err := w.Write(report.Algorithms().JSON()); return err })
	}
	return stopped(ctx, err)
}

// readProducts reads the matrix products whose algorithms are timed.
func (o *benching) readProducts() error {
	if (o.products == "") != (o.algorithms == "") || o.products != "" && !o.Asks("gpu") {
		return errors.New("--products and --write-algorithms need each other and the group gpu: bench gpu --products runs/a/algorithms.json --write-algorithms fast.json")
	}
	if o.products == "" {
		return nil
	}
	text, err := input.Read(o.products, 4<<20)
	if err == nil {
		o.Products, err = setup.ParseAlgorithms(text)
	}
	if err != nil {
		return fmt.Errorf("--products %s: %w", o.products, err)
	}
	return nil
}

// checkBench reports all invalid flags at once.
func checkBench(o *benching) error {
	var wrong input.Problems
	wrong.If(o.machineFile != "" && !o.Asks("gpu"), "--write-machine describes a GPU; add the group gpu")
	wrong = append(wrong, o.readProducts(), o.CheckGPU())
	wrong.If(!(o.Seconds > 0) || o.Seconds > 3600, "--seconds %v; want more than 0 and at most 3600", o.Seconds)
	info, err := os.Stat(o.Dir)
	wrong.If(o.Dir != "" && (err != nil || !info.IsDir()), "--dir %s; want an existing folder", o.Dir)
	return wrong.Err()
}

// showProgress returns a function that shows the current activity on a terminal, and one that
// erases it. Without a terminal it prints at most one line per interval, or none if the interval
// is 0.
func (a *app) showProgress(every time.Duration) (progress func(doing string), erase func()) {
	f, ok := a.side().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		last := time.Time{}
		return func(doing string) {
			if now := time.Now(); every > 0 && now.Sub(last) >= every {
				last = now
				a.note(doing)
			}
		}, func() {}
	}
	const wipe = "\r\x1b[K"
	return func(doing string) { fmt.Fprint(f, wipe+show.Fitted(f, doing)) }, func() { fmt.Fprint(f, wipe) }
}
