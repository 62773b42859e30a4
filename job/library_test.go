//go:build !separate

package job_test

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/job"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// temporary names a run folder in a new folder, and returns how to remove that.
func temporary() (out string, remove func()) {
	dir, err := os.MkdirTemp("", "zeroth")
	check(err)
	return filepath.Join(dir, "run"), func() { check(os.RemoveAll(dir)) }
}

// folder names a run folder in a new folder of the test.
func folder(t *testing.T) string { return filepath.Join(t.TempDir(), "run") }

// write writes the job file of a run folder next to it.
func write(out, job string) string {
	file := filepath.Join(filepath.Dir(out), "job.yaml")
	check(os.WriteFile(file, []byte(job), 0o666))
	return file
}

// metrics returns the metrics of a run folder.
func metrics(out string) ([]report.Step, []report.Eval) {
	steps, evals, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
	check(err)
	return steps, evals
}

// library are the examples of programs.
var library = map[string]struct {
	job     string
	options func() job.Options
}{
	"images": {imagesJob, images}, "recurrent": {recurrentJob, words}, "rule": {ruleJob, func() job.Options { return job.Options{Rule: nesterov{}} }},
}

// killing is an observer that kills the process after a step, if that is not 0.
type killing struct {
	report.Observers
	after int
}

func (k killing) Step(s report.Step) {
	if s.Step == k.after {
		self, err := os.FindProcess(os.Getpid())
		check(err)
		check(self.Kill())
	}
}

// runLibrary runs or resumes an example, as a process of its launcher.
func runLibrary(t *testing.T, name, out string, kill int, sets ...string) error {
	o := library[name].options()
	o.Out, o.Resume, o.Observer = out, "latest", killing{after: kill}
	c, leave, err := o.Enter(t.Context(), filepath.Join(filepath.Dir(out), "job.yaml"), sets)
	defer leave()
	if err != nil {
		return err
	}
	return job.Run(t.Context(), c, o)
}

// result is what a run has computed.
func result(t *testing.T, out string) (model []byte, lines []string) {
	t.Helper()
	model, err := os.ReadFile(filepath.Join(out, "model", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	steps, evals := metrics(out)
	for _, s := range steps {
		lines = append(lines, fmt.Sprint(s.Step, s.Loss, s.GradNorm, s.Metrics))
	}
	for _, e := range evals {
		lines = append(lines, fmt.Sprint(e))
	}
	return model, lines
}

// TestLibrary runs the examples on one rank at stage 0, and compares the bits of parameters, losses
// and metrics with those of two processes, of which the first is killed and both are started again.
func TestLibrary(t *testing.T) {
	nightly.Long(t)
	if name := os.Getenv("ZEROTH_LIBRARY"); name != "" {
		var kill int
		_, err := fmt.Sscan(os.Getenv("ZEROTH_LIBRARY_KILL"), &kill)
		check(err)
		check(runLibrary(t, name, os.Getenv("ZEROTH_LIBRARY_OUT"), kill, strings.Fields(os.Getenv("ZEROTH_LIBRARY_SETS"))...))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(library)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone := folder(t)
			write(alone, library[name].job)
			if err := runLibrary(t, name, alone, 0, "parallel.ranks=1", "zero.stage=0"); err != nil {
				t.Fatal(err)
			}
			wantModel, wantLines := result(t, alone)
			for _, stage := range []int{3, 0, 1, 2}[:nightly.Of(1, 4)] {
				out := folder(t)
				write(out, library[name].job)
				set := fmt.Sprint("zero.stage=", stage)
				if said, err := processes(name, out, 5, set); err == nil || !bytes.Contains(said, []byte("killed")) {
					t.Fatalf("stage %d: %v\n%s", stage, err, said)
				}
				if said, err := processes(name, out, 0, set); err != nil {
					t.Fatalf("stage %d, resumed: %v\n%s", stage, err, said)
				}
				model, lines := result(t, out)
				if !bytes.Equal(model, wantModel) || !reflect.DeepEqual(lines, wantLines) {
					t.Errorf("stage %d: %v\nwant %v; equal parameters %t", stage, lines, wantLines, bytes.Equal(model, wantModel))
				}
			}
		})
	}
}

