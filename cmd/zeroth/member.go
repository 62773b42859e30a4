package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/pflag"

	"zeroth/collective/rendezvous"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/world"
	"zeroth/job"
	"zeroth/job/spec"
)

// member is this process as one of a world of processes.
type member struct {
	launch.Process
	flags    launch.Flags
	given    func(flag string) bool // whether a flag is on the command line
	insecure bool
	logAll   bool
}

func (p *member) addFlags(f *pflag.FlagSet) {
	p.given = f.Changed
	f.IntVar(&p.flags.Rank, "rank", 0, "number of this `process`, from 0, with --world; launchers set it themselves")
	f.IntVar(&p.flags.World, "world", 0, "`processes` that train together (default: the launcher's, or 1)")
	f.StringVar(&p.flags.Addr, "addr", "", "`host:port` where process 0 of --world listens")
	f.BoolVar(&p.insecure, "insecure", false, "let processes of other hosts join without a token")
}

// find sets p from flags, a launcher's environment variables, or both.
func (p *member) find() (err error) {
	p.flags.Parent = os.Getppid()
	if p.given("world") && p.flags.World < 1 {
		return input.BadInput(fmt.Errorf("--world %d: want at least 1 process", p.flags.World))
	}
	for _, name := range []string{"rank", "addr"} {
		if p.given(name) && !p.given("world") {
			return input.BadInput(fmt.Errorf("--%s needs --world; under a launcher, set ZEROTH_ADDR=host:port to where process 0 listens", name))
		}
	}
	if p.Process, err = launch.Find(p.flags, os.LookupEnv); err != nil {
		err = input.BadInput(err)
	}
	return err
}

// enter joins the world of a job and puts it into o. It does nothing for a single process.
// The caller must call leave after the run.
func (p *member) enter(ctx context.Context, c *spec.Job, o *job.Options, note func(string)) (leave func(), err error) {
	if p.World <= 1 {
		return func() {}, nil
	}
	w, err := world.Join(ctx, c, world.Config{Process: p.Process, Insecure: p.insecure, Note: note})
	if err != nil {
		return nil, joinError(err)
	}
	o.World = w
	return w.Close, nil
}

// joinError maps the error of joining a world to the one that decides the exit code:
// exitAgain if another process, a signal or a lack of descriptors is the reason, because a restart may
// help.
func joinError(err error) error {
	var by signalled
	switch {
	case errors.As(err, &by) && by.Signal == os.Interrupt:
		return errStopped
	case errors.As(err, &by), errors.As(err, new(rendezvous.Lost)), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return rendezvous.Missing(err.Error())
	}
	return err
}
