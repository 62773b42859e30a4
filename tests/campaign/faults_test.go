//go:build campaign && linux && amd64

package campaign

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
)

// scenario is a command of which every system call on a file is made to fail.
type scenario struct {
	name  string
	from  []string                    // command that prepares the folder
	args  []string                    // the command under test
	out   []string                    // files that must equal those of an undisturbed run if the exit code is 0
	again func(x *trial, s *scenario) // run after the command failed or was killed
}

func training(sets ...string) []string {
	args := []string{"train", "job.yaml", "--out", "run", "--resume", "latest", "--set", "train.steps=3", "--set", "checkpoint.every=1"}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	return args
}

var (
	modelFiles = []string{"config.json", "model.safetensors", "vocab.json", "merges.txt", "tokenizer_config.json"}
	runFiles   = []string{"run/model/config.json", "run/model/model.safetensors", "run/loss.svg", "run/model/vocab.json", "run/model/merges.txt"}
)

func under(dir string, files []string) (out []string) {
	for _, f := range files {
		out = append(out, filepath.Join(dir, f))
	}
	return out
}

// inTwo returns the arguments of one of two processes that train together.
func inTwo(rank string, sets ...string) []string {
	return append(training(append(sets, "parallel.timeout=5m", "parallel.join=5s")...), "--world", "2", "--rank", rank, "--addr", "ADDR")
}

var scenes = []*scenario{
	{"train in two processes, keep 1", nil, inTwo("0", "checkpoint.keep=1"), runFiles, nil},
	{"train in two processes, training waits", nil, inTwo("0", "checkpoint.keep=1", "checkpoint.async=false"), runFiles, nil},
	{"train, process 1 of two", nil, inTwo("1", "checkpoint.keep=1"), nil, nil},
	{"train, keep 1", nil, training("checkpoint.keep=1"), runFiles, resumed},
	{"train on, training waits", training("train.steps=2"), training("checkpoint.keep=1", "checkpoint.async=false"), runFiles, resumed},
	{"train, compressed, errors do not stop", nil, training("checkpoint.compress=always", "checkpoint.on_error=continue"), runFiles, resumed},
	{"train, offloaded to disk", nil, training("zero.offload={optimizer: disk, parameters: disk, path: .}"), runFiles, resumed},
	{"ckpt export", training(), []string{"ckpt", "export", "run", "--to", "export"}, under("export", modelFiles), elsewhere},
	{"ckpt export in parts", training(), []string{"ckpt", "export", "run", "--to", "export", "--shard-size", "4KB"}, nil, elsewhere},
	{"ckpt import", training(), []string{"ckpt", "import", "run/model", "--to", "imported"}, nil, elsewhere},
	{"ckpt prune", training(), []string{"ckpt", "prune", "run", "--keep", "1"}, nil, resumed},
	{"ckpt verify", training(), []string{"ckpt", "verify", "run"}, nil, nil},
	{"ckpt ls", training(), []string{"ckpt", "ls", "run"}, nil, nil},
	{"ckpt inspect", training(), []string{"ckpt", "inspect", "run"}, nil, nil},
	{"ckpt diff", training(), []string{"ckpt", "diff", "run/ckpt/step-00000003", "run/ckpt/step-00000003"}, nil, nil},
	{"tokenize", nil, []string{"tokenize", "--tokenizer", "bytes", "text.txt", "--out", "text.bin"}, []string{"text.bin"}, nil},
	{"sample", training(), []string{"sample", "--run", "run", "--prompt", "the run", "--tokens", "1"}, nil, nil},
	{"eval", training(), []string{"eval", "job.yaml", "--run", "run"}, nil, nil},
	{"plot", training(), []string{"plot", "run", "--out", "plot.svg"}, []string{"plot.svg"}, nil},
	{"init", nil, []string{"init", "quickstart", "new.yaml"}, []string{"new.yaml"}, nil},
}