// processes runs an example in two processes, and returns what they printed and the first error.
func processes(name, out string, kill int, sets ...string) (said []byte, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		return nil, err
	}
	var all [2]*exec.Cmd
	var printed [2]bytes.Buffer
	for i := range all {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLibrary$")
		cmd.Env = append(os.Environ(), "ZEROTH_LIBRARY="+name, "ZEROTH_LIBRARY_OUT="+out, fmt.Sprint("ZEROTH_LIBRARY_KILL=", kill), "ZEROTH_LIBRARY_SETS="+strings.Join(sets, " "),
			fmt.Sprint("ZEROTH_RANK=", i), "ZEROTH_WORLD_SIZE=2", "ZEROTH_ADDR="+addr, "ZEROTH_TOKEN=0123456789abcdef")
		cmd.Stdout, cmd.Stderr = &printed[i], &printed[i]
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		all[i] = cmd
	}
	for i, cmd := range all {
		if wrong := cmd.Wait(); wrong != nil {
			fmt.Fprintf(&printed[i], "process %d: %v\n", i, wrong)
			if err == nil {
				err = wrong
			}
		}
	}
	return append(printed[0].Bytes(), printed[1].Bytes()...), err
}

// TestMetricsOfALibrary checks that TensorBoard's events have a network's metrics as metrics.jsonl has
// them.
func TestMetricsOfALibrary(t *testing.T) {
	nightly.Long(t)
	out := folder(t)
	write(out, imagesJob)
	if err := runLibrary(t, "images", out, 0, "report.tensorboard=true"); err != nil {
		t.Fatal(err)
	}
	events := jobtest.Events(t, out)
	steps, evals := metrics(out)
	if len(steps) != 12 || len(evals) != 2 {
		t.Fatalf("%d steps, %d evaluations", len(steps), len(evals))
	}
	for _, s := range steps {
		if want := fmt.Sprint(s.Step, " metrics/accuracy=", float32(s.Metrics["accuracy"])); !slices.Contains(events, want) {
			t.Errorf("there is no %s", want)
		}
	}
	for _, e := range evals {
		if want := fmt.Sprint(e.Step, " val_metrics/accuracy=", float32(e.Metrics["accuracy"])); !slices.Contains(events, want) {
			t.Errorf("there is no %s", want)
		}
	}
}

