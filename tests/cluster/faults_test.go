//go:build faults && linux

package cluster

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
)

var (
	first  = flag.Uint64("first", 1, "first seed")
	seeds  = flag.Uint64("seeds", 240, "faults")
	only   = flag.String("only", "", "kind of fault: seeds of others are passed over")
	worlds = flag.Int("hosts", 3, "worlds of hosts at once")
	silent = flag.Duration("silent", 3*time.Second, "parallel.dead_after: more on a machine that is busy")
	strict = flag.Bool("strict", false, "times are held, too: on a machine that is not busy")
)

const (
	mostHosts = 3
	join      = 10 * time.Second // parallel.join if a process will not join
	patience  = 2 * time.Minute  // time limit for anything else
)

const (
	gone   = "connection lost"
	mute   = "silent for"
	broken = `its data connection to rank \d+ \("host\d"\) broke: `
)

// kinds are the kinds of faults, with a pattern of the reason that errors give.
var kinds = []struct{ name, why string }{
	{"killed", gone + "|" + broken},
	{"stopped", mute},
	{"link down", mute + "|" + gone},
	{"drops what it sends", mute + "|" + gone + "|" + broken},
	{"drops what it is sent", mute + "|" + gone + "|" + broken},
	{"half-open", mute + "|" + gone + "|" + broken},
	{"two do not hear each other", mute + "|" + gone + "|" + broken},
	{"killed before a checkpoint", gone + "|" + broken},
	{"only loss and delay", ""},
	{"killed while they come together", gone + "|" + broken},
	{"a data connection is reset", broken + "(connection reset by peer|broken pipe|closed at the other end)"},
	{"a data connection is half-closed", broken + "(connection reset by peer|broken pipe|closed at the other end)"},
}

// most returns the time in which survivors must name the lost rank.
func (x trial) most() time.Duration {
	switch {
	case x.name() == "killed while they come together":
		return max(join, *silent) + 3*time.Second
	case strings.HasPrefix(x.name(), "killed") && !x.proxied, strings.HasPrefix(x.name(), "a data connection"):
		return 2 * time.Second
	}
	return *silent + 2*time.Second
}

// trial is a seeded fault.
type trial struct {
	seed  uint64
	kind  int
	host  int           // host that is disturbed
	one   bool          // disturb only one of its processes
	which int           // selects the connection, or the process of the host
	after time.Duration // delay after the first checkpoint, or after the start
	delay time.Duration
	loss  float64
	stage int
	async bool // checkpoint.async
	layout
}

func newTrial(seed uint64) trial {
	rng := rand.New(rand.NewPCG(seed, 23))
	x := trial{seed: seed, kind: int(seed % uint64(len(kinds))), one: rng.IntN(2) == 0, which: rng.IntN(1000), after: time.Duration(rng.IntN(400)) * time.Millisecond,
		delay: []time.Duration{0, 0, time.Millisecond, 3 * time.Millisecond}[rng.IntN(4)], loss: []float64{0, 0, 0.005, 0.02}[rng.IntN(4)],
		stage: rng.IntN(4), async: rng.IntN(2) == 0, layout: newLayout(rng)}
	x.host = rng.IntN(x.hosts)
	if x.shard < x.ranks() { // stage 0 does not shard
		x.stage = max(1, x.stage)
	}
	switch {
	case x.name() == "two do not hear each other":
		x.proxied, x.one = false, false
	case strings.HasPrefix(x.name(), "a data connection"):
		x.proxied, x.one = true, false
	case x.signal() == 0:
		x.one = false
	}
	return x
}

func (x trial) name() string { return kinds[x.kind].name }

func (x trial) String() string {
	return fmt.Sprintf("seed %d: host %d %s (%v), %v after, %g loss, %v delay, stage %d, async %v; %v", x.seed, x.host, x.name(), x.victims(), x.after, x.loss, x.delay, x.stage, x.async, x.layout)
}

// signal returns the signal for the victims, or 0.
func (x trial) signal() syscall.Signal {
	switch {
	case strings.HasPrefix(x.name(), "killed"):
		return syscall.SIGKILL
	case x.name() == "stopped":
		return syscall.SIGSTOP
	}
	return 0
}

// victims returns the processes that are disturbed: one or all of the host's.
func (x trial) victims() []int {
	all := x.of(x.host)
	if x.one {
		return all[x.which%len(all):][:1]
	}
	return all
}

