package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/input"
	"zeroth/job"
	"zeroth/job/config"
	"zeroth/job/launch"
	"zeroth/job/setup"
	"zeroth/job/world"
)

// place is where this process stands in a world of processes.
type place struct {
	launch.Place
	flags    launch.Flags
	given    func(flag string) bool // on the command line
	insecure bool
	logAll   bool
}

func (p *place) options(f *pflag.FlagSet) {
	p.given = f.Changed
	f.IntVar(&p.flags.Rank, "rank", 0, "which `process` of --world this is, from 0; launchers say it by themselves")
	f.IntVar(&p.flags.World, "world", 0, "`processes` that train together (default what the launcher says, or 1)")
	f.StringVar(&p.flags.Addr, "addr", "", "`host:port` where process 0 of --world listens")
	f.BoolVar(&p.insecure, "insecure", false, "let processes of other hosts join without a token")
}

// find asks flags and environment.
func (p *place) find() (err error) {
	p.flags.Parent = os.Getppid()
	if p.given("world") && p.flags.World < 1 {
		return input.BadInput(fmt.Errorf("--world %d: want at least 1 process", p.flags.World))
	}
	for _, name := range []string{"rank", "addr"} {
		if p.given(name) && !p.given("world") {
			return input.BadInput(fmt.Errorf("--%s goes with --world, and is of no use without; under a launcher ZEROTH_ADDR=host:port says where process 0 listens", name))
		}
	}
	if p.Place, err = launch.Find(p.flags, os.LookupEnv); err != nil {
		err = input.BadInput(err)
	}
	return err
}

// enter joins the world, if there is one, and gives it to the run. leave is to be
// called after that.
func (p *place) enter(ctx context.Context, c *config.Config, o *job.Options, note func(string)) (leave func(), err error) {
	if p.World <= 1 {
		return func() {}, nil
	}
	if c.Parallel.Transport == "mpi" && !mpi.Built {
		return nil, config.Problems{config.ProblemOf(c, "parallel.transport", "this zeroth has no MPI", "build it with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth, or want auto, unix or tcp")}
	}
	var secure *tls.Config
	if t := c.Parallel.TLS; t.Cert != "" {
		if secure, err = rendezvous.LoadMutual(t.Cert, t.Key, t.CA); err != nil {
			return nil, input.BadInput(fmt.Errorf("parallel.tls: %w", err))
		}
	}
	bind, err := world.BindAddress(c.Parallel.Bind, p.Host)
	if err != nil {
		return nil, config.Problems{config.ProblemOf(c, "parallel.bind", err.Error(), "")}
	}
	w, err := p.join(ctx, world.Config{
		TLS: secure, PerProcess: c.Parallel.Ranks / p.World, Transport: c.Parallel.Transport, Collective: c.Parallel.Collective, Master: c.Parallel.Master, GPUs: setup.Names(c), Bind: bind,
		Join: c.Parallel.Join, Heartbeat: c.Parallel.Heartbeat, DeadAfter: c.Parallel.DeadAfter, Note: note,
	}, c.Parallel.TokenFile)
	if err != nil {
		return nil, err
	}
	o.World = w
	return w.Close, nil
}

// join enters the world with what a command says of it.
func (p *place) join(ctx context.Context, in world.Config, tokenFile string) (w *world.World, err error) {
	in.Place, in.Insecure = p.Place, p.insecure
	if in.Token, err = secret(tokenFile); err != nil {
		return nil, input.BadInput(err)
	}
	if err := in.Safe(ctx); err != nil {
		return nil, input.BadInput(err)
	}
	if in.Listener, err = inherited(); err != nil {
		return nil, err
	}
	in.Note(p.String())
	for _, n := range p.Notes {
		in.Note(n)
	}
	if w, err = world.Enter(ctx, in); err != nil {
		return nil, notBegun(err)
	}
	beside := w.OnHostOf(p.Rank)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(shareOf(runtime.GOMAXPROCS(0), processors(), beside))
	}
	if warn := bound(p.By, runtime.NumCPU(), processors(), beside); warn != "" {
		in.Note(warn)
	}
	return w, nil
}