// TestEarlyStopOfALibrary checks that a run ends when a metric of its network stops rising, after the
// same step if it is interrupted, and that another metric starts the count again.
func TestEarlyStopOfALibrary(t *testing.T) {
	nightly.Long(t)
	out := folder(t)
	write(out, imagesJob)
	run := func(sets ...string) (last report.Step, evals []report.Eval) {
		t.Helper()
		if err := runLibrary(t, "images", out, 0, append([]string{"train.steps=20", "train.eval_every=1", "train.eval_batches=1", "train.early_stop={metric: accuracy, mode: max, patience: 3}"}, sets...)...); err != nil {
			t.Fatal(err)
		}
		steps, evals := metrics(out)
		return steps[len(steps)-1], evals
	}
	run("train.steps=3")
	last, evals := run()
	best, at := -1.0, 0
	for _, e := range evals {
		if x := e.Metrics["accuracy"]; x > best {
			best, at = x, e.Step
		}
	}
	if last.Step != at+3 || last.Step >= 20 {
		t.Fatalf("the best accuracy is %v of step %d, the last step %d", best, at, last.Step)
	}
	if again, _ := run(); again.Step != last.Step {
		t.Errorf("a run that ended after step %d goes on to %d", last.Step, again.Step)
	}
	if other, _ := run("train.early_stop={metric: val_loss, patience: 3}"); other.Step < last.Step+4 {
		t.Errorf("by the loss the run ends after step %d, by accuracy after %d", other.Step, last.Step)
	}
	err := runLibrary(t, "images", out, 0, "train.early_stop={metric: recall, patience: 3}")
	if want := "recall is not a metric of the job's evaluations; want val_loss or accuracy"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestLibraryIsPlanned checks that the memory of user's batches, activations and state is planned
// from Go, at both ends of the stages.
func TestLibraryIsPlanned(t *testing.T) {
	nightly.Long(t)
	for name, x := range library {
		for _, stage := range []int{0, 3} {
			o, seen := x.options(), &job.Observation{}
			o.Out, o.Timeline = folder(t), seen
			c, err := o.Complete(load(write(o.Out, x.job), fmt.Sprint("zero.stage=", stage), "train.steps=2"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := forecast.NewPlan(c, forecast.Machine{})
			if err != nil {
				t.Fatal(err)
			}
			if err := job.Run(t.Context(), c, o); err != nil {
				t.Fatal(err)
			}
			if found, err := forecast.Search(c, forecast.Limits{Ranks: c.Parallel.Ranks, Memory: 1 << 30}); err != nil || len(found.Fits) == 0 || found.Job.Needs.Device != p.Allocated {
				t.Errorf("%s, stage %d: searched %+v, %v", name, stage, found, err)
			}
			if got := seen.Plan.Measured; got.Allocated != p.Allocated || len(got.Timeline) != len(p.Timeline) {
				t.Errorf("%s, stage %d: %v allocated, planned %v", name, stage, got.Allocated, p.Allocated)
			} else {
				for i, m := range got.Timeline {
					if m.InUse != p.Timeline[i].InUse {
						t.Errorf("%s, stage %d: %s: %v in use, planned %v", name, stage, m.Name, m.InUse, p.Timeline[i].InUse)
					}
				}
			}
		}
	}
}

// TestOptionsFitTheJob checks that a job and what its program provides are compared, that all
// differences are reported with their lines, and that nothing is written.
func TestOptionsFitTheJob(t *testing.T) {
	jobtest.InFolder(t, "data: {program: true}\nmodel: {family: program, context: 9}\noptimizer: {type: program}\ntrain: {steps: 3, eval_every: 1}\nparallel: {ranks: 1}\n")
	c := load("job.yaml")
	for _, x := range []struct {
		o    job.Options
		want []string
	}{
		{job.Options{}, []string{"job.yaml:1:17: data.program: only the Go program that provides job.Options.Data can run", "job.yaml:2:17: model.family: only", "job.yaml:3:19: optimizer.type: only"}},
		{job.Options{Model: mixed(16, 8), Data: digits{}, Rule: nesterov{}}, []string{"job.yaml:2:35: model.context: sequences of 9 positions, but the program's network supports at most 8", "job.yaml:4:31: train.eval_every: eval_every is 1, but job.Options.Validation is nil"}},
	} {
		x.o.Out = "run"
		err := job.Run(t.Context(), c, x.o)
		for _, part := range x.want {
			if !input.IsInput(err) || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
	}
	c = load("job.yaml", "train.eval_every=0", "model.context=8")
	for want, names := range map[string][]string{
		`"Top-1" cannot be the name of a metric; want another, of at most 64 lower-case letters, digits and _`: {"top_1", "Top-1"},
		`"loss" cannot be the name of a metric`:                     {"loss"},
		`"a" cannot be the name of a metric`:                        {"a", "a"},
		"33 metrics; want at most 32":                               make([]string, 33),
		`"` + strings.Repeat("m", 65) + `" cannot be the name of a`: {strings.Repeat("m", 65)},
	} {
		net := mixed(16, 8)
		net.Metrics = names
		if err := job.Run(t.Context(), c, job.Options{Model: net, Data: digits{}, Rule: nesterov{}, Out: "run"}); !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	jobtest.Write(t, "a.txt", "text")
	jobtest.Write(t, "job.yaml", "data: {text: [a.txt]}\nmodel: {layers: 1}\n")
	err := job.Run(t.Context(), load("job.yaml"), job.Options{Model: mixed(16, 8), Data: digits{}, Rule: nesterov{}, Out: "run"})
	for _, option := range []string{"Model", "Data", "Rule"} {
		if want := "job.Options." + option + " is set, but the job file does not declare it"; !input.IsInput(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	c = load("job.yaml").Copy()
	c.Train.Steps++
	if err := job.Run(t.Context(), c, job.Options{Rule: nesterov{}, Out: "run"}); !input.IsInput(err) || !strings.Contains(err.Error(), "the job was changed after it was loaded") || input.Exists("run") {
		t.Error(err)
	}
}

// seven are seven images to validate on.
type seven struct{ digits }

func (seven) Len() int64 { return 7 }

// TestValidationOfALibraryCountsOnce checks that each of a program's samples counts once in an
// evaluation, in the loss and in the network's own metrics, if they do not fill a batch.
func TestValidationOfALibraryCountsOnce(t *testing.T) {
	var want report.Eval
	for i, sets := range []string{"parallel.ranks=1 train.micro_batch=1 train.batch=1", "train.micro_batch=8", "parallel.ranks=4 train.micro_batch=2 train.batch=8"} {
		o := images()
		o.Out, o.Validation = folder(t), seven{digits{2}}
		check(job.Run(t.Context(), load(write(o.Out, imagesJob), append(strings.Fields(sets), "train.steps=1", "train.eval_every=1", "optimizer.lr=1e-30", "checkpoint.every=0")...), o))
		_, evals := metrics(o.Out)
		if i == 0 {
			want = evals[0]
		}
		if got := evals[0]; math.Abs(got.ValLoss-want.ValLoss) > 1e-6 || got.Metrics["accuracy"] != want.Metrics["accuracy"] {
			t.Errorf("%s: %v, want %v", sets, got, want)
		}
	}
}