// wholeScene holds the results of an undisturbed run of a scenario.
type wholeScene struct {
	home  string // folder before the command
	files map[string]string
	lines []string
	said  string
	calls []call
	write map[call]bool
}

var wholeScenes sync.Map

func (s *scenario) whole(t *testing.T) *wholeScene {
	once, _ := wholeScenes.LoadOrStore(s.name, sync.OnceValue(func() *wholeScene {
		w := &wholeScene{home: filepath.Join(scratch, "scene-"+strings.ReplaceAll(s.name, " ", "-")), files: map[string]string{}}
		x := &trial{T: t, dir: w.home, counts: &tally{}}
		x.must(prepare(w.home))
		if s.from != nil {
			x.must(inFolder(w.home, s.from...))
		}
		x.dir = w.home + "-done"
		x.copyTree(w.home, x.dir)
		e, tr := s.runs(x, fault{})
		if e.code != 0 {
			t.Fatalf("%s: %s", command(s.args), e.said())
		}
		for _, f := range s.out {
			w.files[f] = string(x.read(filepath.Join(x.dir, f)))
		}
		if s.args[0] == "train" {
			var err error
			w.lines, err = lines(filepath.Join(x.dir, "run"))
			x.must(err)
		}
		w.said, w.calls, w.write = e.out, tr.seen, tr.writes
		return w
	}))
	return once.(func() *wholeScene)()
}

// faults returns the faults of all calls. Of many similar calls it uses the first two and the
// last.
func (w *wholeScene) faults() (all []fault) {
	last := map[call]int{}
	for _, c := range w.calls {
		last[call{c.name, c.path, 0}] = c.nth
	}
	for _, c := range w.calls {
		if c.nth > 2 && c.nth != last[call{c.name, c.path, 0}] {
			continue
		}
		all = append(all, fault{at: c, err: syscall.EIO})
		if w.write[c] {
			all = append(all, fault{at: c, late: true})
		}
		moves := slices.Contains([]string{"read", "pread", "write", "pwrite"}, c.name)
		if moves {
			all = append(all, fault{at: c, torn: true})
		}
		if !w.write[c] || c.name == "close" {
			continue
		}
		all = append(all, fault{at: c, before: true}, fault{at: c, after: true}, fault{at: c, err: syscall.ENOSPC, always: true})
		if c.name == "create" || c.name == "mkdirat" || c.name == "renameat" {
			all = append(all, fault{at: c, err: syscall.EROFS, always: true})
		}
		if moves {
			all = append(all, fault{at: c, after: true, torn: true})
		}
	}
	return all
}

// TestFaults makes each system call on a file fail, transfer half of its bytes, or kill the
// process.
func TestFaults(t *testing.T) {
	type one struct {
		*scenario
		fault
	}
	var all []one
	var kinds []string
	for _, s := range scenes {
		if !strings.Contains(s.name, *scene) {
			continue
		}
		for _, f := range s.whole(t).faults() {
			all, kinds = append(all, one{s, f}), append(kinds, s.name)
		}
	}
	t.Logf("%d faults", len(all))
	n := min(len(all), count(*faults))
	trials(t, n, kinds, func(x *trial) string {
		at := all[x.number*len(all)/n]
		x.kind = at.name
		return at.tried(x, at.fault)
	})
}

// lookers are commands that only read, in addition to those of scenes.
var lookers = []*scenario{
	{name: "plan", args: []string{"plan", "job.yaml", "--machine", "h100"}},
	{name: "plan --model", from: training(), args: []string{"plan", "--model", "run/model", "--json"}},
	{name: "fit", args: []string{"fit", "job.yaml", "--gpus", "8", "--gpu-memory", "80GiB"}},
	{name: "model", from: training(), args: []string{"model", "run/model"}},
	{name: "doctor", args: []string{"doctor"}},
	{name: "help", args: []string{"help", "job"}},
}

