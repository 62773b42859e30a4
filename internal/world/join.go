package world

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
	"zeroth/config"

	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// Join enters the world of a job as the process that in describes. The caller closes the world after
// the run.
func Join(ctx context.Context, c *spec.Job, in Config) (w *World, err error) {
	if c.Parallel.Transport == "mpi" && !mpi.Built {
		return nil, config.Problems{spec.ProblemOf(c, "parallel.transport", "this binary was built without MPI", "build it with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth, or want auto, unix or tcp")}
	}
	var secure *tls.Config
	if t := c.Parallel.TLS; t.Cert != "" {
		if secure, err = rendezvous.LoadMutual(t.Cert, t.Key, t.CA); err != nil {
			return nil, input.BadInput(fmt.Errorf("parallel.tls: %w", err))
		}
	}
	bind, err := BindAddress(c.Parallel.Bind, in.Host)
	if err != nil {
		return nil, config.Problems{spec.ProblemOf(c, "parallel.bind", err.Error(), "")}
	}
	in.TLS, in.PerProcess, in.Transport, in.Collective, in.Master, in.GPUs, in.Bind = secure, c.Parallel.Ranks/in.World, c.Parallel.Transport, c.Parallel.Collective, c.Parallel.Master, setup.Names(c), bind
	if c.Faults.Survive {
		in.Survive, in.Joins = c.Faults.MinReplicas, c.Faults.Join
	}
	in.Join, in.Heartbeat, in.DeadAfter = c.Parallel.Join, c.Parallel.Heartbeat, c.Parallel.DeadAfter
	return Launched(ctx, in, c.Parallel.TokenFile)
}

// Launched completes a world's configuration with the token and the listener that a launcher
// passes in the environment, and enters the world. It then limits Go's processors to this process's
// share.
func Launched(ctx context.Context, in Config, tokenFile string) (w *World, err error) {
	if in.Token, err = jobToken(tokenFile); err != nil {
		return nil, input.BadInput(err)
	}
	if err := in.Safe(ctx); err != nil {
		return nil, input.BadInput(err)
	}
	if in.Listener, err = inheritedListener(); err != nil {
		return nil, err
	}
	in.Note(in.Process.String())
	for _, n := range in.Notes {
		in.Note(n)
	}
	if w, err = Enter(ctx, in); err != nil {
		return nil, err
	}
	local := w.OnHostOf(w.cfg.Rank)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(FairShare(runtime.GOMAXPROCS(0), HostProcessors(), local))
	}
	if warn := BindingWarning(in.By, runtime.NumCPU(), HostProcessors(), local); warn != "" {
		in.Note(warn)
	}
	return w, nil
}

// unbind lists how to make each launcher give a process all processors.
var unbind = map[string]string{
	"Open MPI": "use mpirun --bind-to none",
	"PMI":      "use mpiexec -bind-to none",
	"Slurm":    "use srun --cpus-per-task or --cpu-bind=none",
}

// BindingWarning returns a warning if a launcher has bound this process to fewer processors
// (allowed) than its share of the host's (total, 0 if unknown) among processes, or "".
func BindingWarning(launcher string, allowed, total, processes int) string {
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

// FairShare returns how many of the allowed processors a process should use: no more than
// its share of the host's (total, 0 if unknown), so that threads waiting for another process
// do not take its processors.
func FairShare(allowed, total, processes int) int {
	if total == 0 {
		total = allowed
	}
	return min(allowed, max(1, total/max(1, processes)))
}

// HostProcessors returns the number of processors of the host, including those that this
// process may not use, or 0 if it is unknown.
func HostProcessors() int {
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
