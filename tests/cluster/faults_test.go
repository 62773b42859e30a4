//go:build faults && linux

package cluster

import (
	"bytes"
	"flag"
	"fmt"
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
	seeds  = flag.Uint64("seeds", 200, "faults")
	only   = flag.String("only", "", "kind of fault: seeds of others are passed over")
	worlds = flag.Int("hosts", 3, "worlds of three hosts at once")
	silent = flag.Duration("silent", 3*time.Second, "parallel.dead_after: more on a machine that is busy")
	strict = flag.Bool("strict", false, "times are held, too: on a machine that is not busy")
)

const (
	hosts    = 3
	join     = 10 * time.Second // parallel.join where one is not to come
	patience = 2 * time.Minute  // for anything
)

// late is parallel.timeout where two hosts do not hear each other.
func late() time.Duration { return 2 * *silent }

// kinds of faults, and how errors tell of who is lost.
var kinds = []struct{ name, why string }{
	{"killed", "connection lost"},
	{"stopped", "silent for"},
	{"link down", "silent for|connection lost"},
	{"drops what it sends", "silent for|connection lost"},
	{"drops what it is sent", "silent for|connection lost"},
	{"half-open", "silent for|connection lost"},
	{"two do not hear each other", ""},
	{"killed before a checkpoint", "connection lost"},
	{"only loss and delay", ""},
	{"killed while they come together", "connection lost"},
}

// most is how long the survivors of a fault may take to name who is lost.
func (x trial) most() time.Duration {
	switch kinds[x.kind].name {
	case "killed", "killed before a checkpoint":
		return 2 * time.Second
	case "killed while they come together":
		return join + 3*time.Second
	case "two do not hear each other":
		return 2*late() + 2*time.Second // one in which data has moved is given up when none has for the whole timeout
	}
	return *silent + 2*time.Second
}

// trial is a seeded fault.
type trial struct {
	seed   uint64
	kind   int
	victim int
	after  time.Duration // of the first checkpoint, or of the start
	delay  time.Duration
	loss   float64
	each   int // ranks of a process
	stage  int
	async  bool // checkpoints
	memory bool // data goes as between processes of a host, which have one kernel here
}

func newTrial(seed uint64) trial {
	rng := rand.New(rand.NewPCG(seed, 15))
	return trial{seed, int(seed % uint64(len(kinds))), rng.IntN(hosts), time.Duration(rng.IntN(400)) * time.Millisecond,
		[]time.Duration{0, 0, time.Millisecond, 3 * time.Millisecond}[rng.IntN(4)], []float64{0, 0, 0.005, 0.02}[rng.IntN(4)],
		1 + rng.IntN(2), rng.IntN(4), rng.IntN(2) == 0, rng.IntN(2) == 0}
}

func (x trial) String() string {
	return fmt.Sprintf("seed %d: process %d %s, %v after, %g loss, %v delay, %d ranks each, stage %d, async %v, by memory %v", x.seed, x.victim, kinds[x.kind].name, x.after, x.loss, x.delay, x.each, x.stage, x.async, x.memory)
}

// sets are the trial's own settings of the job.
func (x trial) sets() []string {
	transport := "tcp"
	if x.memory && kinds[x.kind].name != "two do not hear each other" {
		transport = "auto"
	}
	return []string{"--set", "parallel.transport=" + transport, "--set", fmt.Sprint("parallel.ranks=", x.each*hosts), "--set", fmt.Sprint("zero.stage=", x.stage), "--set", fmt.Sprint("checkpoint.async=", x.async)}
}

// ranks are those of processes.
func (x trial) ranks(processes ...int) (all []int) {
	for _, p := range processes {
		for i := range x.each {
			all = append(all, p*x.each+i)
		}
	}
	return all
}

// tally is what trials have come to.
type tally struct {
	mu     sync.Mutex
	runs   map[string]int
	failed map[string]int
	took   map[string][]time.Duration // of each survivor, from the fault to its end
}