// blamed returns the processes that survivors may name: the victims and, if a connection is
// disturbed, those at its other end.
func (x trial) blamed() []int {
	switch {
	case x.name() == "two do not hear each other":
		return append(x.of(x.host), x.of(x.other())...)
	case strings.HasPrefix(x.name(), "a data connection"):
		all := []int{}
		for p := range x.processes() {
			all = append(all, p)
		}
		return all
	}
	return x.victims()
}

// other returns the host that cannot reach x.host.
func (x trial) other() int { return (x.host + 1) % x.hosts }

// survives reports whether a process must end by itself in time.
func (x trial) survives(p int) bool {
	return x.name() == "two do not hear each other" || strings.HasPrefix(x.name(), "a data connection") || !slices.Contains(x.victims(), p)
}

// sets returns the job settings of the trial.
func (x trial) sets() []string {
	return append(x.layout.sets(), "--set", fmt.Sprint("zero.stage=", x.stage), "--set", fmt.Sprint("checkpoint.async=", x.async))
}

// tally counts the results of trials.
type tally struct {
	mu     sync.Mutex
	runs   map[string]int
	failed map[string]int
	took   map[string][]time.Duration // time from each fault until all survivors had ended
}

// TestFaults disturbs jobs. Every survivor must name the right rank and host in time and end with
// exit code 75, or 1 without a checkpoint. No process and no open port may remain, and the
// resumed run must have the bits of an undisturbed one.
func TestFaults(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hosts are network namespaces, which only root can make here")
	}
	exe := program(t)
	refs := &references{exe: exe, dir: folder(t), of: map[string][]byte{}}
	sum := &tally{runs: map[string]int{}, failed: map[string]int{}, took: map[string][]time.Duration{}}
	todo := make(chan uint64)
	var all sync.WaitGroup
	for w := range *worlds {
		n := newNetwork(t, fmt.Sprintf("z%dw%d", os.Getpid()%100000, w), mostHosts+2)
		n.proxy = newProxy(t, n, mostHosts, mostHosts+1)
		all.Go(func() {
			runtime.LockOSThread() // the processes it starts end with it
			for seed := range todo {
				x := newTrial(seed)
				problems := x.run(t, n, exe, refs, sum)
				sum.count(x, problems)
				for _, p := range problems {
					t.Errorf("%v: %s", x, p)
				}
			}
		})
	}
	for seed := *first; seed < *first+*seeds; seed++ {
		if x := newTrial(seed); *only == "" || *only == x.name() {
			todo <- seed
		}
	}
	close(todo)
	all.Wait()
	sum.tell(t)
}

func (s *tally) count(x trial, problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range []string{x.name(), x.size()} {
		s.runs[key]++
		if problems != nil {
			s.failed[key]++
		}
	}
}

// size returns the other category by which trials are counted.
func (x trial) size() string {
	s := fmt.Sprintf("%d hosts × %d", x.hosts, x.per)
	if x.shard < x.ranks() {
		s += ", hybrid"
	}
	if x.proxied {
		s += ", proxied"
	}
	return s
}

