package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"zeroth/input"
	"zeroth/job/bench"
	"zeroth/job/config"
	"zeroth/job/world"
)

// joining is how a command joins a world of processes that only measures: it has no job.
type joining struct {
	place
	transport string
	bind      string
	join      time.Duration
}

func (m *joining) options(f *pflag.FlagSet) {
	m.place.options(f)
	f.StringVar(&m.transport, "transport", "auto", "what carries data between processes: auto, unix, tcp or mpi, as parallel.transport; between several `processes`")
	f.StringVar(&m.bind, "bind", "", "`address`, interface or network of this host that the other processes reach it at, as parallel.bind")
	f.DurationVar(&m.join, "join", time.Minute, "`time` that processes wait for each other to come")
}

// check refuses what no world can be made of.
func (m *joining) check() error {
	var wrong []error
	if m.transport == "local" || !slices.Contains(config.Transports, m.transport) {
		wrong = append(wrong, fmt.Errorf("--transport %s; want auto, unix, tcp or mpi", m.transport))
	}
	if m.join <= 0 {
		wrong = append(wrong, fmt.Errorf("--join %v; want more than nothing", m.join))
	}
	if err := errors.Join(wrong...); err != nil {
		return input.BadInput(err)
	}
	return m.find()
}

// meet enters the world, one rank a process.
func (m *joining) meet(ctx context.Context, note func(string)) (*world.World, error) {
	bind, err := world.BindAddress(m.bind, m.Host)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--bind: %w", err))
	}
	return m.place.join(ctx, world.Config{PerProcess: 1, Transport: m.transport, Bind: bind, Join: m.join, Heartbeat: 5 * time.Second, DeadAfter: 15 * time.Second, Note: note}, "")
}

// benchAcross measures collectives between processes. Only process 0 tells.
func (a *app) benchAcross(ctx context.Context, m *joining, o bench.Options, show func(*bench.Report) error) error {
	if !slices.Equal(o.Groups, []string{"collective"}) {
		return input.BadInput(fmt.Errorf("%d processes measure what is between them: want bench collective, not %q", m.World, strings.Join(o.Groups, " ")))
	}
	if m.Rank > 0 {
		a.quiet, o.Tell = true, nil
	}
	w, err := m.meet(ctx, a.note)
	if err != nil {
		return err
	}
	defer w.Close()
	report, err := bench.Across(ctx, w, o)
	if err != nil {
		w.Fail(err)
		return w.Explain(err)
	}
	if m.Rank > 0 {
		return nil
	}
	return show(report)
}
