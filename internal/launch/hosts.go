package launch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zeroth/internal/input"
)

// mostHostfile is the largest host file, in bytes.
const mostHostfile = 1 << 20

// Host is a machine that runs processes of a launch.
type Host struct {
	name  string // in a form that ssh accepts
	slots int    // processes
}

// address returns the name by which other hosts reach h.
func (h Host) address() string { return h.name[strings.LastIndexByte(h.name, '@')+1:] }

// ParseHosts parses the value of --hosts: names that ssh accepts, each with its number of processes
// unless that is the default.
func ParseHosts(list string, slots int) (hosts []Host, err error) {
	for _, text := range strings.Split(list, ",") {
		name, count, given := cutSlots(text)
		h, ok := newHost(name, count, given, slots)
		if !ok {
			return nil, fmt.Errorf("--hosts: %q; want names separated by commas, such as node1,user@node2:4 for 4 processes on node2, or [fd00::1]:4", text)
		}
		hosts = append(hosts, h)
	}
	return hosts, distinct(hosts)
}

// newHost returns a host with the given number of processes, or else with slots of them.
func newHost(name, count string, given bool, slots int) (h Host, ok bool) {
	var err error
	if given {
		slots, err = strconv.Atoi(count)
	}
	return Host{name, slots}, err == nil && slots > 0 && validHost(name)
}

// cutSlots splits a host from the number of its processes. An IPv6 address is in brackets, which
// name lacks.
func cutSlots(text string) (name, count string, given bool) {
	user, address, bracket := strings.Cut(text, "[")
	address, rest, closed := strings.Cut(address, "]")
	if !bracket || !closed {
		return strings.Cut(text, ":")
	}
	if count, given = strings.CutPrefix(rest, ":"); !given && rest != "" {
		return "", "", false
	}
	return user + address, count, given
}

// ReadHostfile reads a file with a host per line, as DeepSpeed, Open MPI ("node1 slots=4") and
// MPICH ("node1:4") write it.
func ReadHostfile(path string, slots int) (hosts []Host, err error) {
	text, err := input.Read(path, mostHostfile)
	if err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		name, count, given := cutSlots(words[0])
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			if key != "slots" || given {
				return nil, fmt.Errorf("%s:%d: %q; want a host and its processes, such as: node1 slots=4", path, n, word)
			}
			count, given = value, true
		}
		h, ok := newHost(name, count, given, slots)
		if !ok {
			return nil, fmt.Errorf("%s:%d: %q; want a host and its processes, such as: node1 slots=4", path, n, strings.TrimSpace(line))
		}
		hosts = append(hosts, h)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%s lists no hosts; want lines such as: node1 slots=4", path)
	}
	return hosts, distinct(hosts)
}

