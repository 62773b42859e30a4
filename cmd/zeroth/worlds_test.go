//go:build linux

package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/tests/nightly"
)

// joiner is a process that a test starts as a member of a world.
type joiner struct {
	cmd  *exec.Cmd
	said spoken
	done chan struct{}
}

// spoken is the output of a process. It can be read while the process writes.
type spoken struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *spoken) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// says waits until the output of a process contains a text, or until the process has ended.
func (j *joiner) says(what string) {
	for !strings.Contains(j.said.String(), what) {
		select {
		case <-j.done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// as holds the folder, environment, arguments and user of a process to start.
type as struct {
	dir       string
	env, args []string
	exe       string // a copy of this program that another user can run; "" for this program
	user      uint32 // 0 for this user
	host      string // name of the host, which only root can give; "" for that of this one
}

// joins starts process rank of a world that trains tiny.yaml. Process 0 inherits the listener.
func joins(t *testing.T, ln net.Listener, rank, world int, a as) *joiner {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := &joiner{done: make(chan struct{})}
	j.cmd = exec.Command(exe, append([]string{"train", "tiny.yaml", "--set", "parallel={join: 60s, heartbeat: 200ms}", "--set", "checkpoint.every=1", "--set", "sample.tokens=0", "--out", "r",
		"--addr", ln.Addr().String(), "--rank", strconv.Itoa(rank), "--world", strconv.Itoa(world)}, a.args...)...)
	if a.host != "" {
		j.cmd = exec.Command("unshare", append([]string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, a.host}, j.cmd.Args...)...)
	}
	j.cmd.Dir, j.cmd.Env = a.dir, append(append(os.Environ(), "ZEROTH_MAIN=main"), a.env...)
	if rank == 0 {
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		j.cmd.ExtraFiles, j.cmd.Env = []*os.File{f}, append(j.cmd.Env, "ZEROTH_LISTEN_FD=3")
	}
	if a.user != 0 {
		j.cmd.Path, j.cmd.SysProcAttr = a.exe, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.user, Gid: a.user}}
	}
	j.cmd.Stdout, j.cmd.Stderr = &j.said, &j.said
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.cmd.Process.Kill(); <-j.done })
	go func() { _ = j.cmd.Wait(); close(j.done) }()
	return j
}

// ends checks a process's exit code and that its output contains the given texts.
func (j *joiner) ends(t *testing.T, name string, code int, says ...string) {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: it does not end", name)
	}
	if got := j.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%s: exit code %d, want %d\n%s", name, got, code, &j.said)
	}
	for _, want := range says {
		if !strings.Contains(j.said.String(), want) {
			t.Errorf("%s: it does not say %q:\n%s", name, want, &j.said)
		}
	}
}

// asked sends SIGTERM to a process and checks how it ends.
func (j *joiner) asked(t *testing.T, name string, code int, says ...string) {
	t.Helper()
	_ = j.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended; ends checks the exit code
	j.ends(t, name, code, says...)
}

// door returns a listener for process 0 of a world, on a port nobody else uses.
func door(t *testing.T, host string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("no %s here: %v", host, err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// joins is like the function joins, in the shell's folder and environment, to which a adds.
func (s shell) joins(ln net.Listener, rank, world int, a as) *joiner {
	s.Helper()
	if a.env = append(slices.Clone(s.env), a.env...); !filepath.IsAbs(a.dir) {
		a.dir = s.path(a.dir)
	}
	return joins(s.T, ln, rank, world, a)
}

// copyJob copies tiny.yaml to a new folder, with its text changed by data.
func (s shell) copyJob(to string, data func([]byte) []byte) {
	s.Helper()
	text, err := os.ReadFile(s.path("a.txt"))
	if err == nil {
		err = os.Mkdir(to, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, "a.txt"), data(text), 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, "tiny.yaml"), []byte(tiny), 0o644)
	}
	if err != nil {
		s.Fatal(err)
	}
}

