package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/world"
	"zeroth/job/bench"
)

// joining is a process of a world that only measures and has no job.
type joining struct {
	member
	transport string
	bind      string
	join      time.Duration
}

func (m *joining) addFlags(f *pflag.FlagSet) {
	m.member.addFlags(f)
	f.StringVar(&m.transport, "transport", "auto", "`transport` of data between processes: auto, unix, tcp or mpi, as parallel.transport")
	f.StringVar(&m.bind, "bind", "", "`address`, interface or network where other processes reach this host, as parallel.bind")
	f.DurationVar(&m.join, "join", time.Minute, "`time` to wait for all processes to join")
}

// check reports invalid flags, and sets m from the others and the environment.
func (m *joining) check() error {
	var wrong input.Problems
	wrong.If(m.transport == "local" || !slices.Contains(config.Transports, m.transport), "--transport %s; want auto, unix, tcp or mpi", m.transport)
	wrong.If(m.join <= 0, "--join %v; want more than 0", m.join)
	if err := wrong.Err(); err != nil {
		return err
	}
	return m.find()
}

// meet enters the world with one rank per process.
func (m *joining) meet(ctx context.Context, note func(string)) (*world.World, error) {
	bind, err := world.BindAddress(m.bind, m.Host)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--bind: %w", err))
	}
	w, err := world.Launched(ctx, world.Config{Process: m.Process, Insecure: m.insecure, PerProcess: 1, Transport: m.transport, Bind: bind, Join: m.join, Heartbeat: 5 * time.Second, DeadAfter: 15 * time.Second, Note: note}, "")
	if err != nil {
		return nil, joinError(err)
	}
	return w, nil
}

// benchAcross measures collectives between processes. Only process 0 shows the report.
func (a *app) benchAcross(ctx context.Context, m *joining, o bench.Options, show func(*bench.Report) error) error {
	if !slices.Equal(o.Groups, []string{"collective"}) {
		return input.BadInput(fmt.Errorf("bench %s measures one process and there are %d; want bench collective", cmp.Or(strings.Join(o.Groups, " "), "without arguments"), m.World))
	}
	if m.Rank > 0 {
		a.quiet, o.Progress = true, nil
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