// TestStops sends signals to commands that do not train. Each must complete or end with exit code
// 130, and the same command must then work.
func TestStops(t *testing.T) {
	var all []*scenario
	var kinds []string
	for _, s := range slices.Concat(scenes, lookers) {
		if s.args[0] != "train" {
			all, kinds = append(all, s), append(kinds, s.name)
		}
	}
	trials(t, count(*stops), kinds, func(x *trial) string { return all[x.number%len(all)].stopped(x) })
}

// stopped sends a signal within the first 100 ms, often within the first 30.
func (s *scenario) stopped(x *trial) string {
	w := s.whole(x.T)
	x.copyTree(w.home, x.dir)
	before := look(x.dir)
	p, by := x.start(0, s.args...), pick(x.rng, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP})
	after := time.Duration(x.rng.Int64N(int64(pick(x.rng, []time.Duration{30, 100}) * time.Millisecond)))
	time.Sleep(after)
	p.send(by)
	e := p.wait()
	x.ran = append(x.ran, fmt.Sprintf("  (%v after %v)", by, after))
	x.check(e, s.args, -1, 0, 130)
	x.swept()
	switch {
	case e.signal != 0: // before it handled signals, and so before it wrote anything
		x.same(before, look(x.dir), "a signal at the start")
		return "ended before it heard signals"
	case e.code == 0:
		return "done before"
	case s.again != nil:
		s.again(x, s)
	default:
		if e := x.zeroth(nil, s.args...); e.code == 0 && s.name != "doctor" { // its output contains the free memory
			s.same(x, e, fault{err: syscall.EIO})
		} else if e.code != 0 {
			x.Errorf("stopped, and then refused: %s", e.said())
		}
	}
	return "stopped"
}