const oneToken, otherToken = "ZEROTH_TOKEN=0123456789abcdef", "ZEROTH_TOKEN=fedcba9876543210"

// TestWorldsThatDoNotForm checks that a process started with the wrong settings ends with exit
// code 2 and the reason, that process 0 keeps waiting and finally names it, and that if the jobs
// differ, both report the difference. Nothing is created.
func TestWorldsThatDoNotForm(t *testing.T) {
	nightly.Long(t)
	own := []string{"--set", "checkpoint.dir=own"}
	for name, c := range map[string]struct {
		zero, one as
		refused   string // in the output of process 1
		differ    string // in the output of both
	}{
		"another token":             {zero: as{env: []string{oneToken}}, one: as{env: []string{otherToken}}, refused: "the tokens of the two sides differ"},
		"no token":                  {zero: as{env: []string{oneToken}}, refused: "the tokens of the two sides differ"},
		"another size of the world": {one: as{args: []string{"--world=3", "--set", "parallel.ranks=3"}}, refused: "it was started as one of 3 processes (on host "},
		"another job":               {one: as{args: []string{"--set", "optimizer.lr=0.5"}}, differ: "the processes differ in optimizer.lr: rank 0: 6e-4; rank 1: 0.5"},
		"other ranks a process":     {one: as{args: []string{"--set", "parallel.ranks=4"}}, differ: "the processes differ in parallel.ranks: rank 0: 2; rank 1: 4"},
		"another run folder":        {one: as{args: []string{"--out", "q"}}, differ: "the processes differ in --out: rank 0: r; rank 1: q"},
		"another program":           {one: as{env: []string{"ZEROTH_STAMP=v9"}}, differ: "the processes differ in version: rank 0: zeroth "},
		"other data":                {one: as{dir: "other"}, differ: "the processes differ in the data's fingerprint: rank 0: "},
		"checkpoints elsewhere":     {zero: as{args: own}, one: as{dir: "same", args: own}, differ: "the processes differ in the folder of checkpoints, own: rank 0: the same writable folder for all; rank 1: not that of rank 0 (open "},
		"checkpoints read-only":     {one: as{env: []string{"ZEROTH_FAULT=0 unwritable 0"}}, differ: "rank 1: that of rank 0, which is not writable (permission denied)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := inShell(t)
			s.copyJob(s.path("same"), bytes.Clone)
			s.copyJob(s.path("other"), bytes.ToUpper)
			ln := door(t, "127.0.0.1")
			zero := s.joins(ln, 0, 2, c.zero)
			one := s.joins(ln, 1, 2, c.one)
			ln.Close()
			if c.differ == "" {
				one.ends(t, name, 2, c.refused)
				zero.says("refused a connection from")
				zero.asked(t, name, 75, "rank 1 has not joined", "; a connection was refused, from 127.0.0.1:", "which claims to be rank 1: "+c.refused)
			} else {
				one.ends(t, name, 2, c.differ)
				zero.ends(t, name, 2, c.differ)
			}
			s.leftNothing(name)
			for _, folder := range []string{"r", "own", "same/own"} {
				if _, err := os.Stat(s.path(folder)); err == nil {
					t.Errorf("%s: the folder %s is there", name, folder)
				}
			}
		})
	}
}

// slurm returns the variables that srun sets, with node names that do not resolve.
func slurm(rank string) []string {
	return []string{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=no-such.invalid,b", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=2", "SLURM_PROCID=" + rank}
}

