// Command gpu climbs a ladder of rungs that test zeroth on this machine's GPU: whether libraries
// are found, kernels compile and are correct, jobs train, and how fast. It builds nothing:
// scripts/build-gpu-tests puts all that it runs into one folder.
//
// Each rung runs its own processes within a time limit. When it ends, its line is printed,
// table.md is rewritten and the next rung runs, whatever the result. So a kernel that hangs or
// breaks the GPU's context costs one line. The rungs that teach most per second come first: part
// 1 shows whether zeroth works and how fast, part 2 tests and measures everything else, part 3
// trains at all stages and compares with PyTorch.
//
// Start with ladder.go; rungs.go lists the rungs, jobs.go contains those that train.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options contains the command line's settings.
type options struct {
	out, from, only string
	part            int
	limit, each     time.Duration
	small, list     bool
}

// selects reports whether the command line selects rungs; otherwise a run continues where the
// last one ended.
func (o *options) selects() bool { return o.from != "" || o.only != "" || o.part != 0 }

func main() { os.Exit(start()) }

// start returns the exit code.
func start() int {
	dir := os.Getenv(ladder)
	if dir == "" {
		fmt.Fprintln(os.Stderr, "gpu: run.sh starts this program")
		return 2
	}
	defer os.RemoveAll(dir)
	var o options
	flag.CommandLine.Init("gpu", flag.ContinueOnError)
	flag.StringVar(&o.out, "out", os.Getenv("OUT"), "existing `folder` for table.md, results.jsonl, log.txt, machine.json and dumps.tar.gz")
	flag.StringVar(&o.from, "from", "", "start at this `rung`")
	flag.StringVar(&o.only, "only", "", "run only these `rungs`, separated by commas; \"kernel\" is all whose names begin with kernel/")
	flag.IntVar(&o.part, "part", 0, "run only the rungs of this `part`, 1 to 3")
	flag.DurationVar(&o.limit, "limit", 8*time.Minute, "start no rung that might not end within this `time`")
	flag.DurationVar(&o.each, "each", 0, "`time` limit of each rung, instead of its own")
	flag.BoolVar(&o.small, "small", false, "use small sizes, for an emulated GPU")
	flag.BoolVar(&o.list, "list", false, "print the rungs in order, with their parts and limits, and run none")
	if err := flag.CommandLine.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "gpu: unexpected argument %q; rungs are given with --only or --from\n", flag.Arg(0))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, o)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "gpu:", err)
	if errors.As(err, new(wrongFlag)) {
		return 2
	}
	return 1
}

// wrongFlag is a mistake in the command line.
type wrongFlag string

func (w wrongFlag) Error() string { return string(w) }

// run climbs the ladder.
func run(ctx context.Context, o options) error {
	s, err := newSession(o)
	if err != nil {
		return err
	}
	defer s.close()
	s.find(ctx)
	all := s.rungs(ctx)
	if o.list {
		for _, r := range all {
			fmt.Printf("part %d  %4.0f s  %s\n", r.part, r.limit.Seconds(), r.name)
		}
		return nil
	}
	picked, err := pick(all, o, s.results)
	if err != nil {
		return err
	}
	return s.climb(ctx, picked)
}

// pick returns the rungs selected by the command line or, without a selection, those that have no
// result yet.
func pick(all []rung, o options, have map[string]*result) (picked []rung, err error) {
	matches := func(r rung, name string) bool { return r.name == name || strings.HasPrefix(r.name, name+"/") }
	known := func(name string) error {
		for _, r := range all {
			if matches(r, name) {
				return nil
			}
		}
		return wrongFlag(fmt.Sprintf("no rung is called %q; --list prints them", name))
	}
	if o.part < 0 || o.part > lastPart {
		return nil, wrongFlag(fmt.Sprintf("--part %d; want 1 to %d", o.part, lastPart))
	}
	only := strings.Split(o.only, ",")
	for _, name := range append(only, o.from) {
		if err := known(name); name != "" && err != nil {
			return nil, err
		}
	}
	begun := o.from == ""
	for _, r := range all {
		begun = begun || matches(r, o.from)
		wanted := o.only == ""
		for _, name := range only {
			wanted = wanted || matches(r, name)
		}
		resumed := !o.selects() && have[r.name] != nil
		if begun && wanted && !resumed && (o.part == 0 || r.part == o.part) {
			picked = append(picked, r)
		}
	}
	return picked, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// ladder names the folder into which run.sh has unpacked this program and everything it runs. It is
// removed at the end.
const ladder = "ZEROTH_LADDER"