// notBegun is the error of a world that was not entered, as its exit code wants it: where
// another process or a signal is the reason, to start again may help.
func notBegun(err error) error {
	var by signalled
	switch {
	case errors.As(err, &by) && by.Signal == os.Interrupt:
		return errStopped
	case errors.As(err, &by), errors.As(err, new(rendezvous.Lost)):
		return rendezvous.Missing(err.Error())
	}
	return err
}

// unbound is how launchers are told to leave a process all processors.
var unbound = map[string]string{
	"Open MPI": "with mpirun say --bind-to none",
	"PMI":      "with mpiexec say -bind-to none",
	"Slurm":    "with srun say --cpus-per-task, or --cpu-bind=none",
}

// bound warns if a launcher has bound this process to fewer processors than its share
// of a host of so many, on which so many processes are. Empty: it has not, or nobody
// knows.
func bound(by string, may, all, processes int) string {
	share := all / max(1, processes)
	if may >= share {
		return ""
	}
	warn := fmt.Sprintf("%d of %d processors, and its share among %d processes of the host is %d", may, all, processes, share)
	if how := unbound[by]; how != "" {
		return fmt.Sprintf("%s has bound this process to %s: %s", by, warn, how)
	}
	return "this process may run on " + warn
}

// shareOf is how many processors a process that may use some takes of a host of so many
// (0: nobody knows), on which so many processes are: its share, so that a thread of one
// process that waits for another's need not wait for a processor, too.
func shareOf(may, all, processes int) int {
	if all == 0 {
		all = may
	}
	return min(may, max(1, all/max(1, processes)))
}

// processors is how many the machine has, whichever this process may use; 0 where
// that is not known.
func processors() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/online") // "0-63"
	if err != nil {
		return 0
	}
	_, last, _ := strings.Cut(strings.TrimSpace(string(b)), "-")
	n, err := strconv.Atoi(last)
	if err != nil || strings.Contains(last, ",") {
		return 0
	}
	return n + 1
}

// mostToken is the most bytes of a token.
const mostToken = 4096

// secret is the job's token, nil if there is none. It leaves the environment, so
// that no process started from here has it.
func secret(file string) ([]byte, error) {
	text, ok := os.LookupEnv("ZEROTH_TOKEN")
	_ = os.Unsetenv("ZEROTH_TOKEN") // fails for no such name
	if text = strings.TrimSpace(text); text != "" {
		return []byte(text), nil
	}
	name, in := os.LookupEnv("ZEROTH_TOKEN_FILE")
	switch {
	case ok:
		return nil, errors.New("the job's token: ZEROTH_TOKEN is set and empty: set it to the job's token, or unset it")
	case in && name == "":
		return nil, errors.New("the job's token: ZEROTH_TOKEN_FILE is set and empty: set it to a file, or unset it")
	case in:
		file = name
	}
	if file == "" {
		return nil, nil
	}
	b, err := input.Read(file, mostToken)
	if err != nil {
		return nil, fmt.Errorf("the job's token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return nil, fmt.Errorf("the job's token: %s is empty; want at least 16 random bytes", file)
	}
	return []byte(token), nil
}

// inherited is the listener that the launcher has opened for process 0, nil if
// there is none.
func inherited() (net.Listener, error) {
	text, ok := os.LookupEnv("ZEROTH_LISTEN_FD")
	if !ok {
		return nil, nil
	}
	_ = os.Unsetenv("ZEROTH_LISTEN_FD")
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, input.BadInput(errors.New("ZEROTH_LISTEN_FD: want the number of a descriptor"))
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("ZEROTH_LISTEN_FD: %w", err))
	}
	return ln, nil
}
