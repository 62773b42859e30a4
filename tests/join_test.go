package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/internal/input"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/internal/world"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// returning makes processes fail at some of their operations in their first start, and slows the others down until
// they are back.
type returning struct {
	dies map[int]int64 // by process
	away atomic.Int64
	seen []atomic.Int64 // operations of each process, in all starts
	rise []atomic.Int64 // starts of each process
}

func newReturning(processes int, dies map[int]int64) *returning {
	return &returning{dies: dies, seen: make([]atomic.Int64, processes), rise: make([]atomic.Int64, processes)}
}

func (r *returning) hooks(p int) setup.Hooks {
	start := r.rise[p].Add(1)
	return setup.Hooks{WrapGroups: func(_ int, g collective.Ranks) collective.Ranks {
		for _, of := range g.All() {
			*of = collectivetest.Faulty(*of, func(int) (f collectivetest.Fault) {
				n := r.seen[p].Add(1) - 1
				dies, ok := r.dies[p]
				switch {
				case ok && start == 1 && n == dies:
					r.away.Add(1)
					f.Err = errLink
				case ok && start >= 2 && r.away.Load() > 0:
					r.away.Add(-1)
				case r.away.Load() > 0:
					f.Delay = 20 * time.Millisecond
				}
				return f
			})
		}
		return g
	}}
}

// TestJoinAtAnyOperation checks that processes which fail in any operation, also while others join, come back and
// join, that losses and state are those of a run that was stopped after the same steps and resumed with as many replicas,
// and, with a tree of sums, those of a run that loses nobody.
func TestJoinAtAnyOperation(t *testing.T) {
	nightly.Parallel(t)
	for k, s := range append(slices.Clone(surviving), surviving[5]) {
		if k != 4 && !nightly.All() {
			continue
		}
		t.Run(fmt.Sprint(k, strings.Join(s.sets, " ")), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(k), 50))
			whole, joins := t.TempDir(), 0
			sets := append([]string{"checkpoint.every=1", "checkpoint.keep=30", "faults={survive: true, join: true}"}, s.sets...)
			sets = append(sets, "train.steps=20", "train.eval_every=5", "checkpoint.async=false")
			plain, out := newReturning(s.processes, nil), t.TempDir()
			for p, err := range inProcesses(t, saving(t, whole, sets...), s.processes, out, plain.hooks) {
				if err != nil {
					t.Fatalf("process %d: %v", p, err)
				}
			}
			for range nightly.Of(1, 20) {
				victims := map[int]int64{}
				for _, victim := range rng.Perm(s.processes)[:1+rng.IntN(2)] {
					victims[victim] = int64(rng.IntN(int(plain.seen[victim].Load())))
				}
				t.Run(fmt.Sprint(victims), func(t *testing.T) { joins += joinsAfter(t, s.processes, sets, victims, whole) })
			}
			t.Log(joins, "ranks have joined")
			if joins == 0 {
				t.Error("nobody has joined")
			}
		})
	}
}

