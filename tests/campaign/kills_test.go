//go:build campaign && linux

package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
)

const (
	length   = 40 // steps of each run
	eachKill = 8  // kills per case
)

// ways are the runs to kill.
var ways = []struct {
	name string
	sets []string
}{
	{"stage 3, async", []string{"checkpoint.keep=2"}},
	{"stage 1, async, keep 1", []string{"zero.stage=1", "checkpoint.keep=1"}},
	{"stage 2, training waits", []string{"zero.stage=2", "checkpoint.async=false", "checkpoint.keep=2"}},
	{"compressed, best kept", []string{"checkpoint.compress=always", "checkpoint.keep={last: 2, best: val_loss}"}},
	{"offloaded to disk", []string{"zero.offload={optimizer: disk, parameters: disk, path: .}", "checkpoint.keep=2"}},
	{"mostly evaluating", []string{"train.eval_every=4", "train.eval_batches=400", "train.early_stop={metric: val_loss, patience: 90}", "checkpoint.keep=2"}},
	{"three ranks, fp32, lion", []string{"parallel.ranks=3", "precision=fp32", "optimizer.type=lion", "checkpoint.keep=2"}},
}

// undisturbed holds the results and the duration of a run that is not killed.
type undisturbed struct {
	model string
	lines []string // lines of metrics.jsonl, without times
	took  time.Duration
}

var wholeRuns sync.Map // by way: func() (*undisturbed, error)

func wholeRun(way int) (*undisturbed, error) {
	once, _ := wholeRuns.LoadOrStore(way, sync.OnceValues(func() (*undisturbed, error) {
		dir := filepath.Join(scratch, fmt.Sprint("whole-", way))
		if err := prepare(dir); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := inFolder(dir, killed(way)...); err != nil {
			return nil, err
		}
		u := &undisturbed{took: time.Since(begin)}
		raw, err := os.ReadFile(filepath.Join(dir, "run/model/model.safetensors"))
		if err != nil {
			return nil, err
		}
		u.model = string(raw)
		u.lines, err = lines(filepath.Join(dir, "run"))
		return u, err
	}))
	return once.(func() (*undisturbed, error))()
}

// killed returns the command that is killed and repeated.
func killed(way int) []string {
	args := []string{"train", "job.yaml", "--out", "run", "--resume", "latest", "--set", fmt.Sprint("train.steps=", length), "--set", "checkpoint.every=1"}
	for _, s := range ways[way].sets {
		args = append(args, "--set", s)
	}
	return args
}

// lines returns the steps and evaluations of a run, without times.
func lines(run string) (out []string, err error) {
	raw, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
	for _, line := range bytes.Split(bytes.TrimSpace(raw), []byte("\n")) {
		var l map[string]json.RawMessage
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if l["loss"] != nil || l["val_loss"] != nil {
			out = append(out, fmt.Sprintf("%s: %s %s %s %s %s", l["step"], l["loss"], l["lr"], l["grad_norm"], l["tokens"], l["val_loss"]))
		}
	}
	return out, err
}

// TestKills kills runs, and exports from them, at random instants. Each time the newest
// checkpoint must be intact and at least as new as the run had reported, and the same command
// must resume. Finally the parameters and metrics must be those of a run never killed, to the
// bit. Meanwhile other processes read the checkpoints of some runs, which they must never report
// as damaged, or start the same run again, which must be refused. Some runs are suspended for longer
// than parallel.timeout instead, which must change nothing, or have too few file descriptors.
func TestKills(t *testing.T) {
	disturbed(t, count(*kills), syscall.SIGKILL)
}