// TestProcessesOfNoWorld checks that a process with impossible settings ends with exit code 2 and
// a suggestion, and that one whose peers do not join names them and ends with the exit code for a
// restart.
func TestProcessesOfNoWorld(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	taken := door(t, "127.0.0.1")
	world := func(addr string, more ...string) []string {
		return append([]string{"train", "tiny.yaml", "--out", "r", "--world", "2", "--rank", "0", "--addr", addr}, more...)
	}
	var all sync.WaitGroup
	for _, c := range []struct {
		env, args []string
		code      int
		says      string
	}{
		{nil, world(taken.Addr().String()), 2, "address already in use; another process 0 may be running there: end it, or use another port"},
		{[]string{oneToken}, world("192.0.2.1:29400"), 2, "if that is another machine's address, start process 0 there"},
		{nil, world("192.0.2.1:29400"), 2, "can be reached from other hosts, but the job has no token"},
		{[]string{oneToken}, world("0.0.0.0:29400"), 2, "0.0.0.0 stands for all addresses of a host, so others cannot connect to it"},
		{[]string{oneToken}, world("127.0.0.1:29400", "--set", "parallel.bind='::'"), 2, ":: stands for all addresses of a host"},
		{[]string{oneToken}, world("[::1:29400"), 2, "want host:port of process 0"},
		{[]string{"ZEROTH_TOKEN="}, world("127.0.0.1:29400"), 2, "ZEROTH_TOKEN is set but empty"},
		{[]string{"ZEROTH_TOKEN_FILE="}, world("127.0.0.1:29400"), 2, "ZEROTH_TOKEN_FILE is set but empty"},
		{[]string{"ZEROTH_LISTEN_FD=9"}, world("127.0.0.1:29400"), 2, "ZEROTH_LISTEN_FD: "},
		{nil, []string{"train", "tiny.yaml", "--world", "-2"}, 2, "--world -2: want at least 1 process"},
		{nil, []string{"train", "tiny.yaml", "--rank", "1"}, 2, "--rank needs --world"},
		{nil, []string{"train", "tiny.yaml", "--addr", "127.0.0.1:29400"}, 2, "--addr needs --world"},
		{[]string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1", "PMI_RANK=1", "PMI_SIZE=2"}, []string{"train", "tiny.yaml"}, 2, "torchrun reports process 0 of 2, but PMI 1 of 2: set ZEROTH_RANK"},
		{nil, world("127.0.0.1:29400", "--set", "parallel.ranks=3"), 2, "3 ranks cannot be split evenly over 2 processes"},
		{nil, append(world(door(t, "127.0.0.1").Addr().String(), "--set", "parallel={ranks: 4, join: 300ms}"), "--rank", "1"), 75, "no answer within 300ms; 127.0.0.1 is a loopback address, at which a host reaches only itself: if the processes are on several hosts, set --addr to"},
		{nil, world("127.0.0.1:29400", "--set", "parallel.bind=198.51.100.0/24"), 2, "parallel.bind: this host has no address in 198.51.100.0/24; its addresses are "},
		{nil, world("127.0.0.1:29400", "--set", "parallel.bind=no-such.invalid"), 2, "is neither an interface of this host with an address nor a known host"},
		{nil, []string{"doctor", "--cluster", "--world", "2", "--addr", "127.0.0.1:29400", "--bind", "198.51.100.0/24"}, 2, "--bind: this host has no address in 198.51.100.0/24"},
		{slurm("0"), []string{"train", "tiny.yaml"}, 2, `Slurm runs process 0 on node "no-such.invalid", and this host cannot resolve that name: set ZEROTH_ADDR to ADDRESS:PORT`},
		{append(slurm("0"), oneToken), []string{"train", "tiny.yaml", "--set", "parallel.join=300ms"}, 75, `Slurm runs process 0 on node "no-such.invalid"`},
		{append(slurm("1"), oneToken), []string{"train", "tiny.yaml", "--set", "parallel.join=300ms"}, 75, `Slurm runs process 0 on node "no-such.invalid"`},
	} {
		cmd := s.with(c.env...).command(c.args...)
		all.Go(func() {
			said, _ := cmd.CombinedOutput() // the exit code is checked below
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(said), c.says) {
				t.Errorf("%q %q: exit code %d, want %d and %q:\n%s", c.env, c.args, code, c.code, c.says, said)
			}
		})
	}
	all.Wait()
	ln := door(t, "127.0.0.1")
	s.joins(ln, 0, 3, as{args: []string{"--set", "parallel={ranks: 6, join: 300ms}"}}).ends(t, "nobody comes", 75, "process 0 of 3: ranks 2-5 have not joined: no answer within 300ms")
	s.leftNothing("no world")
	if _, err := os.Stat(s.path("r")); err == nil {
		t.Error("the run folder is there")
	}
}

