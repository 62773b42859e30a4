//go:build campaign && linux

package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	mostMemory = 2_000_000_000 // limit of a process's writable or resident memory, bytes
	mostOutput = 8 << 20       // bytes of output to record; more is a failure
)

// ended describes how a process ended.
type ended struct {
	code   int // -1: killed by a signal
	signal syscall.Signal
	out    string // standard output
	errs   string // standard error
	took   time.Duration
	rss    int64  // largest resident size seen, bytes
	broke  string // limit that the process exceeded, if any
}

func (e ended) said() string { return e.out + e.errs }

// process is a running process.
type process struct {
	cmd       *exec.Cmd
	out, errs capped
	begin     time.Time
	done      chan error
}

// capped records the first mostOutput bytes.
type capped struct {
	bytes.Buffer
	over bool
}

func (c *capped) Write(b []byte) (int, error) {
	if c.Len()+len(b) > mostOutput {
		c.over = true
		return len(b), nil
	}
	return c.Buffer.Write(b)
}

// start runs the program in the trial's folder. A shell first sets limits on writable memory and,
// if files is not 0, on the size of a file in units of 512 bytes.
func (x *trial) start(files int, args ...string) *process {
	x.Helper()
	limits := fmt.Sprintf("ulimit -c 0; ulimit -d %d", mostMemory>>10)
	if files > 0 {
		limits += fmt.Sprintf("; ulimit -f %d", files)
	}
	if x.files > 0 {
		limits += fmt.Sprintf("; ulimit -n %d", x.files)
	}
	p := &process{cmd: exec.Command("/bin/sh", append([]string{"-c", limits + `; exec "$0" "$@"`, program}, args...)...), done: make(chan error, 1)}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = x.dir, &p.out, &p.errs
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + x.dir, "TMPDIR=" + x.dir, "GOROOT=" + os.Getenv("GOROOT")}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.begin = time.Now()
	if err := p.cmd.Start(); err != nil {
		x.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }() // ends with the process
	return p
}

func (p *process) send(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) } // the process may have ended

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// resident returns the process's peak resident size in bytes so far. wait4 would include the
// memory of its parent.
func (p *process) resident() int64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)) // the process may have ended
	if m := peak.FindSubmatch(raw); m != nil {
		kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
		return kb << 10
	}
	return 0
}

// wait waits for the process to end, and kills it if it exceeds a limit. A signal sent by send
// does not count as a failure.
func (p *process) wait() (e ended) {
	over, poll := time.After(*deadline), time.NewTicker(5*time.Millisecond)
	defer poll.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-p.done:
			waiting = false
		case <-over:
			e.broke = fmt.Sprintf("not done after %v", *deadline)
			p.send(syscall.SIGKILL)
		case <-poll.C:
			if e.rss = max(e.rss, p.resident()); e.rss > mostMemory {
				e.broke = fmt.Sprintf("%d MB resident", e.rss/1e6)
				p.send(syscall.SIGKILL)
			}
		}
	}
	e.took, e.out, e.errs = time.Since(p.begin), p.out.String(), p.errs.String()
	if p.out.over || p.errs.over {
		e.broke = fmt.Sprintf("more than %d MB of output", mostOutput>>20)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		e.broke = err.Error()
		return e
	}
	state := p.cmd.ProcessState
	e.code = state.ExitCode()
	if w := state.Sys().(syscall.WaitStatus); w.Signaled() {
		e.signal = w.Signal()
	}
	return e
}

// zeroth runs the program and applies check. The exit code must be 0, 2 or one of also; fit may
// also exit with 1, if nothing fits.
func (x *trial) zeroth(also []int, args ...string) ended {
	x.Helper()
	if args[0] == "fit" {
		also = append(also, 1)
	}
	e := x.start(0, args...).wait()
	x.check(e, args, append([]int{0, 2}, also...)...)
	return e
}

// check checks the exit code of a process and the rules for all processes.
func (x *trial) check(e ended, args []string, codes ...int) {
	x.Helper()
	x.note(e, args)
	switch {
	case e.broke != "":
		x.Errorf("%s: %s", command(args), e.broke)
	case e.signal != 0 && !slices.Contains(codes, -1):
		x.Errorf("%s: ended by %v\n%s", command(args), e.signal, brief(e.said()))
	case e.signal == 0 && !slices.Contains(codes, e.code):
		x.Errorf("%s: exit code %d, want one of %v\n%s", command(args), e.code, codes, brief(e.said()))
	case e.code != 0 && e.code != 130 && e.signal == 0 && strings.TrimSpace(e.said()) == "":
		x.Errorf("%s: exit code %d without a word", command(args), e.code)
	}
	if found := trace.FindString(e.said()); found != "" {
		x.Errorf("%s: %q in the output\n%s", command(args), found, brief(e.said()))
	}
	for _, text := range []string{e.out, e.errs} {
		if raw := unprintable(text); raw != "" {
			x.Errorf("%s: the output has %s", command(args), raw)
		}
	}
	x.counts.process(e, x.Name()+": "+command(args))
}

func (x *trial) note(e ended, args []string) {
	how := fmt.Sprintf("exit code %d", e.code)
	if e.signal != 0 {
		how = e.signal.String()
	}
	x.ran = append(x.ran, fmt.Sprintf("  %s\n    %s in %v: %s", command(args), how, e.took.Round(time.Millisecond), shortened(e.said(), 300)))
}

// trace matches the output of Go's runtime after a crash.
var trace = regexp.MustCompile(`(?m)^panic:|^fatal error:|^runtime: |^goroutine \d+|runtime error:|\.go:\d+ \+0x`)

// unprintable returns the first part of a text that a terminal would act on or not show as it is.
func unprintable(text string) string {
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			return fmt.Sprintf("the byte %#x, which is no UTF-8, after %q", text[i], text[max(0, i-40):i])
		case r != '\n' && r != '\t' && !unicode.IsGraphic(r):
			return fmt.Sprintf("a raw %U after %q", r, text[max(0, i-40):i])
		}
	}
	return ""
}

// command returns a command line as a person would type it.
func command(args []string) string {
	out := "zeroth"
	for _, a := range args {
		a = shortened(a, 200)
		if strings.ContainsAny(a, " \t\n\\'\"$*?[]{}();&|<>#~") || a == "" || unprintable(a) != "" {
			a = fmt.Sprintf("$'%s'", strings.ReplaceAll(strings.Trim(strconv.QuoteToASCII(a), `"`), "'", `\'`))
		}
		out += " " + a
	}
	return brief(out)
}

func brief(s string) string { return shortened(s, 1500) }

// shortened returns the beginning and the end of a text, limited to most bytes in total.
func shortened(s string, most int) string {
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = s[:most/3] + " ... " + s[len(s)-most/2:]
	}
	return strings.ToValidUTF8(s, "?")
}