// joinsAfter loses processes at some of their operations, which come back, and returns how many ranks have joined.
func joinsAfter(t *testing.T, n int, sets []string, victims map[int]int64, whole string) (joins int) {
	dir, out := t.TempDir(), t.TempDir()
	c := saving(t, dir, sets...)
	errs := inProcesses(t, c, n, out, newReturning(n, victims).hooks)
	l, err := report.ReadLog(filepath.Join(out, "metrics.jsonl"))
	if all := !slices.Contains(errs, nil); all && (err != nil || len(l.Steps) == 0 || len(l.Steps) == c.Train.Steps || len(victims) > 1) {
		return 0 // as in survivesAt
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(errs, nil) {
		t.Fatalf("%v, changes %+v", errs, l.Changes)
	}
	for i, s := range l.Steps {
		if s.Step != i+1 {
			t.Fatalf("line %d is of step %d", i+1, s.Step)
		}
	}
	for _, change := range l.Changes {
		joins += len(change.Joined)
	}
	last := fmt.Sprint(c.Train.Steps)
	if c.Train.Sums == "tree" && digest(t, dir, last) != digest(t, whole, last) {
		t.Errorf("the state differs from that of the run without losses: %+v", l.Changes)
	}
	for i, change := range l.Changes {
		if i+1 < len(l.Changes) && l.Changes[i+1].Step == change.Step {
			continue // nothing was computed in between
		}
		again, from := repeats(t, c, sets, change), ""
		if change.Step > 0 {
			from = filepath.Join(whole, fmt.Sprintf("step-%08d", change.Step))
		}
		run(t, again, from)
		whole = again.Checkpoint.Dir
	}
	if digest(t, dir, last) != digest(t, whole, last) {
		t.Errorf("the state differs from that of the repetition of %+v", l.Changes)
	}
	return joins
}

// TestNewcomersThatDiffer checks that processes with another job, or in the place of one that lives, are refused and hurt nobody.
func TestNewcomersThatDiffer(t *testing.T) {
	nightly.Parallel(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	same := []string{"parallel.ranks=3", "zero.stage=0", "faults={survive: true, join: true}", "train.steps=30"}
	c, out, faults := saving(t, t.TempDir(), same...), t.TempDir(), newReturning(3, map[int]int64{2: 40})
	process := func(rank int) world.Config {
		return world.Config{
			Process: launch.Process{Rank: rank, World: 3, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}}, PerProcess: 1, Transport: "auto",
			Token: []byte("0123456789abcdef"), Heartbeat: 200 * time.Millisecond, DeadAfter: 30 * time.Second, Survive: 1, Joins: true,
		}
	}
	var all sync.WaitGroup
	for p := range 3 {
		all.Go(func() {
			in := process(p)
			if p == 0 {
				in.Listener = ln
			}
			err := inProcess(t, c, in, out, faults.hooks)
			if p < 2 && err != nil {
				t.Errorf("process %d: %v", p, err)
			}
			if p < 2 {
				return
			}
			for rank, sets := range map[int][]string{2: {"optimizer.lr=0.5"}, 1: nil} {
				in := process(rank)
				in.Back, in.Join = []string{"127.0.0.1"}, 2*time.Second
				other := saving(t, c.Checkpoint.Dir, append(slices.Clone(same), sets...)...)
				if err := inProcess(t, other, in, out, nil); err == nil || (sets != nil) != input.IsInput(err) {
					t.Errorf("process %d with %q: %v", rank, sets, err)
				}
			}
			faults.away.Store(0)
		})
	}
	all.Wait()
}

// asked is the world of a process that is asked to stop when newcomers are about to get the state of the others.
type asked struct {
	*world.World
	stop  func()
	fills bool
}

// Survive implements setup.Survivor.
func (a *asked) Survive(ctx context.Context, s setup.Standing) (*setup.Change, error) {
	c, err := a.World.Survive(ctx, s)
	a.fills = err == nil && c.Guests
	return c, err
}

// Share implements setup.World.
func (a *asked) Share(ctx context.Context, mine string) (string, error) {
	if a.fills {
		a.stop()
	}
	return a.World.Share(ctx, mine)
}

// TestStopWhileJoining checks that processes which are asked to stop while a newcomer gets its state, which may be lost then,
// finish the change and stop together after the next step, of which there is a checkpoint.
func TestStopWhileJoining(t *testing.T) {
	nightly.Parallel(t)
	for _, x := range []struct {
		stop []int // places of the processes that are asked
		dies bool  // the newcomer
	}{{stop: []int{1}}, {stop: []int{0, 1, 2}}, {stop: []int{0, 1}, dies: true}} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			c := saving(t, t.TempDir(), "parallel.ranks=3", "zero.stage=0", "faults={survive: true, join: true}", "train.steps=1000000", "train.eval_every=0", "checkpoint.every=1000000")
			out, errs := t.TempDir(), make([]error, 3)
			whole, end := context.WithCancel(t.Context())
			defer end()
			start := func(p int, back []string) error {
				in := world.Config{
					Process: launch.Process{Rank: p, World: 3, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}}, PerProcess: 1, Transport: "auto",
					Token: []byte("0123456789abcdef"), Heartbeat: 200 * time.Millisecond, DeadAfter: 30 * time.Second, Survive: 1, Joins: true, Join: 8 * time.Second,
				}
				if in.Back = back; p == 0 {
					in.Listener = ln
				}
				w, err := world.Enter(t.Context(), in)
				if err != nil {
					return err
				}
				defer w.Close()
				ctx, stop := context.WithCancel(whole)
				defer stop()
				if !slices.Contains(x.stop, p) {
					stop = func() {}
				}
				o := job.Options{Out: out, World: &asked{World: w, stop: stop}}
				switch {
				case p == 2 && back == nil:
					o.Hooks.WrapGroups = (&operations{dies: 40}).wrap
				case p == 2 && x.dies:
					o.Hooks.WrapGroups = (&operations{dies: 3}).wrap
				}
				return job.Run(ctx, c, o)
			}
			var all sync.WaitGroup
			for p := range 3 {
				all.Go(func() {
					if errs[p] = start(p, nil); p == 2 {
						errs[p] = start(p, []string{"127.0.0.1"})
					}
					end() // else those that go on without this one never end
				})
			}
			all.Wait()
			ends := make([]*job.Stopped, 3)
			for p, err := range errs {
				if !errors.As(err, &ends[p]) && !(p == 2 && x.dies && errors.Is(err, errLink)) {
					t.Fatalf("process %d: %v", p, err)
				}
				if p < 2 && ends[p].Checkpoint == "" || p > 0 && !x.dies && !ends[p].Late && ends[p].Step != ends[0].Step {
					t.Errorf("process %d: %v", p, err)
				}
			}
		})
	}
}
