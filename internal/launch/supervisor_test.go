//go:build unix

package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/internal/launch/launchtest"
	"zeroth/tests/nightly"
)

// TestMain lets this program be the process of a launch, which ends with the code in LAUNCHED when it gets a signal, or one
// that comes back to join the others and finds nobody.
func TestMain(m *testing.M) {
	if code := os.Getenv("LAUNCHED"); code != "" {
		if os.Getenv("ZEROTH_JOIN") != "" {
			os.Exit(ExitAlone)
		}
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Println("ready")
		<-signals
		n, _ := strconv.Atoi(code)
		os.Exit(n)
	}
	os.Exit(m.Run())
}

// TestOrder checks that an agent refuses the order of another version, and a folder that is not there.
func TestOrder(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := digestOf(exe)
	if err != nil {
		t.Fatal(err)
	}
	for folder, digest := range map[string]string{"/nowhere": digest, "/": "other"} {
		if _, err := (order{Digest: digest, Folder: folder}).command("v1"); err == nil || !strings.Contains(err.Error(), folder) && !strings.Contains(err.Error(), "another version of zeroth, v1") {
			t.Error(err)
		}
	}
}

// TestExitThroughAgent checks that an agent and ssh report the same end of a process as a local
// child.
func TestExitThroughAgent(t *testing.T) {
	nightly.Needs(t, "sh")
	for script, want := range map[string]child{
		"exit 0":         {code: 0},
		"exit 75":        {code: 75},
		"exit 130":       {code: 130}, // after Ctrl-C
		"kill -9 $$":     {code: -1, how: "signal: killed"},
		"kill -TERM $$":  {code: -1, how: "signal: terminated"},
		"ssh has failed": {code: -1, how: "a lost connection"},
	} {
		code := sshFailed
		if script != "ssh has failed" {
			orders, end := io.Pipe() // stays open, as while the launch is running
			err := obey(exec.Command("sh", "-c", script), orders)
			end.Close()
			failed, _ := err.(Failed)
			code = int(failed)
		}
		c := &child{host: "h", cmd: exec.Command("sh", "-c", fmt.Sprint("exit ", code))}
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if c.wait(); c.code != want.code || want.code < 0 && c.how != want.how {
			t.Errorf("%s: code %d, %s; want %d, %s", script, c.code, c.how, want.code, want.how)
		}
	}
}

