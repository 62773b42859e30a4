//go:build faults && linux

package cluster

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ip runs the ip command of iproute2.
func ip(args ...string) (string, error) {
	out, err := exec.Command("ip", args...).CombinedOutput()
	return string(out), err
}

// program builds zeroth and returns its path.
func program(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "zeroth")
	if out, err := exec.Command("go", "build", "-o", exe, "zeroth/cmd/zeroth").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return exe
}

const job = `data: {text: [a.txt]}
model: {layers: 1, heads: 1, width: 8, context: 8}
train: {steps: 1000000, micro_batch: 1}
parallel: {ranks: 3, transport: tcp, heartbeat: 200ms, timeout: 60s}
schedule: {type: constant, warmup: 0}
checkpoint: {every: 5}
sample: {tokens: 0}
`

// folder creates a folder with the job and its text.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"job.yaml": job, "a.txt": strings.Repeat("to be, or not to be; ", 500)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// process is a running zeroth.
type process struct {
	cmd   *exec.Cmd
	said  locked
	done  chan struct{} // closed when it has ended
	ended time.Time
}

// locked is a buffer that can be read while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run starts a command. It is killed when the thread that started it ends.
func run(dir string, env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = dir, append(os.Environ(), env...), &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // code reads the state
		p.ended = time.Now()
		close(p.done)
	}()
	return p, nil
}

// code returns the exit code of a process that has ended, or -1 if a signal ended it.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// wait waits for a process to end. After limit it kills the process and returns false.
func (p *process) wait(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		p.signal(syscall.SIGKILL)
		<-p.done
		return false
	}
}

// end kills the processes that are still running.
func end(all []*process) {
	for _, p := range all {
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// listening returns the number of sockets of a host that accept connections.
func (n *network) listening(host int) (int, error) {
	out, err := ip("netns", "exec", n.hosts[host], "cat", "/proc/net/tcp", "/proc/net/tcp6")
	if err != nil {
		return 0, errors.New(out)
	}
	count := 0
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
			count++
		}
	}
	return count, nil
}
