package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/device"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/internal/world"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// inProcesses runs a job in several processes, which are goroutines of this one, and returns their
// errors. Hooks may be nil.
func inProcesses(t *testing.T, c *spec.Job, n int, out string, hooks func(process int) setup.Hooks) []error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	var ended atomic.Bool // a process has come to the end
	var lost atomic.Int64 // processes that have failed in their first start; if all have, there is no run to join
	for p := range n {
		all.Go(func() {
			in := world.Config{
				Process:    launch.Process{Rank: p, World: n, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
				PerProcess: c.Parallel.Ranks / n, Transport: "auto", Token: []byte("0123456789abcdef"),
				Heartbeat: 200 * time.Millisecond, DeadAfter: 30 * time.Second, Survive: c.Faults.MinReplicas, Joins: c.Faults.Join,
			}
			if p == 0 {
				in.Listener = ln
			}
			for errs[p] = inProcess(t, c, in, out, hooks); errs[p] != nil && c.Faults.Join && !ended.Load(); {
				if in.Back == nil && lost.Add(1) == 0 || lost.Load() == int64(n) {
					return
				}
				in.Back, in.Listener, in.Join = []string{"127.0.0.1"}, nil, 8*time.Second
				time.Sleep(100 * time.Millisecond)
				errs[p] = inProcess(t, c, in, out, hooks)
			}
			ended.Store(true)
		})
	}
	all.Wait()
	return errs
}

// inProcess runs a job as one of several processes.
func inProcess(t *testing.T, c *spec.Job, in world.Config, out string, hooks func(process int) setup.Hooks) error {
	w, err := world.Enter(t.Context(), in)
	if err != nil {
		return err
	}
	defer w.Close()
	o := job.Options{Out: out, World: w}
	if hooks != nil {
		o.Hooks = hooks(in.Rank)
	}
	o.Hooks.Tile = 4000 // of offloaded state: several for each unit
	return job.Run(t.Context(), c, o)
}

// operations numbers the operations of a rank's groups, in the order in which they are issued.
type operations struct {
	n    atomic.Int64
	dies int64 // the operation that fails; -1: none
}

func (o *operations) wrap(_ int, g collective.Ranks) collective.Ranks {
	for _, of := range g.All() {
		*of = collectivetest.Faulty(*of, func(int) (f collectivetest.Fault) {
			if o.n.Add(1)-1 == o.dies {
				f.Err = errLink
			}
			return f
		})
	}
	return g
}