// TestParseHosts checks names, users, IPv6 addresses and numbers of processes.
func TestParseHosts(t *testing.T) {
	got, err := ParseHosts("node1,user@node2:4,[fd00::1],[fd00::2]:3,user@[fe80::1%eth0]:2", 1)
	if want := []Host{{"node1", 1}, {"user@node2", 4}, {"fd00::1", 1}, {"fd00::2", 3}, {"user@fe80::1%eth0", 2}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if at := got[4].address(); at != "fe80::1%eth0" {
		t.Errorf("reached at %s", at)
	}
	for _, list := range []string{"fd00::1", "[fd00::1", "[fd00::1]4", "[]:4", "a[b]c", "a:", ":4", "a,,b"} {
		if got, err := ParseHosts(list, 1); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
}

// TestPassedOn checks which variables hosts get, and that names without a variable are refused.
func TestPassedOn(t *testing.T) {
	env := []string{"HOME=/root", "ZEROTH_TOKEN=t", "ZEROTH_ADDR=a:1", "NCCL_DEBUG=INFO", "AWS_REGION=x", "AWS_PROFILE=y", "HF_TOKEN=z"}
	for patterns, want := range map[string]string{
		"": "ZEROTH_TOKEN=t NCCL_DEBUG=INFO", "HF_TOKEN": "ZEROTH_TOKEN=t NCCL_DEBUG=INFO HF_TOKEN=z", "AWS_*,HF_TOKEN": "ZEROTH_TOKEN=t NCCL_DEBUG=INFO AWS_REGION=x AWS_PROFILE=y HF_TOKEN=z",
		"AWS_SECRET": "", "HOM?,GCS_*": "", "[": "",
	} {
		got, err := passedOn(env, strings.FieldsFunc(patterns, func(r rune) bool { return r == ',' }))
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%s: %v, %v, want %s", patterns, got, err, want)
		}
	}
}

// TestReachable checks which hosts a restart uses: hosts whose processes failed twice are left
// out for good and not waited for, and without --min-ranks no host is left out.
func TestReachable(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	hosts, err := ParseHosts("a:2,b,c", 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Reach(hosts, launchtest.SSH(t, "."), "", false, nil, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	r.patience = 0
	for _, c := range []struct {
		down     string
		minRanks int
		bad      []int
		want     []int
		silent   []string
		wrong    bool
		folder   string
	}{
		{want: []int{0, 1, 2, 3}},
		{down: "b", minRanks: 1, want: []int{0, 1, 3}, silent: []string{"b"}},
		{down: "a", minRanks: 1, bad: []int{2}, want: []int{3}, silent: []string{"a"}},
		{minRanks: 1, bad: []int{3}, want: []int{0, 1, 2}},
		{down: "c", wrong: true},
		{folder: "/nowhere", minRanks: 1, want: []int{}, silent: []string{"a", "b", "c"}},
	} {
		if c.down != "" {
			if err := os.WriteFile("down-"+c.down, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, said := New(4, r), &strings.Builder{}
		s.MinRanks, s.bad, s.Errs = c.minRanks, c.bad, said
		if c.folder != "" {
			s.folder = c.folder
		}
		slots, err := s.reachable()
		if c.folder != "" && !strings.Contains(said.String(), c.folder) {
			t.Errorf("it does not say that there is no %s: %s", c.folder, said)
		}
		if (err != nil) != c.wrong || !slices.Equal(slots, c.want) || !slices.Equal(s.silent, c.silent) {
			t.Errorf("%+v: slots %v, silent %v, %v", c, slots, s.silent, err)
		}
		_ = os.Remove("down-" + c.down)
	}
}

// TestRegain checks that a host that does not answer is looked at less and less often.
func TestRegain(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	hosts, err := ParseHosts("a,b", 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Reach(hosts, launchtest.SSH(t, "."), "", false, nil, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := New(2, r)
	if err := os.WriteFile("down-b", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.silent, s.Errs = []string{"b"}, io.Discard
	var waits []time.Duration
	now := make(chan time.Time)
	close(now)
	s.regain(make(chan struct{}), func(d time.Duration) <-chan time.Time {
		if waits = append(waits, d/time.Second); len(waits) == 7 {
			_ = os.Remove("down-b")
		}
		return now
	})
	if want := []time.Duration{30, 60, 120, 240, 480, 600, 600}; !slices.Equal(waits, want) || !s.hasRegained() {
		t.Errorf("looks after %d seconds, want %d; regained: %v", waits, want, s.hasRegained())
	}
}

// TestOldCopies checks that --copy removes copies of other versions that nobody has touched for a month,
// touches the one that it finds, and replaces that if it is damaged.
func TestOldCopies(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	hosts, err := ParseHosts("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	copied := func() (names []string, own os.FileInfo) {
		r, err := Reach(hosts, launchtest.SSH(t, "."), "", true, nil, "", io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		in, _ := os.ReadDir(filepath.Dir(copyName))
		for _, e := range in {
			names = append(names, e.Name())
		}
		own, err = os.Stat(r.program)
		if err != nil {
			t.Fatal(err)
		}
		return names, own
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(copyName), "s3"), 0o777); err != nil {
		t.Fatal(err)
	}
	month := time.Now().AddDate(0, 0, -32)
	for name, days := range map[string]int{"zeroth-0": 0, "zeroth-1.77": 0, "zeroth-2": 20, "s3/zeroth-3": 0} {
		path := filepath.Join(filepath.Dir(copyName), name)
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if at := month.AddDate(0, 0, days); os.Chtimes(path, at, at) != nil {
			t.Fatal("the times of files cannot be set")
		}
	}
	names, own := copied()
	if want := []string{"s3", "zeroth-2", own.Name()}; !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))) {
		t.Errorf("there are %q, want %q", names, want)
	}
	path := filepath.Join(filepath.Dir(copyName), own.Name())
	if err := os.Chtimes(path, month, month); err != nil {
		t.Fatal(err)
	}
	if names, own = copied(); len(names) != 3 || own.ModTime().Equal(month) {
		t.Errorf("a copy that is used was not touched: %v, %q", own.ModTime(), names)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(copyName), "s3", "zeroth-3")); err != nil {
		t.Error(err)
	}
	damaged, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := damaged.WriteAt([]byte("damage"), 1000); err != nil || damaged.Close() != nil {
		t.Fatal(err)
	}
	copied()
	if digest, err := digestOf(path); err != nil || !strings.HasPrefix(digest, strings.TrimPrefix(own.Name(), "zeroth-")) {
		t.Errorf("a damaged copy stays: %s, %v", digest, err)
	}
}

// TestUsable checks with how many processes a world continues: the most that the job can use.
func TestUsable(t *testing.T) {
	for _, c := range []struct {
		batch int // divisible among the ranks, one in each process
		least int
		left  []int
		want  []int
		wrong string
	}{
		{12, 1, []int{0, 1, 3}, []int{0, 1, 3}, ""},
		{8, 1, []int{0, 1, 3}, []int{0, 1}, ""},
		{8, 3, []int{0, 1, 3}, nil, "the remaining 2 processes have 2 ranks, fewer than --min-ranks 3\nno batch of 8 on 3"},
		{7, 1, []int{}, nil, "the job cannot use fewer processes"},
		{1, 0, []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, ""},
	} {
		s := New(4, Remote{})
		s.MinRanks, s.Ranks = c.least, func(n int) (int, error) {
			if c.batch%n != 0 {
				return 0, fmt.Errorf("no batch of %d on %d", c.batch, n)
			}
			return n, nil
		}
		got, err := s.usable(c.left)
		if !slices.Equal(got, c.want) || c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%v: slots %v, want %v (%v)", c, got, c.want, err)
		}
	}
}

// TestBlamed checks that the process that ended first of its own accord is blamed for the end of
// a world.
func TestBlamed(t *testing.T) {
	for _, c := range []struct {
		codes, order []int
		want         int
	}{
		{[]int{75, -1, 75}, []int{1, 0, 2}, 11}, {[]int{75, 75, 1}, []int{0, 1, 2}, 12}, {[]int{1, -1, 1}, []int{2, 0, 1}, 11},
		{[]int{75, 75, 75}, []int{0, 1, 2}, -1}, {[]int{0, 0, 134}, []int{0, 1, 2}, 12}, {[]int{ExitLeft, 1, 75}, []int{0, 1, 2}, 11}, {[]int{ExitAlone, 75, 1}, []int{0, 1, 2}, 12},
	} {
		s := &Supervisor{slots: []int{10, 11, 12}}
		for i, code := range c.codes {
			s.children = append(s.children, &child{code: code, ended: c.order[i]})
		}
		if got := s.culprit(); got != c.want {
			t.Errorf("%v in order %v: slot %d, want %d", c.codes, c.order, got, c.want)
		}
	}
}

// TestLeftOut checks that a process that the others go on without, because it is slow, is not started again, and that
// the others' exit codes count.
func TestLeftOut(t *testing.T) {
	yes := func() bool { return true }
	for other, want := range map[int]int{ExitDone: ExitDone, ExitAgain: ExitAgain, ExitFailure: ExitFailure} {
		left := &child{code: ExitLeft}
		s := &Supervisor{Survives: yes, Joins: yes, survived: true, children: []*child{left, {code: other}}}
		if s.revives(left, 1, nil) || s.code() != want {
			t.Errorf("with %d: code %d, want %d, or the process is started again", other, s.code(), want)
		}
	}
}

// TestNobodyToJoin checks that a process that found nobody to join is started again while one that has not may be part of
// the run, and that the launch ends with the codes of the run.
func TestNobodyToJoin(t *testing.T) {
	for _, x := range []struct {
		alone, over, may bool
	}{{false, false, true}, {true, false, false}, {false, true, false}} {
		c, other := &child{code: ExitAlone, before: ExitAgain}, &child{alone: x.alone, over: x.over, code: ExitAlone, before: ExitFailure}
		other.cmd = &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}
		s := &Supervisor{survived: true, children: []*child{c, other}}
		if s.mayTrain(c) != x.may || s.code() != ExitAgain {
			t.Errorf("%+v: %v, code %d", x, s.mayTrain(c), s.code())
		}
	}
}

// TestStopEndsAPause checks that a process that has often failed is given up when the launch is asked to stop, or the others
// have ended, before it would be started again.
func TestStopEndsAPause(t *testing.T) {
	yes := func() bool { return true }
	for _, stop := range []func(*Supervisor){func(s *Supervisor) { s.asked = syscall.SIGTERM }, func(s *Supervisor) { s.children[1].over = true }} {
		c, other := &child{code: -1, tries: 20, begun: time.Now()}, &child{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
		s, ends := &Supervisor{Survives: yes, Joins: yes, survived: true, children: []*child{c, other}}, make(chan *child, 1)
		if !s.revives(c, 1, ends) {
			t.Fatal("it is not started again")
		}
		s.mu.Lock()
		stop(s)
		s.mu.Unlock()
		select {
		case <-ends:
		case <-time.After(longestAgain / 2):
			t.Error("the launch waits to start it again")
		}
	}
}

// TestAllAreLost checks that nobody is started again once all processes have ended, for the same reason, and that the launch
// asks for another start if they were lost and there is a checkpoint.
func TestAllAreLost(t *testing.T) {
	for _, x := range []struct {
		code  int
		sig   syscall.Signal
		saved bool
		want  Failed
	}{{1, syscall.SIGTERM, true, ExitFailure}, {75, syscall.SIGKILL, true, ExitAgain}, {75, syscall.SIGKILL, false, ExitFailure}} {
		t.Setenv("LAUNCHED", fmt.Sprint(x.code))
		yes, errs := func() bool { return true }, &strings.Builder{}
		out, in := io.Pipe()
		s := New(3, Remote{})
		s.Survives, s.Joins, s.Saved, s.Out, s.Errs = yes, yes, func() bool { return x.saved }, in, errs
		end := make(chan error, 1)
		go func() { end <- s.Run() }()
		for lines, n := bufio.NewScanner(out), 0; n < s.n && lines.Scan(); n++ { // "ready", of each
		}
		go io.Copy(io.Discard, out)
		started(s)
		s.signal(x.sig)
		if err := <-end; err != x.want || strings.Contains(errs.String(), "starting") {
			t.Errorf("%+v: %v\n%s", x, err, errs)
		}
	}
}

// TestLabelled checks that every line names its process, whatever the pieces it arrives in.
func TestLabelled(t *testing.T) {
	var out strings.Builder
	l := &labelled{to: &out, label: "3 on b"}
	for _, piece := range []string{"step", " 1\nstep 2\n\nst", "ep 3", strings.Repeat("x", longestLine)} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.end()
	long := "step 3" + strings.Repeat("x", longestLine)
	want := fmt.Sprintf("[3 on b] step 1\n[3 on b] step 2\n[3 on b] \n[3 on b] %s\n[3 on b] %s\n", long[:longestLine], long[longestLine:])
	if out.String() != want {
		t.Errorf("%.200q", out.String())
	}
}

// TestSignalWhileProcessesStart checks that a signal reaches processes that start after it.
func TestSignalWhileProcessesStart(t *testing.T) {
	t.Setenv("LAUNCHED", "75")
	s := New(2, Remote{})
	s.Out, s.Errs = io.Discard, io.Discard
	s.Pass(syscall.SIGTERM)
	if err := s.Run(); !errors.As(err, new(Failed)) {
		t.Errorf("%v, want that the processes failed", err)
	}
}

// started waits until signals reach all processes, and returns them.
func started(s *Supervisor) (all []*child) {
	for ; ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		all = slices.Clone(s.children)
		ready := len(all) == s.n && !slices.ContainsFunc(all, func(c *child) bool { return !c.ready })
		s.mu.Unlock()
		if ready {
			return all
		}
	}
}

// lastStopped runs a launch whose processes go on without those that are lost, and stops the last one.
func lastStopped(t *testing.T, s *Supervisor, code string) (all []*child, end chan error) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not report that processes are stopped")
	}
	t.Setenv("LAUNCHED", code)
	out, in := io.Pipe()
	s.Out, s.Survives, end = in, func() bool { return true }, make(chan error, 1)
	go func() { end <- s.Run() }()
	for lines, n := bufio.NewScanner(out), 0; n < s.n && lines.Scan(); n++ { // "ready", of each
	}
	go io.Copy(io.Discard, out)
	all = started(s)
	last := all[s.n-1].cmd.Process
	_ = last.Signal(syscall.SIGSTOP)
	for stat := ""; !strings.Contains(stat, ") T "); time.Sleep(time.Millisecond) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", last.Pid))
		stat = string(b)
	}
	return all, end
}

// TestLostIsStopped checks that a process that is stopped, without which the others have come to the end, does
// not keep the launch from ending well.
func TestLostIsStopped(t *testing.T) {
	s := New(2, Remote{})
	s.Errs = io.Discard
	all, end := lastStopped(t, s, "0")
	_ = all[0].cmd.Process.Signal(syscall.SIGTERM)
	if err := <-end; err != nil {
		t.Error(err)
	}
}

// TestOthersAreStopped checks that a launch ends whose processes are all lost, some of them because they are stopped: those that
// come back find nobody to join.
func TestOthersAreStopped(t *testing.T) {
	s, errs := New(3, Remote{}), &strings.Builder{}
	s.Errs, s.Joins = errs, func() bool { return true }
	all, end := lastStopped(t, s, "75")
	for _, c := range all[:2] {
		_ = c.cmd.Process.Kill()
	}
	if err := <-end; !errors.As(err, new(Failed)) {
		t.Errorf("%v\n%s", err, errs)
	}
}