// runs runs the command with a fault, together with the other process if it trains in two. The
// other process must end by itself.
func (s *scenario) runs(x *trial, f fault) (ended, *tracer) {
	at := slices.Index(s.args, "ADDR")
	if at < 0 {
		return x.traced(f, s.args...)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	x.must(err)
	x.must(l.Close())
	args := slices.Clone(s.args)
	args[at] = l.Addr().String()
	other := slices.Clone(args)
	rank := slices.Index(other, "--rank") + 1
	other[rank] = map[string]string{"0": "1", "1": "0"}[other[rank]]
	p := x.start(0, other...)
	e, tr := x.traced(f, args...)
	o := p.wait()
	x.check(o, other, 0, 1, 2, 75) // 0: only process 0 had work left
	return e, tr
}

func (s *scenario) tried(x *trial, f fault) string {
	w := s.whole(x.T)
	x.copyTree(w.home, x.dir)
	e, tr := s.runs(x, f)
	x.ran = append(x.ran, f.String())
	if !tr.hit {
		x.note(e, s.args)
		return "not come to"
	}
	x.check(e, s.args, -1, 0, 1, 2, 75)
	how := "killed"
	switch {
	case f.before || f.after:
	case f.torn, f.late:
		if how = "the same in spite of it"; e.code != 0 {
			x.Errorf("%v: exit code %d: %s", f, e.code, e.said())
		}
	case e.code == 0:
		how = "done in spite of it"
	default:
		how = "refused"
		s.names(x, e, f)
	}
	if e.code == 0 {
		s.same(x, e, f)
	}
	if s.args[0] == "train" {
		s.left(x, e)
	}
	if e.code != 0 && s.again != nil {
		s.again(x, s)
	}
	return how
}

// names checks that an error names the fault and the file. With a persistent fault a later call
// may be reported, and faults of probes and locks are reported for their folder.
func (s *scenario) names(x *trial, e ended, f fault) {
	if f.at.name == "newfstatat" || f.at.name == "fstat" {
		return // a failing stat may be reported as a missing file
	}
	base := strings.TrimSuffix(filepath.Base(f.at.path), ".tmp")
	if base == ".lock" || strings.HasPrefix(base, ".zeroth-") || strings.HasPrefix(base, ".probe") {
		base = filepath.Base(filepath.Dir(f.at.path))
	}
	if said := nonce.ReplaceAllString(e.said(), "N"); !strings.Contains(said, f.err.Error()) {
		x.Errorf("exit code %d, and not what was wrong: %s", e.code, said)
	} else if !f.always && !strings.Contains(said, base) {
		x.Errorf("exit code %d, and not where: %s", e.code, said)
	}
}

// times matches the parts of an output that differ between runs, and the total that prune
// reports.
var times = regexp.MustCompile(`\b\d[\d.]* ?(µs|ms|ns|s|m|h)(\d+[ms])*\b|[\d.]+ (GB|tokens)/s|; [\d.]+ k?B freed`)

// timeless returns an output without times and column widths.
func timeless(out string) string {
	return strings.Join(strings.Fields(times.ReplaceAllString(out, "T")), " ")
}

// same checks that the results equal those of an undisturbed run, after exit code 0.
func (s *scenario) same(x *trial, e ended, f fault) {
	w := s.whole(x.T)
	for f, want := range w.files {
		if got, err := os.ReadFile(filepath.Join(x.dir, f)); err != nil || string(got) != want {
			x.Errorf("exit code 0, and %s is not what it is undisturbed (%v)", f, err)
		}
	}
	if s.args[0] == "train" {
		if got, err := lines(filepath.Join(x.dir, "run")); err != nil || !slices.Equal(got, w.lines) {
			x.Errorf("exit code 0, and metrics.jsonl has other lines: %q, want %q (%v)", got, w.lines, err)
		}
		return
	}
	if !strings.Contains(e.out, f.err.Error()) && timeless(e.out) != timeless(w.said) {
		x.Errorf("exit code 0, and it says %q, undisturbed %q", e.out, w.said)
	}
}

// left checks that the newest checkpoint is intact and at least as new as the last reported one.
func (s *scenario) left(x *trial, e ended) {
	path, err := checkpoint.Resolve(filepath.Join(x.dir, "run/ckpt"), "latest")
	said := written.FindAllStringSubmatch(e.out, -1)
	if err != nil {
		if len(said) > 0 {
			x.Errorf("said to be written, and there is none: %v", err)
		}
		return
	}
	x.intact(path)
	if len(said) > 0 && filepath.Base(path) < "step-"+said[len(said)-1][1] {
		x.Errorf("%s was said to be written, the newest is %s", said[len(said)-1], path)
	}
}

// resumed repeats a training command, which must reach the same end.
func resumed(x *trial, s *scenario) {
	args := s.args
	e := x.zeroth(nil, args...)
	if args[0] != "train" {
		return
	}
	if e.code != 0 {
		x.Errorf("given again: %s", e.said())
		return
	}
	s.same(x, e, fault{})
}

// intact checks every byte of a checkpoint.
func (x *trial) intact(path string) {
	x.Helper()
	bad, err := checkpoint.Verify(context.Background(), path, checkpoint.Walk{})
	if err != nil || len(bad) > 0 {
		x.Errorf("%s: %v, %v", path, bad, err)
	}
}

// elsewhere repeats the command with a new folder and checks that the old one contains no
// incomplete file under its final name.
func elsewhere(x *trial, s *scenario) {
	args := slices.Clone(s.args)
	to := args[slices.Index(args, "--to")+1]
	args[slices.Index(args, "--to")+1] = "again"
	x.zeroth(nil, args...)
	if path, err := checkpoint.Resolve(filepath.Join(x.dir, to), "latest"); err == nil {
		x.intact(path)
	}
	left := look(filepath.Join(x.dir, to))
	for name, what := range look(filepath.Join(x.dir, "again")) {
		if was, ok := left[name]; ok && was != what && s.name != "ckpt import" /* whose times are in it */ {
			x.Errorf("half under its name: %s is %s, want %s", name, was, what)
		}
	}
}
