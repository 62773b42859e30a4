//go:build faults && linux

package cluster

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/job/report"
)

var losses = flag.Int("losses", 60, "faults of TestLosses")

// flow is a job whose processes are started again when they end, and join the others.
type flow struct {
	layout
	n        *network
	exe, dir string
	env      []string
	args     []string
	all      []*process
	again    []time.Time // when a process that has ended is started again
	ends     map[string]int
	last     []string // words of processes that have ended
}

// TestLosses disturbs processes, hosts and links of a job on three hosts at random instants, one fault at a time. What was
// lost joins again. No step may be lost, and the parameters must be those of one process. A micro-batch waits for a clock.
func TestLosses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hosts are network namespaces, which only root can make here")
	}
	runtime.LockOSThread() // the processes it starts end with it
	exe := filepath.Join(t.TempDir(), "zeroth")
	if out, err := exec.Command("go", "test", "-c", "-o", exe, "zeroth/cmd/zeroth").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f := &flow{n: newNetwork(t, fmt.Sprintf("z%dl", os.Getpid()%100000), mostHosts), layout: layout{hosts: mostHosts, per: 4, each: 1, shard: 2}, exe: exe, dir: folder(t),
		env: []string{"ZEROTH_MAIN=main", "ZEROTH_FAULT=0 clock 20ms"}, ends: map[string]int{}}
	shared := []string{"--set", "train.sums=tree", "--set", "train.batch=48", "--set", "zero.stage=3", "--set", "data.validation=0"}
	f.args = append(shared, append(f.sets(), "--out", "run", "--set", "faults={survive: true, join: true, min_replicas: 2}", "--set", "checkpoint.every=100",
		"--set", fmt.Sprint("parallel.dead_after=", *silent), "--set", "parallel.join=60s")...)
	var err error
	if f.all, err = f.n.start(f.layout, exe, f.dir, f.env, f.args...); err != nil {
		t.Fatal(err)
	}
	defer func() { end(f.all) }()
	f.again = make([]time.Time, len(f.all))
	rng := rand.New(rand.NewPCG(*first, 49))
	var took []time.Duration
	for i := range *losses {
		f.whole(t)
		f.last = nil
		f.rest(t, time.Duration(rng.IntN(400))*time.Millisecond)
		what, heal := f.disturb(t, rng)
		lasts := time.Duration((0.3 + 2*rng.Float64()) * float64(*silent))
		if i%2 == 0 { // about as long as parallel.dead_after: some may be lost to some
			lasts = time.Duration((0.6 + 0.8*rng.Float64()) * float64(*silent))
		}
		if f.rest(t, lasts); heal != nil {
			heal()
		}
		begin := time.Now()
		f.whole(t)
		took = append(took, time.Since(begin))
		t.Logf("%d: %s, for %v; whole %v after it", i, what, short(lasts), short(took[i]))
	}
	slices.Sort(took)
	t.Logf("whole after %v to %v, median %v; processes ended with %v", short(took[0]), short(took[len(took)-1]), short(took[len(took)/2]), f.ends)
	f.compare(t, shared)
}

// disturb begins a fault, and returns how to end it, or nil.
func (f *flow) disturb(t *testing.T, rng *rand.Rand) (what string, heal func()) {
	host, p := rng.IntN(f.hosts), rng.IntN(f.processes())
	other := (host + 1) % f.hosts
	signal := func(s syscall.Signal, to ...int) {
		for _, p := range to {
			f.all[p].signal(s)
		}
	}
	cut := func(pairs ...[2]int) func() {
		for _, c := range pairs {
			f.n.sever(c[0], c[1])
		}
		return func() { f.n.set(0, 0, 0) }
	}
	third := (host + 2) % f.hosts
	kind := rng.IntN(9)
	if *only != "" {
		kind, _ = strconv.Atoi(*only)
	}
	switch kind {
	case 0:
		signal(syscall.SIGKILL, p)
		return fmt.Sprintf("process %d is killed", p), nil
	case 1:
		signal(syscall.SIGKILL, f.of(host)...)
		return fmt.Sprintf("host %d is killed", host), nil
	case 2:
		signal(syscall.SIGSTOP, p)
		return fmt.Sprintf("process %d is stopped", p), func() { signal(syscall.SIGCONT, p) }
	case 3:
		f.n.link(t, host, "down")
		return fmt.Sprintf("host %d has no link", host), func() { f.n.link(t, host, "up") }
	case 4:
		return fmt.Sprintf("nobody hears host %d", host), cut([2]int{host, other}, [2]int{host, third})
	case 5:
		return fmt.Sprintf("host %d hears nobody", host), cut([2]int{other, host}, [2]int{third, host})
	case 6:
		return fmt.Sprintf("hosts %d and %d do not hear each other", host, other), cut([2]int{host, other}, [2]int{other, host})
	case 7:
		return fmt.Sprintf("host %d does not hear host %d", other, host), cut([2]int{host, other})
	}
	f.n.set(rng.Uint64(), 20*time.Millisecond, 0.01)
	return "slow links that lose frames", func() { f.n.set(0, 0, 0) }
}

