package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync/atomic"

	"github.com/spf13/pflag"

	"zeroth/internal/input"
	"zeroth/job"
	"zeroth/job/trace"
)

// probes holds the files that profiles and traces of a run are written to; empty means none.
type probes struct{ cpuProfile, trace, timeline string }

func (p *probes) addFlags(f *pflag.FlagSet) {
	p.profileFlag(f)
	f.StringVar(&p.timeline, "timeline", "", "draw the planned and the used memory of rank 0 over its first step to a `file`: .html, .svg or .csv")
	f.StringVar(&p.trace, "trace", "", "write the last 32768 tasks of every rank's queues and the memory in use to a `file` for ui.perfetto.dev, and print the exposed communication")
}

func (p *probes) profileFlag(f *pflag.FlagSet) {
	f.StringVar(&p.cpuProfile, "cpuprofile", "", "write a CPU profile to a `file`, for go tool pprof")
}

// start opens the files and attaches the probes to a run. A file that cannot be written is
// thus an error before the first step, and an existing one stays until the new one is
// complete. stop writes and closes the files, or writes nothing if the run was refused.
func (p *probes) start(run *job.Options) (stop func(refused error) error, err error) {
	var ends []func(written bool) error
	stop = func(refused error) error {
		var errs []error
		for _, end := range ends {
			errs = append(errs, end(!input.IsInput(refused)))
		}
		return errors.Join(errs...)
	}
	for _, probe := range []struct {
		flag, path string
		start      func(*probeFile, *job.Options) (func(written bool) error, error)
	}{{"cpuprofile", p.cpuProfile, startProfile}, {"timeline", p.timeline, startTimeline}, {"trace", p.trace, startTrace}} {
		if probe.path == "" {
			continue
		}
		f, err := openProbe(probe.flag, probe.path)
		if err != nil {
			return stop, err
		}
		end, err := probe.start(f, run)
		if err != nil {
			return stop, errors.Join(err, f.Drop())
		}
		ends = append(ends, func(written bool) error { return f.end(end(written)) })
	}
	return stop, nil
}

func startProfile(f *probeFile, _ *job.Options) (func(bool) error, error) {
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, fmt.Errorf("--cpuprofile: %w", err)
	}
	return func(written bool) error {
		f.off.Store(!written) // pprof writes from its own goroutine
		pprof.StopCPUProfile()
		return nil
	}, nil
}

func startTimeline(f *probeFile, run *job.Options) (func(bool) error, error) {
	write, err := timelineFormat(f.asked)
	if err != nil {
		return nil, err
	}
	o := &job.Observation{}
	run.Timeline = o
	return func(bool) error {
		if o.Plan == nil {
			return nil // the run ended before its first step
		}
		return write(o.Plan, f)
	}, nil
}

func startTrace(f *probeFile, run *job.Options) (func(bool) error, error) {
	t := trace.New()
	run.Trace = t
	return func(written bool) error {
		if !written {
			return nil
		}
		return t.Write(f)
	}, nil
}

// probeFile is a file that gets its name once it is complete.
type probeFile struct {
	*input.File
	flag  string
	asked string      // path given by the flag
	begun bool        // something was written
	off   atomic.Bool // drop what is written
	err   error       // first error of writing
}

// create starts a file that a flag names. It follows a symbolic link, except in a run folder, which
// may come from somebody else.
func create(path string) (*input.File, error) {
	to := path
	if _, err := os.Readlink(path); err == nil && !input.Exists(filepath.Join(filepath.Dir(path), "job.yaml")) {
		if behind, err := filepath.EvalSymlinks(path); err == nil {
			to = behind
		}
	}
	f, err := input.Create(to)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("open %s: %w; name a file that can be written", path, input.Cause(err)))
	}
	return f, nil
}

// writeFile creates the file at path, a flag's value, and calls write for its content.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	return f.Fill(write)
}

// openProbe opens a file for the value of a flag.
func openProbe(flag, path string) (*probeFile, error) {
	f, err := create(path)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--%s: %w", flag, err))
	}
	return &probeFile{File: f, flag: flag, asked: path}, nil
}

// Write drops b after off was set.
func (f *probeFile) Write(b []byte) (int, error) {
	if f.off.Load() {
		return len(b), nil
	}
	f.begun = true
	n, err := f.File.Write(b)
	f.err = cmp.Or(f.err, err)
	return n, err
}

// end gives the file its name if it is complete and not empty, and removes it otherwise.
func (f *probeFile) end(err error) error {
	end := f.File.Keep
	if err = cmp.Or(err, f.err); err != nil || !f.begun {
		end = f.File.Drop
	}
	if err = cmp.Or(err, end()); err != nil {
		return fmt.Errorf("--%s: cannot write the file: %w", f.flag, err)
	}
	return nil
}