// TestSignals sends runs one or two signals at random instants. Exit code 75 must mean that there
// is a checkpoint to resume from. In some of the runs saving fails, as on a full disk, and the
// job continues regardless.
func TestSignals(t *testing.T) {
	disturbed(t, count(*signals), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
}

func disturbed(t *testing.T, n int, by ...syscall.Signal) {
	var kinds []string
	for _, w := range ways {
		kinds = append(kinds, w.name)
	}
	kill := (*disturbance).kill
	others := map[string]func(*disturbance){begunAgain: (*disturbance).begin, suspended: (*disturbance).suspend, starved: (*disturbance).starve}
	if by[0] == syscall.SIGKILL {
		kinds = append(kinds, begunAgain, suspended, starved)
	}
	trials(t, (n+eachKill-1)/eachKill, kinds, func(x *trial) string {
		x.must(prepare(x.dir))
		r, kill := &disturbance{trial: x, way: x.number % len(kinds), by: by}, kill
		if other := others[x.kind]; other != nil {
			r.way, kill = x.rng.IntN(len(ways)), other
		}
		whole, err := wholeRun(r.way)
		x.must(err)
		r.whole = whole
		for done := 0; done < eachKill; done++ {
			kill(r)
		}
		r.finish()
		x.counts.count(x.kind, "hits", r.hits)
		return "the same bits"
	})
}

// disturbance is a run that is killed repeatedly.
type disturbance struct {
	*trial
	way   int
	by    []syscall.Signal
	whole *undisturbed
	hits  int // processes killed before they ended by themselves
}

// kill starts the run and kills it at a random instant. If the run has ended before, it is
// compared and started afresh.
func (r *disturbance) kill() {
	full := r.by[0] != syscall.SIGKILL && r.rng.IntN(4) == 0 && !strings.Contains(ways[r.way].name, "disk")
	args, files := killed(r.way), 0
	if full { // limit files to 32 kB, less than a checkpoint needs
		args, files = append(args, "--set", "checkpoint.on_error=continue"), 64
	}
	after := time.Duration(r.rng.Int64N(int64(r.whole.took)))
	if r.rng.IntN(4) == 0 {
		after = time.Duration(r.rng.Int64N(int64(20 * time.Millisecond)))
	}
	p, by := r.start(files, args...), pick(r.rng, r.by)
	meanwhile := r.beside(by)
	time.Sleep(after)
	p.send(by)
	if by != syscall.SIGKILL && r.rng.IntN(5) == 0 {
		time.Sleep(time.Duration(r.rng.Int64N(int64(10 * time.Millisecond))))
		p.send(pick(r.rng, r.by))
	}
	e := p.wait()
	if meanwhile != nil {
		meanwhile()
	}
	codes := []int{0, -1, 75, 130}
	if strings.Contains(e.errs, "there is no checkpoint to continue from") {
		codes = []int{1, 130}
	}
	r.check(e, args, codes...)
	r.ran = append(r.ran, fmt.Sprintf("    (%v after %v)", by, after.Round(time.Millisecond)))
	if e.code == 0 && e.signal == 0 {
		r.compare()
		r.must(os.RemoveAll(filepath.Join(r.dir, "run")))
		return
	}
	r.hits++
	r.left(e, by, full)
}

// suspended is the kind of run that is stopped and continued later, as by Ctrl-Z or a laptop's lid.
const suspended = "suspended, then continued"

// suspend suspends a run for longer than parallel.timeout. It must end as if it had not been.
func (r *disturbance) suspend() {
	args := append(killed(r.way), "--set", "parallel.timeout=1s")
	p, after, pause := r.start(0, args...), time.Duration(r.rng.Int64N(int64(r.whole.took))), time.Duration(r.rng.Int64N(int64(2500*time.Millisecond)))
	time.Sleep(after)
	p.send(syscall.SIGSTOP)
	time.Sleep(pause)
	p.send(syscall.SIGCONT)
	r.check(p.wait(), args, 0)
	r.ran = append(r.ran, fmt.Sprintf("    (suspended after %v for %v)", after.Round(time.Millisecond), pause.Round(time.Millisecond)))
	r.hits++
	r.compare()
	r.must(os.RemoveAll(filepath.Join(r.dir, "run")))
}

// starved is the kind of run that may open few files.
const starved = "few file descriptors"

// starve runs the command with too few file descriptors, in one process or two. It must name the limit,
// and go on without it.
func (r *disturbance) starve() {
	args := killed(r.way)
	if r.rng.IntN(2) == 0 && !slices.Contains(args, "parallel.ranks=3") {
		args = append([]string{"launch", "-n", "2", "--"}, args...)
	}
	r.files = 9 + r.rng.IntN(10)
	e := r.start(0, args...).wait()
	r.check(e, args, 0, 1, 2, 75)
	if e.code != 0 {
		r.hits++
		if !strings.Contains(e.errs, "ulimit -n is ") {
			r.Errorf("%s with ulimit -n %d says nothing about it:\n%s", command(args), r.files, brief(e.said()))
		}
	}
	r.files = 0
	r.finish()
	r.must(os.RemoveAll(filepath.Join(r.dir, "run")))
}

// begunAgain is the kind of run that is killed in its first 50 ms.
const begunAgain = "in the first 50 ms, begun again"

// begin kills a run without --resume in its first 50 ms. The same command must then train or, if
// the run had begun, say how to resume it, which must work.
func (r *disturbance) begin() {
	args := slices.DeleteFunc(killed(r.way), func(a string) bool { return a == "--resume" || a == "latest" })
	p := r.start(0, args...)
	after := time.Duration(r.rng.Int64N(int64(50 * time.Millisecond)))
	time.Sleep(after)
	p.send(syscall.SIGKILL)
	e := p.wait()
	r.check(e, args, 0, -1)
	r.ran = append(r.ran, fmt.Sprintf("    (killed after %v)", after.Round(time.Millisecond)))
	if e.signal != 0 {
		r.hits++
		if e = r.zeroth(nil, args...); e.code != 0 {
			if _, err := os.Stat(filepath.Join(r.dir, "run/job.yaml")); err != nil || !strings.Contains(e.said(), "--resume latest") {
				r.Errorf("refused, and there is no run to resume: %v", err)
			}
			r.counts.count(r.kind, "resumed", 1)
			r.zeroth(nil, killed(r.way)...)
		}
	}
	r.compare()
	r.must(os.RemoveAll(filepath.Join(r.dir, "run")))
}

// beside starts another process that uses the run; wait returns once it has ended.
func (r *disturbance) beside(by syscall.Signal) (wait func()) {
	if by != syscall.SIGKILL || r.rng.IntN(3) > 0 {
		return nil
	}
	time.Sleep(r.whole.took / 4)
	switch r.rng.IntN(3) {
	case 0:
		args := []string{"plot", "run", "--out", "one.svg"}
		p, q := r.start(0, args...), r.start(0, args...)
		return func() {
			r.check(p.wait(), args, 0, 2) // 2: there are no metrics yet
			r.check(q.wait(), args, 0, 2)
		}
	case 1:
		args := []string{"ckpt", pick(r.rng, []string{"verify", "inspect", "ls"}), "run"}
		if _, err := os.Stat(filepath.Join(r.dir, "run/ckpt")); err != nil {
			return nil
		}
		p := r.start(0, args...)
		return func() {
			e := p.wait()
			r.check(e, args, 0, 1, 2)
			if strings.Contains(e.said(), "damaged") {
				r.Errorf("beside a run that deletes old checkpoints, %s says: %s", command(args), e.said())
			}
		}
	}
	args := killed(r.way)
	p := r.start(0, args...)
	return func() {
		e := p.wait()
		r.check(e, args, 0, 1, 2) // 0: the first process was killed before this one started
	}
}

var written = regexp.MustCompile(`(?m)^checkpoint \S*step-(\d+)\S* written`)

// left checks what a killed run has left.
func (r *disturbance) left(e ended, by syscall.Signal, full bool) {
	dir := filepath.Join(r.dir, "run/ckpt")
	said := int64(-1)
	for _, m := range written.FindAllStringSubmatch(e.out, -1) {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		said = max(said, n)
	}
	path, err := checkpoint.Resolve(dir, "latest")
	if err != nil {
		if said >= 0 || e.code == 75 {
			r.Errorf("exit code %d after %v, checkpoint of step %d said to be written, and there is none: %v", e.code, by, said, err)
		}
		if r.exported() != "" { // a fresh start does not overwrite it
			r.must(os.RemoveAll(filepath.Join(r.dir, "run")))
		}
		return
	}
	bad, err := checkpoint.Verify(context.Background(), path, checkpoint.Walk{})
	if err != nil || len(bad) > 0 {
		r.Errorf("%s after %v: %v, %v", path, by, bad, err)
	}
	if n, _ := strconv.ParseInt(filepath.Base(path)[len("step-"):][:8], 10, 64); n < said {
		r.Errorf("step %d was said to be written, the newest is %s", said, path)
	}
	if e.code == 75 && full && said < 0 && strings.Contains(e.out, "starting at step 0") {
		r.Errorf("exit code 75, and this run wrote no checkpoint:\n%s", e.said())
	}
	if r.rng.IntN(4) == 0 {
		r.export(path)
	}
}

// export kills an export. A model under the final name must be complete, and the same command
// must work after the leftovers are removed.
func (r *disturbance) export(path string) {
	from, _ := filepath.Rel(r.dir, path)
	to, again := filepath.Join(r.dir, "export"), filepath.Join(r.dir, "again")
	p := r.start(0, "ckpt", "export", from, "--to", "export")
	time.Sleep(time.Duration(r.rng.Int64N(int64(15 * time.Millisecond))))
	p.send(pick(r.rng, r.by))
	p.wait()
	r.zeroth(nil, "ckpt", "export", from, "--to", "again")
	if got, err := os.ReadFile(filepath.Join(to, "model.safetensors")); err == nil && string(got) != string(r.read(filepath.Join(again, "model.safetensors"))) {
		r.Errorf("a killed export left a model.safetensors that is not whole")
	}
	r.must(os.RemoveAll(to))
	r.must(os.RemoveAll(again))
}

// finish runs the command to its end.
func (r *disturbance) finish() {
	r.zeroth(nil, killed(r.way)...)
	r.compare()
	if left, _ := filepath.Glob(filepath.Join(r.dir, "run/.probe*")); len(left) > 0 {
		r.Errorf("left behind: %v", left)
	}
}

// compare compares a finished run with an undisturbed one.
func (r *disturbance) compare() {
	if r.exported() != r.whole.model {
		r.Errorf("the parameters are not those of a run never killed")
	}
	got, err := lines(filepath.Join(r.dir, "run"))
	if err != nil || !slices.Equal(got, r.whole.lines) {
		missing := slices.DeleteFunc(slices.Clone(r.whole.lines), func(l string) bool { return slices.Contains(got, l) })
		r.Errorf("metrics.jsonl has other lines than that of a run never killed (%d, want %d; %v), without %q", len(got), len(r.whole.lines), err, missing)
	}
}
