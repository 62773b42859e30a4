//go:build cuda && mutation

package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
	"zeroth/internal/setup"
	"zeroth/zero/zerotest"
)

// mutated is a job from which waits are removed.
type mutated struct {
	sets []string
	tile int           // maximum number of elements offloaded at a time; 0: offload's default
	lag  time.Duration // delay of the host at each wait of the device's queues
}

// mutatedJobs contain waits of every kind: two ranks that gather, reduce and recompute,
// micro-batches whose gradients accumulate, and optimizer states that are half on the host.
// In the second job, buffers that are used in turn (token ids and staging) are reused before the
// step's only wait on the host, and the host is late.
var mutatedJobs = []mutated{
	{sets: []string{"train.accumulate=2"}},
	{sets: []string{"train.accumulate=3"}, tile: 256, lag: time.Millisecond},
}

var mutatedSets = []string{"device=cuda", "parallel.ranks=2", "zero.stage=3", "train.steps=2", "precision=bf16",
	"model.family=llama", "model.layers=2", "model.heads=2", "model.kv_heads=1", "model.width=16", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"}

// wait identifies a wait across runs: the nth with the same description.
type wait struct {
	rank             int
	queue, label, on string
	n                int
}

func (w wait) String() string {
	return fmt.Sprintf("%d|%s|%s|%s|%d", w.rank, w.queue, w.label, w.on, w.n)
}

// waits counts the waits of a run and omits one of them.
type waits struct {
	mu    sync.Mutex
	ranks map[*cuda.Device]int
	count map[wait]int // number of waits so far; n is ignored in the key
	all   []wait
	drop  string                  // the wait to omit, as in wait.String
	late  map[*cuda.Device]func() // delays the host
}

func (w *waits) leaveOut(x cuda.Wait) bool {
	switch x.Queue {
	case "compute", "comm", "update": // the goroutine that issues these also issues the host's queue
		if late := w.late[x.Device]; late != nil {
			late()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rank, known := w.ranks[x.Device]
	if !known {
		return false // the job is still opening
	}
	k := wait{rank: rank, queue: x.Queue, label: x.Label, on: x.On}
	k.n, w.count[k] = w.count[k], w.count[k]+1
	w.all = append(w.all, k)
	return k.String() == w.drop
}

// trainWithout trains a job without the wait drop, or with all waits if drop is empty.
func trainWithout(t *testing.T, j mutated, drop string) (out zerotest.Outcome, all []wait, err error) {
	c := cfg(t, append(j.sets, mutatedSets...)...)
	ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{Tile: j.tile}))
	if err != nil {
		return out, nil, err
	}
	defer zerotest.CloseAll(ranks)
	w := &waits{ranks: map[*cuda.Device]int{}, count: map[wait]int{}, drop: drop, late: map[*cuda.Device]func(){}}
	for _, r := range ranks {
		dev := r.Queues[setup.Compute].(*cuda.Queue).On()
		w.ranks[dev] = r.Rank
		if host := r.Queues[setup.HostUpdate]; j.lag > 0 {
			w.late[dev] = func() { host.Do(func() error { time.Sleep(j.lag); return nil }) }
		}
	}
	cuda.LeaveOut = w.leaveOut
	defer func() { cuda.LeaveOut = nil }() // all waits are active while ranks are closed
	out = zerotest.Outcome{State: map[string][]float32{}}
	err = zerotest.TrainInto(c, ranks, &out, make(chan struct{}, 1))
	return out, w.all, err
}

// mutants names the environment variable with a file of waits. A test process omits them from one
// of mutatedJobs, one after the other, each as often as runs specifies.
const mutants, runs, mutatedIs = "ZEROTH_MUTANTS", "ZEROTH_MUTANT_RUNS", "ZEROTH_MUTATED"

// TestWithoutWaits trains without each wait of a file. It ends with the first run that fails,
// since the context may be broken.
func TestWithoutWaits(t *testing.T) {
	file := os.Getenv(mutants)
	if file == "" {
		t.Skip("run by TestEveryWaitOfAJobIsNeeded")
	}
	kept, err := cuda.Open(0) // avoids loading the kernels again in each run
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	at, _ := strconv.Atoi(os.Getenv(mutatedIs)) // set by the parent
	job := mutatedJobs[at]
	want, all, err := trainWithout(t, job, "")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		var b strings.Builder
		for _, w := range all {
			if w.rank == 0 { // all ranks have the same waits
				fmt.Fprintln(&b, w)
			}
		}
		err = os.WriteFile(file, []byte(b.String()), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	times, _ := strconv.Atoi(os.Getenv(runs)) // set by the parent
	for line := range strings.Lines(string(raw)) {
		drop := strings.TrimSuffix(line, "\n")
		verdict := "missed"
		for range times {
			got, _, err := trainWithout(t, job, drop)
			if err != nil {
				fmt.Printf("mutant caught %s\n", drop)
				return
			}
			if got.Digest() != want.Digest() || !slices.Equal(got.Losses, want.Losses) || !slices.Equal(got.Norms, want.Norms) {
				verdict = "caught"
				break
			}
		}
		fmt.Printf("mutant %s %s\n", verdict, drop)
	}
}

// TestEveryWaitOfAJobIsNeeded removes the waits for events from training jobs, one at a time,
// with several orders of work. A wait may be redundant where it stands in these jobs, so the test
// considers places: a place, which is a line of code that issues work to a queue, is needed if
// removing one of its waits is detected. It lists the places and how many of their waits were
// detected. For later jobs it tries only places not yet known to be needed, and only some of their
// waits.
func TestEveryWaitOfAJobIsNeeded(t *testing.T) {
	fake.Only(t)
	places, caught := map[string]int{}, map[string]int{}
	for job := range mutatedJobs {
		all := waitsOf(t, job)
		left := slices.DeleteFunc(all, func(w string) bool { return caught[placeOf(w)] > 0 })
		if job > 0 {
			left = spread(left, 6)
		}
		for _, w := range left {
			places[placeOf(w)]++
		}
		for i, mode := range []string{"lazy:1", "threads:200", "lazy:2", "lazy:3", "lazy:4", "lazy:5", "lazy:6", "threads:300"} {
			again := missed(t, job, left, mode, 1+i/2)
			for _, w := range left {
				if !slices.Contains(again, w) {
					caught[placeOf(w)]++
				}
			}
			left = again
			t.Logf("job %d after %s: %d waits, at %d of %d places, are noticed", job+1, mode, total(caught), len(caught), len(places))
			if i > 0 { // try only places not yet known to be needed
				left = slices.DeleteFunc(left, func(w string) bool { return caught[placeOf(w)] > 0 })
			}
		}
	}
	var lines []string
	for p, n := range places {
		lines = append(lines, fmt.Sprintf("%2d of %2d %s", caught[p], n, p))
	}
	slices.Sort(lines)
	t.Logf("noticed, queue | label | on\n%s", strings.Join(lines, "\n"))
}

// waitsOf returns the waits of rank 0 of a job.
func waitsOf(t *testing.T, job int) []string {
	list := filepath.Join(t.TempDir(), "waits")
	fake.Again(t, "TestWithoutWaits", mutants+"="+list, fmt.Sprintf("%s=%d", mutatedIs, job))
	raw, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

// spread returns at most n waits of each place, evenly from the first to the last.
func spread(ws []string, n int) (some []string) {
	at := map[string][]string{}
	for _, w := range ws {
		at[placeOf(w)] = append(at[placeOf(w)], w)
	}
	for _, p := range slices.Sorted(maps.Keys(at)) {
		n := min(n, len(at[p]))
		for i := range n {
			some = append(some, at[p][i*len(at[p])/n])
		}
	}
	return some
}

// placeOf returns a wait without its rank and number.
func placeOf(w string) string {
	f := strings.Split(w, "|")
	return strings.Join(f[1:4], " | ")
}

func total(m map[string]int) (n int) {
	for _, x := range m {
		n += x
	}
	return n
}

// missed returns the waits that can be removed without being detected. A process runs until one
// removal fails, and not for long, since it leaks memory.
func missed(t *testing.T, job int, all []string, mode string, times int) (left []string) {
	const most = 100
	for len(all) > 0 {
		some := all[:min(most, len(all))]
		list := filepath.Join(t.TempDir(), "some")
		if err := os.WriteFile(list, []byte(strings.Join(some, "\n")+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := fake.Self("-test.run=^TestWithoutWaits$", "-test.count=1")
		cmd.Env = append(os.Environ(), "FAKECUDA_MODE="+mode, mutants+"="+list, fmt.Sprintf("%s=%d", runs, times), fmt.Sprintf("%s=%d", mutatedIs, job))
		out, _ := cmd.CombinedOutput() // its output reports how it ended
		done := 0
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			verdict, found := strings.CutPrefix(s.Text(), "mutant ")
			if !found {
				continue
			}
			if strings.HasPrefix(verdict, "missed") {
				left = append(left, some[done])
			}
			done++
		}
		if done == 0 {
			if !bytes.Contains(out, []byte("panic")) && !bytes.Contains(out, []byte("SIG")) {
				t.Fatalf("%s\n%s", some[0], out)
			}
			done = 1 // the process cannot run without this wait
		}
		all = all[done:]
	}
	return left
}
