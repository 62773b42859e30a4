package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"

	"github.com/spf13/pflag"

	"zeroth/input"
	"zeroth/job"
	"zeroth/job/sim"
)

// probes are the files a run is looked into with; empty is off.
type probes struct{ cpuProfile, trace, timeline string }

func (p *probes) flags(f *pflag.FlagSet) {
	f.StringVar(&p.cpuProfile, "cpuprofile", "", "write a CPU profile to a `file`, for go tool pprof")
	f.StringVar(&p.timeline, "timeline", "", "write what the first rank had in use at every event of its first step, over what was planned, to a `file`: .html, .svg or .csv")
	f.StringVar(&p.trace, "trace", "", "write what the queues of every rank did, and the memory in use by category, to a `file` that ui.perfetto.dev opens, the last 32768 tasks of each, and say how much communication was not hidden")
}

// start begins what is asked for, and has run tell it. The files are made at once,
// so that one that cannot be is known before the first step; stop writes and
// closes them.
func (p *probes) start(run *job.Options) (stop func() error, err error) {
	var ends []func() error
	stop = func() error {
		var errs []error
		for _, end := range ends {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}
	if p.cpuProfile != "" {
		f, err := create("cpuprofile", p.cpuProfile)
		if err != nil {
			return stop, err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return stop, errors.Join(fmt.Errorf("--cpuprofile: %w", err), f.Close())
		}
		ends = append(ends, func() error {
			pprof.StopCPUProfile()
			return f.Close()
		})
	}
	if p.timeline != "" {
		drawn := pictures{timeline: p.timeline}
		if err := drawn.check(); err != nil {
			return stop, err
		}
		f, err := create("timeline", p.timeline)
		if err != nil {
			return stop, err
		}
		if err := f.Close(); err != nil {
			return stop, err
		}
		o := &job.Observation{}
		run.Timeline = o
		ends = append(ends, func() error {
			if o.Plan == nil {
				return nil // the run did not come to it
			}
			return drawn.draw(o.Plan)
		})
	}
	if p.trace != "" {
		f, err := create("trace", p.trace)
		if err != nil {
			return stop, err
		}
		t := sim.NewTrace()
		run.Trace = t
		ends = append(ends, func() error { return errors.Join(t.Write(f), f.Close()) })
	}
	return stop, nil
}

func create(flag, path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--%s: %w; name a file that can be written", flag, err))
	}
	return f, nil
}