func (s *tally) tell(t *testing.T) {
	runs, failed := 0, 0
	for _, k := range kinds {
		took := s.took[k.name]
		slices.Sort(took)
		line := fmt.Sprintf("%-34s %3d runs, %d failed", k.name, s.runs[k.name], s.failed[k.name])
		if len(took) > 0 {
			line += fmt.Sprintf("; survivors ended after %v to %v, median %v", short(took[0]), short(took[len(took)-1]), short(took[len(took)/2]))
		}
		t.Log(line)
		runs, failed = runs+s.runs[k.name], failed+s.failed[k.name]
		delete(s.runs, k.name)
	}
	for _, size := range slices.Sorted(maps.Keys(s.runs)) {
		t.Logf("%-34s %3d runs, %d failed", size, s.runs[size], s.failed[size])
	}
	t.Logf("%d runs, %d failed", runs, failed)
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// run disturbs a job and then resumes it.
func (x trial) run(t *testing.T, n *network, exe string, refs *references, sum *tally) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	dir := folder(t)
	defer os.RemoveAll(dir)
	args := append(x.sets(), "--out", "run", "--set", fmt.Sprint("parallel.dead_after=", *silent))
	switch x.name() {
	case "killed before a checkpoint":
		args = append(args, "--set", "checkpoint.every=1000000")
	case "killed while they come together":
		args = append(args, "--set", fmt.Sprint("parallel.join=", join))
	case "only loss and delay":
		args = append(args, "--set", "train.steps=40")
	}
	n.set(x.seed, x.delay, x.loss)
	n.proxy.drop()
	all, err := n.start(x.layout, exe, dir, nil, args...)
	if err != nil {
		return []string{err.Error()}
	}
	defer end(all)
	if x.name() == "only loss and delay" {
		for p, proc := range all {
			if !proc.wait(patience) || proc.code() != 0 {
				wrong("process %d: exit code %d\n%s", p, proc.code(), &proc.said)
			}
		}
		return append(problems, refs.compare(dir, x, 40)...)
	}
	if !x.begun(dir, all) {
		return []string{"it does not begin to train:\n" + all[0].said.String()}
	}
	time.Sleep(x.after)
	begin := time.Now()
	x.disturb(t, n, all)
	took := time.Duration(0)
	for p, proc := range all {
		if !x.survives(p) {
			continue
		}
		for _, why := range x.ended(proc) {
			wrong("process %d: %s\n%s", p, why, &proc.said)
		}
		took = max(took, proc.ended.Sub(begin))
	}
	if *strict && took > x.most() {
		wrong("over after %v, deadline %v: %s", short(took), x.most(), x.endings(all, begin))
	}
	sum.mu.Lock()
	sum.took[x.name()] = append(sum.took[x.name()], took)
	sum.mu.Unlock()
	for _, v := range x.victims() {
		all[v].signal(syscall.SIGCONT)
	}
	for _, v := range x.victims() {
		if !all[v].wait(patience) || all[v].code() == 0 {
			wrong("victim %d, cut off or stopped, does not end by itself, or with 0\n%s", v, &all[v].said)
		}
	}
	problems = append(problems, n.listens(x.layout)...)
	n.set(x.seed, 0, 0)
	n.link(t, x.host, "up")
	if out, err := ip(n.proxy.route(n, x.host)...); err != nil {
		wrong("no way to the proxy: %v %s", err, out)
	}
	n.proxy.drop()
	if x.name() == "killed before a checkpoint" || x.name() == "killed while they come together" {
		return problems
	}
	return append(problems, x.resume(n, exe, dir, refs)...)
}

// ended waits for a survivor and returns what is wrong with its end.
func (x trial) ended(p *process) (problems []string) {
	if !p.wait(patience) {
		return []string{"it does not end"}
	}
	if why := x.misnamed(p.said.String()); why != "" {
		problems = append(problems, why)
	}
	want := 75
	if x.name() == "killed before a checkpoint" || x.name() == "killed while they come together" && p.code() == 1 { // 75 if no step has begun
		want = 1
	}
	if p.code() != want {
		problems = append(problems, fmt.Sprintf("exit code %d, want %d", p.code(), want))
	}
	return problems
}

// endings returns the end times and last messages of the survivors.
func (x trial) endings(all []*process, begin time.Time) (text string) {
	for p, proc := range all {
		if x.survives(p) {
			lines := strings.Split(strings.TrimSpace(proc.said.String()), "\n")
			text += fmt.Sprintf("\nprocess %d, %v: %s", p, short(proc.ended.Sub(begin)), lines[len(lines)-1])
		}
	}
	return text
}

// begun waits until the job trains: until its first checkpoint or, without checkpoints, its first
// step.
func (x trial) begun(dir string, all []*process) bool {
	for stop := time.Now().Add(patience); time.Now().Before(stop); time.Sleep(2 * time.Millisecond) {
		switch x.name() {
		case "killed while they come together":
			return true
		case "killed before a checkpoint":
			if strings.Contains(all[0].said.String(), "step 1/") {
				return true
			}
		default:
			if _, err := checkpoint.Resolve(filepath.Join(dir, "run", "ckpt"), "latest"); err == nil {
				return true
			}
		}
		select {
		case <-all[0].done:
			return false
		default:
		}
	}
	return false
}

