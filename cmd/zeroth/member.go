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
func (p *member) enter(ctx context.Context, c *config.Config, o *job.Options, note func(string)) (leave func(), err error) {
	if p.World <= 1 {
		return func() {}, nil
	}
	if c.Parallel.Transport == "mpi" && !mpi.Built {
		return nil, config.Problems{config.ProblemOf(c, "parallel.transport", "this binary was built without MPI", "build it with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth, or want auto, unix or tcp")}
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

// join completes a world's configuration with this process, its token and its listener,
// and enters the world. It then limits Go's processors to this process's share.
func (p *member) join(ctx context.Context, in world.Config, tokenFile string) (w *world.World, err error) {
	in.Process, in.Insecure = p.Process, p.insecure
	if in.Token, err = jobToken(tokenFile); err != nil {
		return nil, input.BadInput(err)
	}
	if err := in.Safe(ctx); err != nil {
		return nil, input.BadInput(err)
	}
	if in.Listener, err = inheritedListener(); err != nil {
		return nil, err
	}
	in.Note(p.String())
	for _, n := range p.Notes {
		in.Note(n)
	}
	if w, err = world.Enter(ctx, in); err != nil {
		return nil, joinError(err)
	}
	local := w.OnHostOf(p.Rank)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(fairShare(runtime.GOMAXPROCS(0), hostProcessors(), local))
	}
	if warn := bindingWarning(p.By, runtime.NumCPU(), hostProcessors(), local); warn != "" {
		in.Note(warn)
	}
	return w, nil
}

// joinError maps the error of joining a world to the one that decides the exit code:
// exitAgain if another process or a signal is the reason, because a restart may help.
func joinError(err error) error {
	var by signalled
	switch {
	case errors.As(err, &by) && by.Signal == os.Interrupt:
		return errStopped
	case errors.As(err, &by), errors.As(err, new(rendezvous.Lost)):
		return rendezvous.Missing(err.Error())
	}
	return err
}

// unbind lists how to make each launcher give a process all processors.
var unbind = map[string]string{
	"Open MPI": "use mpirun --bind-to none",
	"PMI":      "use mpiexec -bind-to none",
	"Slurm":    "use srun --cpus-per-task or --cpu-bind=none",
}

// bindingWarning returns a warning if a launcher has bound this process to fewer processors
// (allowed) than its share of the host's (total, 0 if unknown) among processes, or "".
func bindingWarning(launcher string, allowed, total, processes int) string {
	share := total / max(1, processes)
	if allowed >= share {
		return ""
	}
	warn := fmt.Sprintf("%d of %d processors; its share among the host's %d processes is %d", allowed, total, processes, share)
	if how := unbind[launcher]; how != "" {
		return fmt.Sprintf("%s has bound this process to %s: %s", launcher, warn, how)
	}
	return "this process may run on " + warn
}

// fairShare returns how many of the allowed processors a process should use: no more than
// its share of the host's (total, 0 if unknown), so that threads waiting for another process
// do not take its processors.
func fairShare(allowed, total, processes int) int {
	if total == 0 {
		total = allowed
	}
	return min(allowed, max(1, total/max(1, processes)))
}

// hostProcessors returns the number of processors of the host, including those that this
// process may not use, or 0 if it is unknown.
func hostProcessors() int {
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

// maxToken is the largest file of a token, in bytes.
const maxToken = 4096

// jobToken returns the token of the job, from the environment or a file, or nil. It removes
// the token from the environment, so that child processes do not inherit it.
func jobToken(file string) ([]byte, error) {
	text, ok := os.LookupEnv("ZEROTH_TOKEN")
	_ = os.Unsetenv("ZEROTH_TOKEN") // fails for no such name
	if text = strings.TrimSpace(text); text != "" {
		return []byte(text), nil
	}
	name, in := os.LookupEnv("ZEROTH_TOKEN_FILE")
	switch {
	case ok:
		return nil, errors.New("ZEROTH_TOKEN is set but empty; set it to the job's token or unset it")
	case in && name == "":
		return nil, errors.New("ZEROTH_TOKEN_FILE is set but empty; set it to a file or unset it")
	case in:
		file = name
	}
	if file == "" {
		return nil, nil
	}
	b, err := input.Read(file, maxToken)
	if err != nil {
		return nil, fmt.Errorf("the job's token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return nil, fmt.Errorf("the job's token: %s is empty; want at least 16 random bytes", file)
	}
	return []byte(token), nil
}

// inheritedListener returns the listener that 'zeroth launch' opened for process 0, or nil.
func inheritedListener() (net.Listener, error) {
	text, ok := os.LookupEnv("ZEROTH_LISTEN_FD")
	if !ok {
		return nil, nil
	}
	_ = os.Unsetenv("ZEROTH_LISTEN_FD")
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, input.BadInput(errors.New("ZEROTH_LISTEN_FD: want the number of a file descriptor"))
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("ZEROTH_LISTEN_FD: %w", err))
	}
	return ln, nil
}
