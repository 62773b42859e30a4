package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zeroth/internal/input"
)

// order is the first line that an agent reads: the process to start. It comes through standard
// input, because others can read the arguments of processes.
type order struct {
	Digest  string   `json:"digest"`  // of the sending program
	Version string   `json:"version"` // of the sending program
	Folder  string   `json:"folder"`
	Env     []string `json:"env"`
	Args    []string `json:"args"`
}

// mostOrder is the longest order, in bytes.
const mostOrder = 4 << 20

// bySignal is added to the number of the signal that ended an agent's process to make the agent's
// exit code. It is not a shell's 128: a process that Ctrl-C stopped exits with 130 by itself.
const bySignal = 192

// Agent runs a process of a launch on this host. After its order it reads the signals to send, one
// number per line. At the end of its input it kills the process: the launch, or the connection to it,
// has ended. The error is Failed if the process failed.
func Agent(from io.Reader, version string) error {
	in := bufio.NewReader(io.LimitReader(from, mostOrder))
	line, err := in.ReadBytes('\n')
	var o order
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("agent: no order: %w; zeroth launch --hosts starts agents itself", err))
	}
	c, err := o.command(version)
	if err != nil {
		return err
	}
	defer touchCopy()()
	return obey(c, io.MultiReader(in, from))
}

// command returns the process to start.
func (o order) command(version string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	own, err := digestOf(exe)
	if err != nil {
		return nil, err
	}
	name, _ := os.Hostname() // only for the message
	if own != o.Digest {
		return nil, input.BadInput(fmt.Errorf("host %s has another version of zeroth, %s instead of %s, at %s; install the same, or use launch --copy", name, version, o.Version, exe))
	}
	if err := os.Chdir(o.Folder); err != nil {
		return nil, input.BadInput(fmt.Errorf("host %s: %w; want the folder in which launch was started on every host", name, err))
	}
	c := exec.Command(exe, o.Args...)
	c.Env = append(os.Environ(), o.Env...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = ownGroup()
	return c, nil
}

// obey starts a process, sends it signals, and returns how it ended.
func obey(c *exec.Cmd, orders io.Reader) error {
	runtime.LockOSThread() // Linux ends the process when the thread that started it ends
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		return err
	}
	go func() {
		for lines := bufio.NewScanner(orders); lines.Scan(); {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				_ = c.Process.Signal(syscall.Signal(n)) // it may have ended
			}
		}
		_ = c.Process.Kill()
	}()
	_ = c.Wait() // ProcessState says how it ended
	code := c.ProcessState.ExitCode()
	if code < 0 {
		code = min(bySignal+endingSignal(c.ProcessState), sshFailed-1)
	}
	if code == ExitDone {
		return nil
	}
	return Failed(code)
}

// remoteChild returns a process on another host that is not started yet.
func (s *Supervisor) remoteChild(rank, start int, more ...string) (*child, error) {
	h, local := s.Remote.place(s.slots[rank])
	c := &child{host: h.name, cmd: s.Remote.over(context.Background(), h, shellQuoted(s.Remote.program)+" agent")}
	c.cmd.SysProcAttr, c.cmd.WaitDelay = ownGroup(), time.Second
	text, err := json.Marshal(order{Digest: s.Remote.digest, Version: s.version, Folder: s.Remote.folder, Args: s.Args,
		Env: append(slices.Concat(s.Remote.env, more), "ZEROTH_TOKEN="+s.token, "ZEROTH_RUN_ID="+s.runID, "ZEROTH_HOST="+s.Remote.rendezvous(s.slots[0]),
			"ZEROTH_RANK="+strconv.Itoa(rank), "ZEROTH_WORLD_SIZE="+strconv.Itoa(len(s.slots)), "ZEROTH_LOCAL_RANK="+strconv.Itoa(local),
			"ZEROTH_LOCAL_WORLD_SIZE="+strconv.Itoa(h.slots), "ZEROTH_RESTART_COUNT="+strconv.Itoa(start))})
	if err != nil {
		return nil, err
	}
	to, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.orders = to
	c.order = append(text, '\n')
	return c, nil
}

// shellQuoted quotes a text for the shell that ssh starts.
func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