// TestFaults disturbs jobs: every survivor names the right rank in time and ends with
// exit code 75, or 1 where there is no checkpoint; no process and no port is left;
// the resumed run has the bits of one that nobody disturbed.
func TestFaults(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hosts are network namespaces, which only root can make here")
	}
	exe := program(t)
	refs := &references{exe: exe, dir: folder(t), of: map[[2]int][]byte{}}
	sum := &tally{runs: map[string]int{}, failed: map[string]int{}, took: map[string][]time.Duration{}}
	todo := make(chan uint64)
	var all sync.WaitGroup
	for w := range *worlds {
		n := newNetwork(t, fmt.Sprintf("z%dw%d", os.Getpid()%100000, w), hosts)
		all.Go(func() {
			runtime.LockOSThread() // what it starts ends with it
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
		if x := newTrial(seed); *only == "" || *only == kinds[x.kind].name {
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
	s.runs[kinds[x.kind].name]++
	if problems != nil {
		s.failed[kinds[x.kind].name]++
	}
}

func (s *tally) tell(t *testing.T) {
	runs, failed := 0, 0
	for _, k := range kinds {
		took := s.took[k.name]
		slices.Sort(took)
		line := fmt.Sprintf("%-28s %3d runs, %d failed", k.name, s.runs[k.name], s.failed[k.name])
		if len(took) > 0 {
			line += fmt.Sprintf("; survivors ended after %v to %v, median %v", short(took[0]), short(took[len(took)-1]), short(took[len(took)/2]))
		}
		t.Log(line)
		runs, failed = runs+s.runs[k.name], failed+s.failed[k.name]
	}
	t.Logf("%d runs, %d failed", runs, failed)
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// run is a job that is disturbed, and then goes on.
func (x trial) run(t *testing.T, n *network, exe string, refs *references, sum *tally) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	dir := folder(t)
	defer os.RemoveAll(dir)
	kind := kinds[x.kind].name
	args := append(x.sets(), "--out", "run", "--set", fmt.Sprint("parallel.dead_after=", *silent))
	switch kind {
	case "two do not hear each other":
		args = append(args, "--set", fmt.Sprint("parallel.timeout=", late()))
	case "killed before a checkpoint":
		args = append(args, "--set", "checkpoint.every=1000000")
	case "killed while they come together":
		args = append(args, "--set", fmt.Sprint("parallel.join=", join))
	case "only loss and delay":
		args = append(args, "--set", "train.steps=40")
	}
	n.set(x.seed, x.delay, x.loss)
	all, err := n.start(exe, dir, args...)
	if err != nil {
		return []string{err.Error()}
	}
	defer end(all)
	if kind == "only loss and delay" {
		for i, p := range all {
			if !p.wait(patience) || p.code() != 0 {
				wrong("rank %d: exit code %d\n%s", i, p.code(), &p.said)
			}
		}
		return append(problems, refs.compare(dir, x.each, 40)...)
	}
	if !x.begun(dir, kind, all) {
		return []string{"it does not begin to train:\n" + all[0].said.String()}
	}
	time.Sleep(x.after)
	begin := time.Now()
	x.disturb(t, n, all)
	other := (x.victim + 1) % hosts // of those that do not hear each other
	took := time.Duration(0)
	for i, p := range all {
		if i == x.victim && kind != "two do not hear each other" {
			continue
		}
		if !p.wait(patience) {
			wrong("rank %d does not end\n%s", i, &p.said)
			continue
		}
		took = max(took, p.ended.Sub(begin))
		if why := x.misnamed(kind, p.said.String(), other); why != "" {
			wrong("rank %d: %s\n%s", i, why, &p.said)
		}
		want := 75
		if kind == "killed before a checkpoint" || kind == "killed while they come together" && p.code() == 1 { // 75 where nothing has begun
			want = 1
		}
		if p.code() != want {
			wrong("rank %d: exit code %d, want %d\n%s", i, p.code(), want, &p.said)
		}
	}
	if *strict && took > x.most() {
		wrong("over after %v, deadline %v", short(took), x.most())
	}
	sum.mu.Lock()
	sum.took[kind] = append(sum.took[kind], took)
	sum.mu.Unlock()
	all[x.victim].signal(syscall.SIGCONT)
	if !all[x.victim].wait(patience) || all[x.victim].code() == 0 {
		wrong("the victim, cut off or stopped, does not end by itself, or with 0\n%s", &all[x.victim].said)
	}
	for i := range n.hosts {
		if open, err := n.listening(i); err != nil || open > 0 {
			wrong("host %d: %d ports are left open (%v)", i, open, err)
		}
	}
	n.set(x.seed, 0, 0)
	n.link(t, x.victim, "up")
	if kind == "killed before a checkpoint" || kind == "killed while they come together" {
		return problems
	}
	return append(problems, x.resume(n, exe, dir, refs)...)
}

// begun waits until the job trains: until its first checkpoint, or step.
func (x trial) begun(dir, kind string, all []*process) bool {
	for stop := time.Now().Add(patience); time.Now().Before(stop); time.Sleep(2 * time.Millisecond) {
		if kind == "killed while they come together" {
			return true
		}
		if kind == "killed before a checkpoint" {
			if strings.Contains(all[0].said.String(), "step 1/") {
				return true
			}
		} else if _, err := checkpoint.Resolve(filepath.Join(dir, "run", "ckpt"), "latest"); err == nil {
			return true
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
	switch kinds[x.kind].name {
	case "killed", "killed before a checkpoint", "killed while they come together":
		all[x.victim].signal(syscall.SIGKILL)
	case "stopped":
		all[x.victim].signal(syscall.SIGSTOP)
	case "link down":
		n.link(t, x.victim, "down")
	case "two do not hear each other":
		other := (x.victim + 1) % hosts
		n.sever(x.victim, other)
		n.sever(other, x.victim)
	}
	for i := range n.hosts {
		switch kinds[x.kind].name {
		case "drops what it sends":
			n.sever(x.victim, i)
		case "drops what it is sent":
			n.sever(i, x.victim)
		case "half-open":
			n.sever(x.victim, i)
			n.sever(i, x.victim)
		}
	}
}

// blame finds whom a message says the run was lost by.
var blame = regexp.MustCompile(`rank (\d+) \("[^"]*"\): ([^\n]*)`)

// misnamed is what is wrong with what a survivor says, empty if it names the victim,
// how it was lost, and nobody else.
func (x trial) misnamed(kind, said string, other int) string {
	if kind == "two do not hear each other" {
		for _, r := range x.ranks(x.victim, other) {
			if regexp.MustCompile(fmt.Sprintf(`waited %v for ranks? [\d,]*\b%d\b|rank %d \("`, late(), r, r)).MatchString(said) {
				return ""
			}
		}
		return fmt.Sprintf("it names neither rank %d nor rank %d", x.victim, other)
	}
	found := blame.FindAllStringSubmatch(said, -1)
	if kind == "killed while they come together" && found == nil && regexp.MustCompile(fmt.Sprintf(`ranks? %d\b`, x.victim*x.each)).MatchString(said) {
		return ""
	}
	if found == nil {
		return "it names nobody"
	}
	for _, m := range found {
		if m[1] != fmt.Sprint(x.victim*x.each) || !regexp.MustCompile(`^(`+kinds[x.kind].why+`)`).MatchString(m[2]) {
			return fmt.Sprintf("it names rank %s, %s", m[1], m[2])
		}
	}
	return ""
}

// resume goes on from the last checkpoint and compares the parameters.
func (x trial) resume(n *network, exe, dir string, refs *references) (problems []string) {
	list, err := checkpoint.List(filepath.Join(dir, "run", "ckpt"))
	newest, ok := checkpoint.Newest(list)
	if err != nil || !ok {
		return []string{fmt.Sprintf("no checkpoint: %v", err)}
	}
	steps := int(newest.Step) + 5
	all, err := n.start(exe, dir, append(x.sets(), "--out", "run", "--resume", "latest", "--set", fmt.Sprint("train.steps=", steps))...)
	if err != nil {
		return []string{err.Error()}
	}
	defer end(all)
	for i, p := range all {
		if !p.wait(patience) || p.code() != 0 {
			problems = append(problems, fmt.Sprintf("resumed: rank %d: exit code %d\n%s", i, p.code(), &p.said))
		}
	}
	return append(problems, refs.compare(dir, x.each, steps)...)
}

// references are the parameters of runs that nobody disturbs, of one process.
type references struct {
	exe, dir string
	mu       sync.Mutex
	of       map[[2]int][]byte // by ranks a process, and steps
}

const parameters = "model/model.safetensors"

func (r *references) compare(dir string, each, steps int) []string {
	want, err := r.at(each, steps)
	if err != nil {
		return []string{err.Error()}
	}
	got, err := os.ReadFile(filepath.Join(dir, "run", parameters))
	if err != nil || !bytes.Equal(got, want) {
		return []string{fmt.Sprintf("other parameters after %d steps than of a run that nobody disturbed (%v)", steps, err)}
	}
	return nil
}

func (r *references) at(each, steps int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]int{each, steps}
	if b, ok := r.of[key]; ok {
		return b, nil
	}
	out := fmt.Sprint("whole", each, "x", steps)
	p, err := run(r.dir, nil, r.exe, "train", "job.yaml", "--out", out, "--set", fmt.Sprint("train.steps=", steps), "--set", "checkpoint.every=0", "--set", "parallel.transport=auto", "--set", fmt.Sprint("parallel.ranks=", each*hosts))
	if err != nil {
		return nil, err
	}
	if !p.wait(patience) || p.code() != 0 {
		return nil, fmt.Errorf("the undisturbed run: exit code %d\n%s", p.code(), &p.said)
	}
	r.of[key], err = os.ReadFile(filepath.Join(r.dir, out, parameters))
	return r.of[key], err
}