// validHost reports whether ssh interprets a name as a host rather than an option.
func validHost(name string) bool {
	return name != "" && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"'\$;&|<>()`+"`", r)
	})
}

func distinct(hosts []Host) error {
	processes := 0
	for i, h := range hosts {
		if slices.ContainsFunc(hosts[:i], func(other Host) bool { return other.name == h.name }) {
			return fmt.Errorf("host %s is named twice; want it once, with all of its processes", h.name)
		}
		if processes += h.slots; h.slots > MaxProcesses || processes > MaxProcesses {
			return fmt.Errorf("the hosts have more than %d processes", MaxProcesses)
		}
	}
	return nil
}

// Remote is how a supervisor reaches hosts; its zero value starts all processes on this machine.
type Remote struct {
	hosts   []Host
	ssh     []string // command and options, to which the host is appended
	addr    string   // where other hosts reach the first; empty: by its name
	program string   // path of zeroth on the hosts
	digest  string   // of this program
	version string   // of this program
	folder  string   // the hosts' working folder
	env     []string // variables that processes get

	patience time.Duration // how long a restart waits for hosts if it needs all of them
}

// Reach returns how to reach hosts, with the program copied to them if copied is set. version is that
// of this program.
func Reach(hosts []Host, ssh, addr string, copied bool, names []string, version string, errs io.Writer) (r Remote, err error) {
	r = Remote{version: version, hosts: hosts, patience: 5 * time.Minute, addr: addr, ssh: strings.Fields(ssh)}
	if len(r.ssh) == 0 {
		return r, input.BadInput(errors.New("--ssh is empty; want a command such as ssh"))
	}
	if filepath.Base(r.ssh[0]) == "ssh" {
		r.ssh = append(r.ssh, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
	}
	if _, err := exec.LookPath(r.ssh[0]); err != nil {
		return r, input.BadInput(fmt.Errorf("--ssh: %w", err))
	}
	if r.folder, err = os.Getwd(); err != nil {
		return r, err
	}
	if r.program, err = os.Executable(); err != nil {
		return r, err
	}
	local := r.program
	if r.digest, err = digestOf(local); err != nil {
		return r, err
	}
	if r.env, err = passedOn(os.Environ(), names); err != nil {
		return r, input.BadInput(err)
	}
	if !copied {
		return r, nil
	}
	r.program = copyName + r.digest[:16] // in the home folder, where ssh begins
	fmt.Fprintln(errs, "zeroth: copying this program to the hosts that do not have it")
	return r, errors.Join(r.each(func(h Host) error { return r.copyTo(h, local) })...)
}

// copyName begins the names of copies of this program on hosts; the digest follows.
const copyName = ".cache/zeroth/zeroth-"

// copyTo copies this program to a host that does not have it, or has a copy that was damaged, and removes copies of other versions
// that have not been touched for a month. Every launch touches its copy when it begins, and its
// processes do once a day, so copies in use stay, including those used by other hosts on a shared
// file system.
func (r Remote) copyTo(h Host, local string) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// A connection that is cut looks like the end of the file: hence the comparison of sizes.
	c := r.over(context.Background(), h, fmt.Sprintf("{ test -x %[1]s && test \"$(sha256sum <%[1]s | cut -c1-64)\" = %[3]s && { touch %[1]s 2>/dev/null; true; } || { mkdir -p .cache/zeroth && cat >%[1]s.$$ && test $(wc -c <%[1]s.$$) -eq %[2]d && chmod 700 %[1]s.$$ && mv %[1]s.$$ %[1]s; }; } && "+
		"{ find .cache/zeroth -maxdepth 1 -name 'zeroth-*' -type f -mtime +30 -exec rm -f {} + 2>/dev/null; true; }", r.program, info.Size(), r.digest))
	c.Stdin = f
	return r.finish(c, h)
}

// touchCopy touches the copy of the program that this process runs, if any, at intervals until end
// is called.
func touchCopy() (end func()) {
	exe, err := os.Executable()
	if err != nil || !strings.Contains(filepath.ToSlash(exe), "/"+copyName) {
		return func() {}
	}
	tick := time.NewTicker(24 * time.Hour)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case now := <-tick.C:
				_ = os.Chtimes(exe, now, now) // may be read-only: then nobody removes it
			case <-done:
				return
			}
		}
	}()
	return func() { tick.Stop(); close(done) }
}

// passedOn returns the variables of env that processes on hosts get: ZEROTH_*, except the address of
// a world that this process belongs to, NCCL_*, and those that patterns name.
func passedOn(env, patterns []string) (all []string, err error) {
	used := make([]bool, len(patterns))
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		wanted := strings.HasPrefix(name, "ZEROTH_") && name != "ZEROTH_ADDR" || strings.HasPrefix(name, "NCCL_")
		for i, p := range patterns {
			if ok, _ := path.Match(p, name); ok { // a malformed pattern matches nothing
				wanted, used[i] = true, true
			}
		}
		if wanted {
			all = append(all, v)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return nil, fmt.Errorf("--env %s: there is no such variable here; want names, or patterns such as 'AWS_*'", patterns[i])
	}
	return all, nil
}

// over returns a command that runs a shell command on a host.
func (r Remote) over(ctx context.Context, h Host, shell string) *exec.Cmd {
	return exec.CommandContext(ctx, r.ssh[0], append(slices.Clone(r.ssh[1:]), h.name, shell)...)
}

// finish runs a command returned by over to its end. Its error contains the output of the host or
// of ssh.
func (r Remote) finish(c *exec.Cmd, h Host) error {
	said := &capped{}
	c.Stdout, c.Stderr = said, said
	if err := c.Run(); err != nil {
		return fmt.Errorf("host %s: %w: %s", h.name, err, strings.TrimSpace(said.kept.String()))
	}
	return nil
}

// each calls f for each host at once, and returns the errors by host.
func (r Remote) each(f func(Host) error) []error {
	errs := make([]error, len(r.hosts))
	var all sync.WaitGroup
	for i, h := range r.hosts {
		all.Go(func() { errs[i] = f(h) })
	}
	all.Wait()
	return errs
}

// digestOf returns the SHA-256 of a file.
func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// place returns the host of a slot, and the slot's number on that host.
func (r Remote) place(slot int) (h Host, local int) {
	for _, h := range r.hosts {
		if slot < h.slots {
			return h, slot
		}
		slot -= h.slots
	}
	panic("launch: a slot beyond the last host") // slots are numbered from 0 to the sum of all
}

// Processes returns the number of slots.
func (r Remote) Processes() (n int) {
	for _, h := range r.hosts {
		n += h.slots
	}
	return n
}

// answerTime is how long a host may take to answer.
const answerTime = 15 * time.Second

// answers returns an error if a host cannot be reached, or lacks the program or the folder, as one that
// starts up may until its file systems are mounted.
func (r Remote) answers(h Host) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	c := r.over(ctx, h, fmt.Sprintf("test -x %s && cd %s", shellQuoted(r.program), shellQuoted(r.folder)))
	c.WaitDelay = time.Second
	return r.finish(c, h)
}

// answering returns the slots of the hosts that can be used, the names of the others, and the
// reason.
func (r Remote) answering() (slots []int, silent []string, why error) {
	errs, slot := r.each(r.answers), 0
	for i, h := range r.hosts {
		if errs[i] != nil {
			silent = append(silent, h.name)
		}
		for range h.slots {
			if errs[i] == nil {
				slots = append(slots, slot)
			}
			slot++
		}
	}
	return slots, silent, errors.Join(errs...)
}

// rendezvous returns the address where the processes meet if process 0 has this slot.
func (r Remote) rendezvous(slot int) string {
	h, _ := r.place(slot)
	if h == r.hosts[0] {
		return cmp.Or(r.addr, h.address())
	}
	return h.address()
}