// surviving are jobs that go on without a replica, with their number of processes.
var surviving = []struct {
	processes int
	sets      []string
}{
	{6, []string{"parallel={ranks: 6, expert: 2}", "zero.stage=0", "model.family=llama", "model.experts={count: 4, per_token: 2}", "train.router_aux=0.1"}},
	{4, []string{"parallel={ranks: 8, shard: 2, replicate: 4}", "zero.stage=1", "precision=bf16", "checkpoint.async=false", "train.batch=24"}},
	{6, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=2", "train.accumulate=2", "train.batch=24"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=3", "precision=fp16", "optimizer.type=adamw8bit", "model.dropout=0.2"}},
	{4, []string{"parallel.ranks=4", "zero.stage=0", "train.sums=tree", "train.accumulate=null", "train.batch=24", "train.micro_batch=2"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=3", "train.sums=tree", "train.accumulate=null", "train.batch=12", "train.micro_batch=1", "model.dropout=0.2"}},
	{3, []string{"parallel={ranks: 6, tensor: 2, replicate: 3, shard: 1}", "zero.stage=1", "model.context=8"}},
	{6, []string{"parallel={ranks: 6, context: 2, replicate: 3, shard: 1}", "zero.stage=2", "optimizer.type=lion", "model.context=8"}},
	{6, []string{"parallel={ranks: 6, pipeline: 2, replicate: 3, shard: 1}", "zero.stage=1", "train.micro_batch=2", "train.accumulate=null"}},
	{6, []string{"parallel={ranks: 12, pipeline: 2, replicate: 3, shard: 2}", "zero.stage=3", "pipeline.schedule=GPipe", "train.micro_batch=1", "train.accumulate=null", "model.dropout=0.2"}},
	{6, []string{"parallel={ranks: 6, pipeline: 2}", "zero.stage=0", "pipeline.schedule=ZBH1", "model.family=llama", "train.micro_batch=1", "train.accumulate=null", "precision=fp16"}},
	{6, []string{"parallel={ranks: 12, shard: 2, expert: 2, replicate: 3}", "zero.stage=3", "model.family=llama", "model.experts={count: 2, per_token: 2}"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=3", "precision=fp16", "zero.offload={optimizer: disk, parameters: disk, path: " + os.TempDir() + ", buffers: 2}"}},
	{6, []string{"parallel={ranks: 6, pipeline: 2, replicate: 3, shard: 1}", "zero.stage=3", "train.micro_batch=2", "train.accumulate=null", "zero.offload={optimizer: disk, parameters: host, path: " + os.TempDir() + "}"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=2", "precision=bf16", "train.accumulate=2", "train.batch=24", "zero.offload={optimizer: host, ratio: 0.6}"}},
	{6, []string{"parallel={ranks: 12, pipeline: 2, expert: 2, replicate: 3, shard: 1}", "zero.stage=2", "model.family=llama", "model.experts={count: 4, per_token: 2}", "train.router_aux=0.1"}},
	{3, []string{"parallel={ranks: 3, replicate: 3, shard: 1}", "zero.stage=3", "zero.recompute=block", "zero.offload={parameters: disk, path: " + os.TempDir() + ", buffers: 2}"}},
	{5, []string{"parallel={ranks: 5, replicate: 5, shard: 1}", "zero.stage=3", "train.batch=12", "train.micro_batch=1", "train.accumulate=null", "zero.offload={optimizer: disk, parameters: host, path: " + os.TempDir() + "}"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=2", "optimizer.type=muon", "train.sums=tree", "train.accumulate=null", "train.batch=12", "train.micro_batch=1"}},
	{6, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=3", "optimizer.type=muon", "precision=fp16", "model.dropout=0.2", "zero.prefetch=0"}},
	{4, []string{"parallel={ranks: 8, tensor: 2, replicate: 4, shard: 1}", "zero.stage=1", "optimizer.type=muon", "optimizer.nesterov=false", "model.family=llama", "model.context=8"}},
	{6, []string{"parallel={ranks: 12, pipeline: 2, replicate: 3, shard: 2}", "zero.stage=1", "optimizer.type=muon", "train.micro_batch=2", "train.accumulate=null"}},
	{4, []string{"parallel.ranks=4", "zero.stage=0", "optimizer.type=muon", "train.lora.rank=3", "train.sums=tree", "train.accumulate=null", "train.batch=24", "train.micro_batch=2"}},
	{3, []string{"parallel={ranks: 6, shard: 2, replicate: 3}", "zero.stage=3", "optimizer.type=muon", "precision=bf16", "zero.offload={optimizer: disk, parameters: disk, path: " + os.TempDir() + ", buffers: 2}"}},
	{4, []string{"parallel={ranks: 4, replicate: 4, shard: 1}", "zero.stage=1", "optimizer.type=muon", "optimizer.nesterov=false", "zero.offload={optimizer: host, ratio: 0.6}"}},
}

// TestReplicaDiesAtAnyOperation checks that a run goes on when one or two ranks fail in any operation, that no
// step is lost, and that losses and state are those of a run that was stopped after the same step and
// resumed without the replica. With a tree of sums, they are those of the run that loses nobody.
func TestReplicaDiesAtAnyOperation(t *testing.T) {
	nightly.Parallel(t)
	for k, s := range surviving {
		if !nightly.Every(2, k) {
			continue
		}
		t.Run(strings.Join(s.sets, " "), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(k), 49))
			whole, sets := t.TempDir(), append([]string{"checkpoint.every=1", "checkpoint.keep=9", "faults={survive: true}"}, s.sets...)
			counts := make([]operations, s.processes)
			for i := range counts {
				counts[i].dies = -1
			}
			c := saving(t, whole, sets...)
			plain := t.TempDir()
			for p, err := range inProcesses(t, c, s.processes, plain, func(p int) setup.Hooks { return setup.Hooks{WrapGroups: counts[p].wrap} }) {
				if err != nil {
					t.Fatalf("process %d: %v", p, err)
				}
			}
			for range cases {
				victims := map[int]int64{} // the operation at which each dies
				for _, victim := range rng.Perm(s.processes)[:1+rng.IntN(2)] {
					victims[victim] = int64(rng.IntN(int(counts[victim].n.Load())))
				}
				t.Run(fmt.Sprint(victims), func(t *testing.T) { survivesAt(t, s.processes, sets, victims, whole) })
			}
		})
	}
}

// cases is the number of faults for each job of a test: 500 in all with ZEROTH_NIGHTLY.
var cases = nightly.Of(1, 32)

// survivesAt loses processes at some of their operations, and compares the run with a repetition from the
// checkpoints of one that lost nobody. Two losses may leave no majority.
func survivesAt(t *testing.T, n int, sets []string, victims map[int]int64, whole string) {
	dir, out := t.TempDir(), t.TempDir()
	c := saving(t, dir, sets...)
	errs := inProcesses(t, c, n, out, func(p int) (h setup.Hooks) {
		if dies, ok := victims[p]; ok {
			h.WrapGroups = (&operations{dies: dies}).wrap
		}
		return h
	})
	_, begun := os.Stat(filepath.Join(out, "metrics.jsonl"))
	_, ended := checkpoint.Resolve(dir, "6")
	if all := !slices.Contains(errs, nil); all && (begun != nil || ended == nil || len(victims) > 1) {
		return // losses before and after training end the run, and so do those that leave no majority
	}
	l, err := report.ReadLog(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	units := world.UnitsOf(spec.Mesh(c), c.Parallel.Ranks/n)
	for p, err := range errs {
		if err != nil && !isIn(victims, units, p) {
			t.Errorf("process %d: %v", p, err)
		}
	}
	if t.Failed() {
		return
	}
	sameAsRepeated(t, c, sets, l, out, whole)
}

// TestUpdateIsCompleted checks that ranks whose memory outside the device is slow complete an update when others are lost right
// after the statistics of its step, and that one whose disk fails meanwhile ends.
func TestUpdateIsCompleted(t *testing.T) {
	nightly.Parallel(t)
	for i, x := range []struct {
		job, passed int // statistics before the loss
		broken      bool
	}{{16, 1, false}, {12, 1, false}, {14, 4, false}, {13, 2, false}, {17, 1, true}} {
		if !nightly.Every(4, i) {
			continue
		}
		s := surviving[x.job]
		t.Run(fmt.Sprint(s.sets, x), func(t *testing.T) {
			t.Parallel()
			sets := append([]string{"checkpoint.every=1", "checkpoint.keep=9", "train.steps=4", "faults={survive: true}"}, s.sets...)
			whole, out, c := t.TempDir(), t.TempDir(), hosted(saving(t, t.TempDir(), sets...))
			run(t, saving(t, whole, append(slices.Clone(sets), "faults=null")...), "")
			var struck atomic.Bool
			lost, units := s.processes-1, world.UnitsOf(spec.Mesh(c), c.Parallel.Ranks/s.processes)
			errs := inProcesses(t, c, s.processes, out, func(p int) (h setup.Hooks) {
				h.Files = vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
					if o.Do != "write" || o.Off == 0 || !strings.HasSuffix(o.Name, ".offload") {
						return nil
					}
					time.Sleep(10 * time.Millisecond)
					if x.broken && p == 0 && struck.Load() {
						time.Sleep(200 * time.Millisecond) // others find the loss first
						return syscall.EIO
					}
					return nil
				}}
				h.WrapTrainer = func(_ int, z *zero.Config) { z.HostUpdate = slowUpdate{z.HostUpdate} }
				if p == lost {
					h.WrapGroups = func(_ int, g collective.Ranks) collective.Ranks { return diesAfter(g, x.passed, &struck) }
				}
				return h
			})
			for p, err := range errs {
				if fails := units[p] == units[lost] || x.broken && p == 0; fails != (err != nil) || x.broken && p == 0 && !errors.Is(err, syscall.EIO) {
					t.Errorf("process %d: %v", p, err)
				}
			}
			l, err := report.ReadLog(filepath.Join(out, "metrics.jsonl"))
			if err != nil || len(l.Changes) == 0 {
				t.Fatalf("%v, no changes", err)
			}
			sameAsRepeated(t, c, sets, l, out, whole)
		})
	}
}

// slowUpdate is a queue for updates with a delay before each mark.
type slowUpdate struct{ zero.Update }

func (q slowUpdate) Mark() device.Event {
	q.Do(func() error { time.Sleep(3 * time.Millisecond); return nil })
	return q.Update.Mark()
}

// diesAfter makes a rank fail in its first operation after some gathers of statistics.
func diesAfter(g collective.Ranks, passed int, struck *atomic.Bool) collective.Ranks {
	left := passed
	for role, of := range g.All() {
		*of = collectivetest.Faulty(*of, func(int) (f collectivetest.Fault) {
			if left == 0 {
				struck.Store(true)
				f.Err = errLink
			} else if role == collective.World {
				left--
			}
			return f
		})
	}
	return g
}

// sameAsRepeated compares a run that lost replicas with a repetition from the checkpoints of one that lost nobody.
func sameAsRepeated(t *testing.T, c *spec.Job, sets []string, l *report.Log, out, whole string) {
	dir, last := c.Checkpoint.Dir, fmt.Sprint(c.Train.Steps)
	if c.Train.Sums == "tree" && digest(t, dir, last) != digest(t, whole, last) {
		t.Errorf("the state differs from that of the run without losses: %+v", l.Changes)
	}
	for i, change := range l.Changes {
		if i+1 < len(l.Changes) && l.Changes[i+1].Step == change.Step {
			continue // nothing was computed in between
		}
		again := repeats(t, c, sets, change)
		from := ""
		if change.Step > 0 {
			from = filepath.Join(whole, fmt.Sprintf("step-%08d", change.Step))
		}
		repeated := run(t, again, from)
		whole = again.Checkpoint.Dir
		if i+1 < len(l.Changes) {
			continue
		}
		if got, want := losses(t, out, change.Step), losses(t, repeated, 0); !slices.Equal(got, want) {
			t.Errorf("%+v:\n%s\nrepeated\n%s", l.Changes, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if digest(t, dir, last) != digest(t, whole, last) {
		t.Errorf("the state differs from that of the repetition of %+v", l.Changes)
	}
}

// TestSlowReplicaIsLeftOut checks that a replica that delays all steps ends, process 0 among them, and that the others go on
// like after a loss; but not if it delays them less than the job says.
func TestSlowReplicaIsLeftOut(t *testing.T) {
	nightly.Long(t) // alone: it compares how long replicas take
	for i, x := range []struct {
		job, slow int
		sets      string
		stays     bool
	}{{2, 0, "train.seed=1", false}, {3, 0, "train.seed=2", false}, {2, 3, "train.seed=3", false}, {5, 2, "train.seed=4", false}, {8, 4, "train.seed=5", false}, {5, 1, "faults.leave_behind=1000", true}} {
		if !nightly.Every(6, i) {
			continue
		}
		s := surviving[x.job]
		t.Run(fmt.Sprint(s.sets, x.slow, x.sets), func(t *testing.T) {
			t.Parallel()
			sets := append([]string{"checkpoint.every=24", "faults={survive: true, leave_behind: 1}"}, s.sets...)
			sets = append(sets, "train.steps=24", "train.eval_every=9", x.sets)
			c, out := saving(t, t.TempDir(), sets...), t.TempDir()
			errs := inProcesses(t, c, s.processes, out, func(p int) (h setup.Hooks) {
				if p == x.slow {
					h.WrapGroups = func(_ int, g collective.Ranks) collective.Ranks {
						for _, of := range g.All() {
							*of = collectivetest.Faulty(*of, func(int) collectivetest.Fault { return collectivetest.Fault{Delay: 5 * time.Millisecond} })
						}
						return g
					}
				}
				return h
			})
			l, err := report.ReadLog(filepath.Join(out, "metrics.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			units := world.UnitsOf(spec.Mesh(c), c.Parallel.Ranks/s.processes)
			for p, err := range errs {
				if out := !x.stays && units[p] == units[x.slow]; out != errors.As(err, new(job.Slow)) || !out && err != nil {
					t.Errorf("process %d: %v", p, err)
				}
			}
			if x.stays && l.Changes == nil || t.Failed() {
				return
			}
			if len(l.Changes) != 1 || !l.Changes[0].Slow || l.Changes[0].Step < 20 {
				t.Errorf("changes %+v", l.Changes)
			}
			whole := t.TempDir()
			run(t, saving(t, whole, append(slices.Clone(sets), "checkpoint.every=1", "checkpoint.keep=24", "faults=null")...), "")
			sameAsRepeated(t, c, sets, l, out, whole)
		})
	}
}

// isIn reports whether a process belongs to a unit with a victim.
func isIn(victims map[int]int64, units []int, process int) bool {
	for v := range victims {
		if units[v] == units[process] {
			return true
		}
	}
	return false
}

// repeats returns the job with the replicas after a change.
func repeats(t *testing.T, c *spec.Job, sets []string, change report.Change) *spec.Job {
	m := spec.Mesh(c)
	return saving(t, t.TempDir(), append(slices.Clone(sets), fmt.Sprint("parallel.ranks=", m.World()/m.Size(shard.Replicate)*change.Replicas),
		fmt.Sprint("parallel.replicate=", min(c.Parallel.Replicate, change.Replicas)), "train.accumulate=null", fmt.Sprint("train.micro_batch=", c.Train.MicroBatch), "faults=null")...)
}