// TestBeforeAllHaveCome checks three events before all processes have joined: a second process of
// the same rank is refused, a process that ends can be replaced, and if process 0 ends, the
// others end with the exit code for a restart.
func TestBeforeAllHaveCome(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	three := as{args: []string{"--set", "parallel.ranks=3"}}
	for name, c := range map[string]struct {
		sig  syscall.Signal
		code int // exit code of process 0
		says string
	}{
		"killed": {syscall.SIGKILL, -1, "connection lost before all had joined"},
		"asked":  {syscall.SIGTERM, 75, "rank 2 has not joined: stopped by SIGTERM"},
		"Ctrl-C": {syscall.SIGINT, 130, "rank 2 has not joined: stopped by Ctrl-C"},
	} {
		ln := door(t, "127.0.0.1")
		zero := s.joins(ln, 0, 3, three)
		ln.Close()
		one, twice := s.joins(ln, 1, 3, three), s.joins(ln, 1, 3, three)
		select {
		case <-one.done:
			one, twice = twice, one
		case <-twice.done:
		}
		twice.ends(t, name, 2, "process 1 has already joined, from host ", "two were started as rank 1")
		_ = zero.cmd.Process.Signal(c.sig)
		zero.ends(t, name, c.code)
		one.ends(t, name, 75, c.says)
		if c.sig == syscall.SIGKILL { // a killed process leaves its temporary files
			if err := os.RemoveAll(s.temp); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(s.temp, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	ln := door(t, "127.0.0.1")
	zero, one := s.joins(ln, 0, 3, three), s.joins(ln, 1, 3, three)
	twice := s.joins(ln, 1, 3, three)
	select {
	case <-one.done:
		one, twice = twice, one
	case <-twice.done:
	}
	one.asked(t, "leaves", 75, "stopped by SIGTERM")
	again, two := s.joins(ln, 1, 3, three), s.joins(ln, 2, 3, three)
	ln.Close()
	for rank, j := range []*joiner{zero, again, two} {
		j.ends(t, "rank "+strconv.Itoa(rank)+", with another rank 1", 0)
	}
	s.leftNothing("before all have come")
}

// stranger returns the settings for a process of another user, without a token.
func (s shell) stranger() as {
	s.Helper()
	if os.Getuid() != 0 {
		s.Skip("only root can start a process of another user")
	}
	const nobody = 65534
	exe, err := os.Executable()
	public, wrong := os.MkdirTemp("/tmp", "zeroth-test-")
	if err := errors.Join(err, wrong); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { os.RemoveAll(public) })
	a := as{user: nobody, dir: filepath.Join(public, "job"), exe: filepath.Join(public, "zeroth"), env: []string{"TMPDIR=" + filepath.Join(public, "job"), "XDG_RUNTIME_DIR="}}
	s.copyJob(a.dir, bytes.Clone)
	program, err := os.ReadFile(exe)
	if err := errors.Join(err, os.WriteFile(a.exe, program, 0o755), os.Chmod(public, 0o755), os.Chown(a.dir, nobody, nobody)); err != nil {
		s.Fatal(err)
	}
	return a
}

// TestOtherUsersAreRefused checks that processes of one user need no token on loopback, that
// those of another user are refused with a hint, and that the world forms without them.
func TestOtherUsersAreRefused(t *testing.T) {
	s := inShell(t)
	other := s.stranger()
	ln := door(t, "127.0.0.1")
	zero := s.joins(ln, 0, 2, as{})
	zero.says("process 0 of 2")
	hint := []string{"the tokens of the two sides differ; this process has no ZEROTH_TOKEN and uses the user's token, ", "need ZEROTH_TOKEN, set to the same secret in every process"}
	s.joins(ln, 1, 2, other).ends(t, "of another user", 2, hint...)
	other.env = append(other.env, oneToken)
	s.joins(ln, 1, 2, other).ends(t, "of another user, with a token", 2, "the tokens of the two sides differ")
	one := s.joins(ln, 1, 2, as{})
	ln.Close()
	zero.ends(t, "rank 0", 0, append(hint, "done: 2 steps")...)
	one.ends(t, "rank 1", 0)
	s.leftNothing("another user")
}

// TestNoPlaceForATokenOfTheUser checks that a world without a token is refused if another user
// owns the path of the token file.
func TestNoPlaceForATokenOfTheUser(t *testing.T) {
	s := inShell(t)
	if err := os.Mkdir(filepath.Join(s.session, "zeroth"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.joins(door(t, "127.0.0.1"), 0, 2, as{}).ends(t, "no place", 2, "so other users can use it; want 0700; set ZEROTH_TOKEN to the same secret in every process")
}

// TestWorldOfIPv6 checks that a world can use an IPv6 address.
func TestWorldOfIPv6(t *testing.T) {
	s := inShell(t)
	ln := door(t, "::1")
	zero, one := s.joins(ln, 0, 2, as{}), s.joins(ln, 1, 2, as{args: []string{"--set", "parallel.bind='::1'"}})
	ln.Close()
	zero.ends(t, "rank 0", 0, "done: 2 steps")
	one.ends(t, "rank 1", 0)
	s.leftNothing("IPv6")
}

// TestLaunchEndsWell checks that after any end of a launch its last checkpoint can be resumed,
// none of its processes run, and no temporary files remain.
func TestLaunchEndsWell(t *testing.T) {
	nightly.Long(t)
	const launcher = -1
	cases := map[string]struct {
		signals []syscall.Signal
		to      []int // ranks
		code    int
		says    string
	}{
		"process 0 and another killed":  {[]syscall.Signal{syscall.SIGKILL, syscall.SIGKILL}, []int{0, 2}, 75, `: connection lost`},
		"the launcher killed":           {[]syscall.Signal{syscall.SIGKILL}, []int{launcher}, -1, ""},
		"the launcher interrupted":      {[]syscall.Signal{syscall.SIGINT}, []int{launcher}, 130, ""},
		"all stopped, then asked":       {[]syscall.Signal{syscall.SIGSTOP, syscall.SIGSTOP, syscall.SIGSTOP, syscall.SIGTERM}, []int{0, 1, 2, launcher}, 75, "stopped by SIGTERM"},
		"process 0 stopped, none asked": {[]syscall.Signal{syscall.SIGSTOP}, []int{0}, 75, `rank 0 ("`},
	}
	if !nightly.All() {
		delete(cases, "the launcher interrupted")
		delete(cases, "process 0 stopped, none asked")
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := inShell(t)
			cmd, rest, errs := s.start(append([]string{"launch", "-n", "3", "--"}, steady(endless, "r")...)...)
			for {
				if _, err := checkpoint.Resolve(s.path("r", "ckpt"), "latest"); err == nil {
					break
				}
				time.Sleep(2 * time.Millisecond)
			}
			pids := map[int]int{launcher: cmd.Process.Pid}
			for _, pid := range children(t, cmd.Process.Pid) {
				rank, err := strconv.Atoi(environ(pid, "ZEROTH_RANK"))
				if err != nil {
					t.Fatal(err)
				}
				pids[rank] = pid
			}
			for i, sig := range c.signals {
				if err := syscall.Kill(pids[c.to[i]], sig); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := rest.WriteTo(new(bytes.Buffer)); err != nil { // returns once every process has closed it
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code is checked below
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(errs.String(), c.says) {
				t.Errorf("%s: exit code %d, want %d and %q\n%s", name, code, c.code, c.says, errs)
			}
			for rank, pid := range pids {
				for end := time.Now().Add(time.Minute); runs(pid); time.Sleep(10 * time.Millisecond) { // processes of a killed launcher save first
					if time.Now().After(end) {
						t.Fatalf("%s: rank %d is left", name, rank)
					}
				}
			}
			s.leftNothing(name)
			at, err := checkpoint.Resolve(s.path("r", "ckpt"), "latest")
			if err != nil {
				t.Fatal(err)
			}
			step, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(at), "step-"))
			if err != nil {
				t.Fatal(err)
			}
			s.process(0, append(append([]string{"launch", "-n", "3", "--"}, steady(step+2, "r")...), "--resume", "latest")...)
		})
	}
}

// runs reports whether a process has not ended. A zombie has.
func runs(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// TestOneProcessHasNoSpace checks that a full disk of one process ends all processes before
// anything is written, or keeps the last checkpoint, from which the run resumes once there is
// space.
func TestOneProcessHasNoSpace(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	full := []string{"ZEROTH_FAULT=0 full 0"}
	run := func(name string, one as, code int, says string, args ...string) {
		t.Helper()
		ln := door(t, "127.0.0.1")
		one.args = args
		zero, other := s.joins(ln, 0, 2, as{args: args}), s.joins(ln, 1, 2, one)
		ln.Close()
		codeOfZero := code
		if name == "offload" {
			codeOfZero = exitAgain // it lost the other before training
		}
		zero.ends(t, name, codeOfZero, says)
		other.ends(t, name, code, says)
		s.leftNothing(name)
	}
	offload := []string{"--set", "zero={stage: 3, offload: {optimizer: disk, path: .}}"}
	run("offload", as{env: full}, 1, "rank 1: offload: reserve ", offload...)
	if _, err := os.Stat(s.path("r")); err == nil {
		t.Error("offload: the run folder is there")
	}
	if files, err := filepath.Glob(s.path("*.offload")); err != nil || len(files) > 0 {
		t.Errorf("offload: left are %v (%v)", files, err)
	}
	run("first steps", as{}, 0, "", "--set", "train.steps=2")
	before := everything(t, s.path("r/ckpt/step-00000002"))
	more := []string{"--set", "train.steps=4", "--resume", "latest"}
	run("checkpoint", as{env: full}, 1, "checkpoint of step 3: save: rank 1: ", more...)
	after := everything(t, s.path("r/ckpt/step-00000002"))
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s of the last checkpoint has changed", name)
		}
	}
	if all, err := filepath.Glob(s.path("r/ckpt/step-*")); err != nil || !slices.Equal(all, []string{s.path("r/ckpt/step-00000001"), s.path("r/ckpt/step-00000002")}) {
		t.Errorf("checkpoints %v (%v)", all, err)
	}
	run("with space", as{}, 0, "", more...)
}

// TestFinalParametersCannotBeWritten checks that all processes fail if process 0 cannot write the
// final parameters, and that the last checkpoint remains.
func TestFinalParametersCannotBeWritten(t *testing.T) {
	nightly.Long(t)
	for name, blocks := range map[string]string{"the folder": "r/model", "the file": "r/model/model.safetensors/x"} {
		t.Run(name, func(t *testing.T) {
			s := inShell(t)
			run := func(code int, says string, env []string, more ...string) {
				t.Helper()
				ln := door(t, "127.0.0.1")
				zero, one := s.joins(ln, 0, 2, as{args: more, env: env}), s.joins(ln, 1, 2, as{args: more})
				ln.Close()
				zero.ends(t, name+", rank 0", code, says)
				one.ends(t, name+", rank 1", code, says)
				s.leftNothing(name)
			}
			run(0, "", nil)
			if err := os.RemoveAll(s.path("r/model")); err != nil {
				t.Fatal(err)
			}
			run(1, "final parameters: ", []string{"ZEROTH_FAULT=0 blocked " + blocks}, "--set", "train.steps=4", "--resume", "latest")
			if _, err := os.Stat(s.path("r/ckpt/step-00000004")); err != nil {
				t.Error(err)
			}
		})
	}
}