// tend starts processes again that have ended, half a second later.
func (f *flow) tend(t *testing.T) {
	for p, x := range f.all {
		select {
		case <-x.done:
		default:
			continue
		}
		switch now := time.Now(); {
		case f.again[p].IsZero():
			f.again[p] = now.Add(500 * time.Millisecond)
			f.ends[fmt.Sprint(x.code())]++
			said := x.said.String()
			f.last = append(f.last, fmt.Sprintf("%v: process %d ends with %d: %s", now.Format("05.000"), p, x.code(), said[max(0, len(said)-600):]))
			lost := strings.Contains(x.said.String(), ": lost rank") // 1 without a checkpoint
			if code := x.code(); code != -1 && code != 75 && code != 68 && !(code == 1 && lost) {
				t.Errorf("process %d ends with %d\n%s", p, code, &x.said)
			}
		case now.After(f.again[p]):
			var err error
			f.again[p] = time.Time{}
			if f.all[p], err = f.n.process(f.layout, p, f.exe, f.dir, append(f.env, "ZEROTH_JOIN="+address(0)+","+address(1)+","+address(2)), f.args...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// rest lets the job train.
func (f *flow) rest(t *testing.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		f.tend(t)
	}
}

// whole waits until all replicas do steps.
func (f *flow) whole(t *testing.T) {
	from, of := -1, f.ranks()/f.shard
	for stop := time.Now().Add(patience); ; f.rest(t, 100*time.Millisecond) {
		l := f.log(t)
		is := len(l.Changes) == 0 || l.Changes[len(l.Changes)-1].Replicas == of
		switch n := len(l.Steps); {
		case !is:
			from = -1
		case from < 0:
			from = n
		case n > from+2:
			return
		}
		if time.Now().After(stop) {
			t.Logf("%s", strings.Join(f.last[max(0, len(f.last)-60):], "\n"))
			for p, x := range f.all {
				t.Logf("process %d: %s", p, &x.said)
			}
			t.Fatal("the replicas do not come together")
		}
	}
}

func (f *flow) log(t *testing.T) *report.Log {
	l, err := report.ReadLog(filepath.Join(f.dir, "run", "metrics.jsonl"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return &report.Log{}
		}
		t.Fatal(err)
	}
	return l
}

// compare stops the job, and compares the parameters a step later with those of a run in one process.
func (f *flow) compare(t *testing.T, shared []string) {
	for _, x := range f.all {
		x.signal(syscall.SIGTERM)
	}
	for p, x := range f.all {
		if !x.wait(patience) || x.code() != 0 && x.code() != 75 {
			t.Errorf("process %d does not stop well: %d\n%s", p, x.code(), &x.said)
		}
	}
	l := f.log(t)
	for i, s := range l.Steps {
		if s.Step != i+1 {
			t.Fatalf("line %d is of step %d", i+1, s.Step)
		}
	}
	list, err := checkpoint.List(filepath.Join(f.dir, "run", "ckpt"))
	newest, ok := checkpoint.Newest(list)
	if err != nil || !ok || int(newest.Step) != len(l.Steps) {
		t.Fatalf("the last checkpoint is of step %v, but %d are done (%v)", newest.Step, len(l.Steps), err)
	}
	t.Logf("%d steps in %d changes", len(l.Steps), len(l.Changes))
	var models [][]byte
	for _, args := range [][]string{{"--out", "run", "--resume", "latest"}, {"--out", "one"}} {
		args = append(append([]string{"train", "job.yaml", "--set", "parallel.ranks=1", "--set", fmt.Sprint("train.steps=", len(l.Steps)+1), "--set", "checkpoint.every=0"}, shared...), args...)
		x, err := run(f.dir, []string{"ZEROTH_MAIN=main"}, f.exe, args...)
		if err != nil {
			t.Fatal(err)
		}
		if !x.wait(10*patience) || x.code() != 0 {
			t.Fatalf("%s\n%s", strings.Join(args, " "), &x.said)
		}
		b, err := os.ReadFile(filepath.Join(f.dir, args[slices.Index(args, "--out")+1], parameters))
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, b)
	}
	if !bytes.Equal(models[0], models[1]) {
		t.Error("the parameters are not those of one process")
	}
}
