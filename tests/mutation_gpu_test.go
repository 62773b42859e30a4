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
	"zeroth/job/setup"
)

// mutated is a job whose waits are left out.
type mutated struct {
	sets []string
	tile int           // most elements that are offloaded at a time; 0 is offload's choice
	lag  time.Duration // that the host falls behind at each wait of the device's queues
}

// mutatedJobs have a wait of every kind: two ranks that gather, reduce and recompute,
// micro-batches that add up, and optimizer states of which half are on the host. In the
// second one all that is taken in turns is taken again before the step's one wait on
// the host: buffers of token ids and pieces of staging; and the host is late.
var mutatedJobs = []mutated{
	{sets: []string{"train.accumulate=2"}},
	{sets: []string{"train.accumulate=3"}, tile: 256, lag: time.Millisecond},
}

var mutatedSets = []string{"device=cuda", "parallel.ranks=2", "zero.stage=3", "train.steps=2", "precision=bf16",
	"model.family=llama", "model.layers=2", "model.heads=2", "model.kv_heads=1", "model.width=16", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"}

// wait is one of a run, by which it is known in another run: the nth with its words.
type wait struct {
	rank             int
	queue, label, on string
	n                int
}

func (w wait) String() string {
	return fmt.Sprintf("%d|%s|%s|%s|%d", w.rank, w.queue, w.label, w.on, w.n)
}

// waits counts the waits of a run and leaves one of them out.
type waits struct {
	mu    sync.Mutex
	ranks map[*cuda.Device]int
	count map[wait]int // how many, by all but n
	all   []wait
	drop  string                  // of wait.String
	late  map[*cuda.Device]func() // has the host fall behind
}

func (w *waits) leaveOut(x cuda.Wait) bool {
	switch x.Queue {
	case "compute", "comm", "update": // whose issuer issues the host's queue, too
		if late := w.late[x.Device]; late != nil {
			late()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rank, known := w.ranks[x.Device]
	if !known {
		return false // while the job opens
	}
	k := wait{rank: rank, queue: x.Queue, label: x.Label, on: x.On}
	k.n, w.count[k] = w.count[k], w.count[k]+1
	w.all = append(w.all, k)
	return k.String() == w.drop
}

// trainWithout trains a job without a wait, with all if drop is empty.
func trainWithout(t *testing.T, j mutated, drop string) (out outcome, all []wait, err error) {
	c := cfg(t, append(j.sets, mutatedSets...)...)
	ranks, err := setup.Open(setup.Place(c, setup.Alone{}, setup.Hooks{Tile: j.tile}))
	if err != nil {
		return out, nil, err
	}
	defer closeAll(ranks)
	w := &waits{ranks: map[*cuda.Device]int{}, count: map[wait]int{}, drop: drop, late: map[*cuda.Device]func(){}}
	for _, r := range ranks {
		dev := r.Queues[0].(*cuda.Queue).On()
		w.ranks[dev] = r.Rank
		if host := r.Queues[3]; j.lag > 0 {
			w.late[dev] = func() { host.Do(func() error { time.Sleep(j.lag); return nil }) }
		}
	}
	cuda.LeaveOut = w.leaveOut
	defer func() { cuda.LeaveOut = nil }() // ranks are closed with all waits
	out = outcome{state: map[string][]float32{}}
	err = trainInto(c, ranks, &out, make(chan struct{}, 1))
	return out, w.all, err
}

// mutants names the file of the waits that a process of this test leaves out of one of
// mutatedJobs, one after the other, each as often as runs says.
const mutants, runs, mutatedIs = "ZEROTH_MUTANTS", "ZEROTH_MUTANT_RUNS", "ZEROTH_MUTATED"

// TestWithoutWaits trains without each wait of a file. The first run that fails ends
// it: the context may be broken.
func TestWithoutWaits(t *testing.T) {
	file := os.Getenv(mutants)
	if file == "" {
		t.Skip("run by TestEveryWaitOfAJobIsNeeded")
	}
	kept, err := cuda.Open(0) // so that no run loads the kernels again
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	at, _ := strconv.Atoi(os.Getenv(mutatedIs)) // the parent's own
	job := mutatedJobs[at]
	want, all, err := trainWithout(t, job, "")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		var b strings.Builder
		for _, w := range all {
			if w.rank == 0 { // ranks are alike
				fmt.Fprintln(&b, w)
			}
		}
		err = os.WriteFile(file, []byte(b.String()), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	times, _ := strconv.Atoi(os.Getenv(runs)) // the parent's own
	for line := range strings.Lines(string(raw)) {
		drop := strings.TrimSuffix(line, "\n")
		verdict := "missed"
		for range times {
			got, _, err := trainWithout(t, job, drop)
			if err != nil {
				fmt.Printf("mutant caught %s\n", drop)
				return
			}
			if got.digest() != want.digest() || !slices.Equal(got.losses, want.losses) || !slices.Equal(got.norms, want.norms) {
				verdict = "caught"
				break
			}
		}
		fmt.Printf("mutant %s %s\n", verdict, drop)
	}
}

// TestEveryWaitOfAJobIsNeeded leaves the waits for events of training jobs out, one
// at a time, in several orders of the work. A wait that has nothing to wait for where
// it stands in these jobs may be missed by nobody; a place, which is a line of a queue's
// work, is needed where one of its waits is. Listed are the places and how many of their
// waits were noticed. Of a later job only places are tried that no wait was noticed at,
// some waits of each.
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
			if i > 0 { // what is left of the others is not wanted
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

// waitsOf are the waits of rank 0 of a job.
func waitsOf(t *testing.T, job int) []string {
	list := filepath.Join(t.TempDir(), "waits")
	fake.Again(t, "TestWithoutWaits", mutants+"="+list, fmt.Sprintf("%s=%d", mutatedIs, job))
	raw, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

// spread are at most n waits of each place, from the first to the last of it.
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

// placeOf is a wait but for its rank and its turn.
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

// missed are those of the waits of a job that runs without them do not notice. A process runs
// until one of them fails, and not for long: what it frees stays taken.
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
		out, _ := cmd.CombinedOutput() // what its end says is in its lines
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
			done = 1 // without it the process does not live
		}
		all = all[done:]
	}
	return left
}
