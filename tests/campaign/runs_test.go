//go:build campaign && linux

package campaign

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// jobFile is the small job of all trials; it saves every second step.
const jobFile = `model: {layers: 1, heads: 2, width: 8, context: 8}
data: {text: [text.txt], validation: 0.2}
train: {steps: 8, micro_batch: 1, eval_every: 2, eval_batches: 1}
parallel: {ranks: 2}
optimizer: {lr: 1e-2}
schedule: {type: constant, warmup: 2}
checkpoint: {every: 2, keep: 10}
`

// prose returns about n bytes of words in random order.
func prose(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("the run goes on from a state that was kept whole on a disk of no great size while ranks wait for each other")
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(pick(rng, words) + pick(rng, []string{" ", " ", " ", ".\n"}))
	}
	return b.String()
}

// fixture is a run that is created once and copied by trials.
type fixture struct {
	home   string   // contains job.yaml, text.txt and run/
	steps  []string // folders of its checkpoints, from the oldest commit to the newest
	target int      // step to which trials train
	after  string   // model.safetensors of an undisturbed run at the target
	older  string   // the same, resumed from the second-newest commit
}

func (f *fixture) newest() string { return f.steps[len(f.steps)-1] }

// fixtures are a run with three checkpoints, one with compressed checkpoints, and one that went
// back to an earlier step and committed again, so that its newest checkpoint is not the one with
// the highest step. Each stretch has its own learning rate, so the parameters reveal which
// checkpoint a run resumed from.
var fixtures = []struct {
	name string
	make func() (*fixture, error)
}{
	{"straight", sync.OnceValues(func() (*fixture, error) {
		return makeRun("straight", []string{"step-00000004", "step-00000006", "step-00000008"}, 10,
			stretch("latest", 4), stretch("latest", 6), stretch("latest", 8))
	})},
	{"compressed", sync.OnceValues(func() (*fixture, error) {
		return makeRun("compressed", []string{"step-00000004", "step-00000006", "step-00000008"}, 10,
			stretch("latest", 4, "checkpoint.compress=always"), stretch("latest", 6, "checkpoint.compress=always"), stretch("latest", 8, "checkpoint.compress=always"))
	})},
	{"went back", sync.OnceValues(func() (*fixture, error) {
		return makeRun("went-back", []string{"step-00000004", "step-00000008", "step-00000006.1"}, 8,
			stretch("latest", 4), stretch("latest", 6), stretch("latest", 8), stretch("4", 6, "optimizer.lr=5e-2", "checkpoint.keep=10"))
	})},
}

// stretch returns the arguments of a run from a checkpoint to a step.
func stretch(from string, to int, sets ...string) []string {
	args := []string{"train", "job.yaml", "--out", "run", "--resume", from}
	for _, s := range append([]string{fmt.Sprint("train.steps=", to), fmt.Sprintf("optimizer.lr=%de-3", to), "checkpoint.keep=3"}, sets...) {
		args = append(args, "--set", s)
	}
	return args
}

// given copies a fixture into the trial's folder.
func (x *trial) given(which int) *fixture {
	x.Helper()
	f, err := fixtures[which%len(fixtures)].make()
	x.must(err)
	x.copyTree(f.home, x.dir)
	return f
}

// makeRun trains with each list of arguments in turn.
func makeRun(name string, steps []string, target int, ways ...[]string) (*fixture, error) {
	f := &fixture{home: filepath.Join(scratch, "fixture-"+name), steps: steps, target: target}
	if err := prepare(f.home); err != nil {
		return nil, err
	}
	for _, way := range ways {
		if err := inFolder(f.home, way...); err != nil {
			return nil, err
		}
	}
	for _, s := range steps {
		if _, err := os.Stat(filepath.Join(f.home, "run/ckpt", s)); err != nil {
			return nil, err
		}
	}
	var err error
	if f.after, err = f.goneOn(f.newest()); err == nil {
		f.older, err = f.goneOn(steps[len(steps)-2])
	}
	if err == nil && f.after == f.older {
		err = fmt.Errorf("%s: nobody could tell from which checkpoint it went on", name)
	}
	return f, err
}

// goneOn returns the parameters at the target after resuming a copy of the run from a checkpoint.
func (f *fixture) goneOn(from string) (string, error) {
	to := f.home + "-" + from
	if err := os.CopyFS(to, os.DirFS(f.home)); err != nil {
		return "", err
	}
	err := inFolder(to, "train", "job.yaml", "--out", "run", "--resume", filepath.Join("run/ckpt", from), "--set", fmt.Sprint("train.steps=", f.target))
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(to, "run/model/model.safetensors"))
	return string(raw), err
}

// prepare creates a folder with the job and its text.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "job.yaml"), []byte(jobFile), 0o666); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "text.txt"), []byte(prose(3000)), 0o666)
}

// inFolder runs the program outside of a trial.
func inFolder(dir string, args ...string) error {
	x := &trial{T: &testing.T{}, dir: dir, counts: &tally{}}
	e := x.start(0, args...).wait()
	if e.code != 0 {
		return fmt.Errorf("%s: exit code %d %s: %s", command(args), e.code, e.broke, e.said())
	}
	return nil
}

// resume resumes the run from its newest state to the target.
func (x *trial) resume(f *fixture, also ...string) ended {
	x.Helper()
	args := append([]string{"train", "job.yaml", "--out", "run", "--resume", "latest", "--set", fmt.Sprint("train.steps=", f.target)}, also...)
	return x.zeroth([]int{1}, args...)
}

// exported returns the exported parameters of the run, or "".
func (x *trial) exported() string {
	raw, _ := os.ReadFile(filepath.Join(x.dir, "run/model/model.safetensors"))
	return string(raw)
}