func (x trial) disturb(t *testing.T, n *network, all []*process) {
	if s := x.signal(); s != 0 {
		for _, v := range x.victims() {
			all[v].signal(s)
		}
	}
	switch x.name() {
	case "link down":
		n.link(t, x.host, "down")
	case "two do not hear each other":
		n.sever(x.host, x.other())
		n.sever(x.other(), x.host)
	case "a data connection is reset", "a data connection is half-closed":
		data := n.proxy.data(x.host)
		if len(data) == 0 {
			t.Errorf("%v: no connection carries data", x)
			return
		}
		if r := data[x.which%len(data)]; x.name() == "a data connection is reset" {
			n.proxy.reset(r)
		} else {
			n.proxy.halfClose(r)
		}
	}
	for i := range n.hosts {
		switch x.name() {
		case "drops what it sends":
			n.sever(x.host, i)
		case "drops what it is sent":
			n.sever(i, x.host)
		case "half-open":
			n.sever(x.host, i)
			n.sever(i, x.host)
		}
	}
}

// blame matches the lost rank in a message.
var blame = regexp.MustCompile(`rank (\d+) \("([^"]*)"\): ([^\n]*)`)

// misnamed returns an error if a survivor's message does not name a lost rank with its host and
// the reason, or names another rank.
func (x trial) misnamed(said string) string {
	found := blame.FindAllStringSubmatch(said, -1)
	if found == nil && x.name() == "killed while they come together" {
		for _, v := range x.victims() {
			if regexp.MustCompile(fmt.Sprintf(`ranks? ([\d,-]*,)?%d\b`, v*x.each)).MatchString(said) {
				return ""
			}
		}
	}
	if found == nil {
		return "it names nobody"
	}
	why := kinds[x.kind].why
	if x.proxied {
		why += "|" + mute
	}
	for _, m := range found {
		right := slices.ContainsFunc(x.blamed(), func(p int) bool { return m[1] == fmt.Sprint(p*x.each) && m[2] == name(x.layout.host(p)) })
		if !right || !regexp.MustCompile(`^(`+why+`)`).MatchString(m[3]) {
			return fmt.Sprintf("it names rank %s (%s), %s", m[1], m[2], m[3])
		}
	}
	return ""
}

// resume resumes from the last checkpoint and compares the parameters.
func (x trial) resume(n *network, exe, dir string, refs *references) (problems []string) {
	list, err := checkpoint.List(filepath.Join(dir, "run", "ckpt"))
	newest, ok := checkpoint.Newest(list)
	if err != nil || !ok {
		return []string{fmt.Sprintf("no checkpoint: %v", err)}
	}
	steps := int(newest.Step) + 5
	all, err := n.start(x.layout, exe, dir, nil, append(x.sets(), "--out", "run", "--resume", "latest", "--set", fmt.Sprint("train.steps=", steps))...)
	if err != nil {
		return []string{err.Error()}
	}
	defer end(all)
	for p, proc := range all {
		if !proc.wait(patience) || proc.code() != 0 {
			problems = append(problems, fmt.Sprintf("resumed: process %d: exit code %d\n%s", p, proc.code(), &proc.said))
		}
	}
	return append(problems, refs.compare(dir, x, steps)...)
}

// references caches the parameters of undisturbed runs of one process.
type references struct {
	exe, dir string
	mu       sync.Mutex
	of       map[string][]byte // by trial.key
}

const parameters = "model/model.safetensors"

func (r *references) compare(dir string, x trial, steps int) []string {
	want, err := r.at(x, steps)
	if err != nil {
		return []string{err.Error()}
	}
	got, err := os.ReadFile(filepath.Join(dir, "run", parameters))
	if err != nil || !bytes.Equal(got, want) {
		return []string{fmt.Sprintf("other parameters after %d steps than of a run that nobody disturbed (%v)", steps, err)}
	}
	return nil
}

func (r *references) at(x trial, steps int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := x.key(steps)
	if b, ok := r.of[key]; ok {
		return b, nil
	}
	out := "whole" + key
	args := append(x.sets(), "--out", out, "--set", fmt.Sprint("train.steps=", steps), "--set", "checkpoint.every=0", "--set", "parallel.transport=auto")
	p, err := run(r.dir, nil, r.exe, append([]string{"train", "job.yaml"}, args...)...)
	if err != nil {
		return nil, err
	}
	if !p.wait(patience) || p.code() != 0 {
		return nil, fmt.Errorf("the undisturbed run: exit code %d\n%s", p.code(), &p.said)
	}
	r.of[key], err = os.ReadFile(filepath.Join(r.dir, out, parameters))
	return r.of[key], err
}
