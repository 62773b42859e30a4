package job

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestEpochs checks that a run of epochs takes as many steps as it needs to read every window that
// often, and that its last step reads the beginning of the next epoch.
func TestEpochs(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	base := []string{"train.steps=null", "train.batch=null", "train.micro_batch=1", "parallel.ranks=4", "train.accumulate=2", "train.eval_every=0"}
	c := spectest.MustLoad(t, append(base, "train.epochs=1")...)
	set, err := data.Open(t.Context(), spec.Source(c))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	windows := int(set.Train.Windows())
	for epochs, want := range map[string]int{"1": windows, "0.5": (windows + 1) / 2, "2": 2 * windows} {
		t.Run(epochs, func(t *testing.T) {
			c, h, out := spectest.MustLoad(t, append(base, "train.epochs="+epochs)...), &heard{}, "run"+epochs
			if err := Run(t.Context(), c, Options{Out: out, Observer: h}); err != nil {
				t.Fatal(err)
			}
			steps := (want + 7) / 8
			if len(h.steps) != steps || h.header.Steps != steps || h.sums[0].Steps != steps || fmt.Sprint(h.header.Epochs) != epochs {
				t.Errorf("%d steps, the header has %d for %v epochs, the end %d; want %d", len(h.steps), h.header.Steps, h.header.Epochs, h.sums[0].Steps, steps)
			}
			like := spectest.MustLoad(t, append(base, fmt.Sprintf("train.steps=%d", steps))...)
			for i, s := range h.steps {
				if lr := setup.Schedule(like).At(i); s.LR != lr {
					t.Errorf("step %d: learning rate %g, want %g", s.Step, s.LR, lr)
				}
			}
			raw, err := os.ReadFile(out + "/job.yaml")
			if err != nil || !strings.Contains(string(raw), fmt.Sprintf("  epochs: %s # steps: %d\n", epochs, steps)) || strings.Contains(string(raw), "  steps:") {
				t.Errorf("%s (%v)", raw, err)
			}
			if _, err := spec.Load(out+"/job.yaml", nil); err != nil {
				t.Error(err)
			}
			counts := make([]int, windows)
			share := data.Share{Batch: 8, MicroBatch: 1, Replicas: 1, Ranks: 4}
			for step := range h.steps {
				for micro := range 2 {
					for rank := range 4 {
						if s := share.First(int64(step), micro, rank); s < int64(want) {
							counts[set.Train.Window(s)]++
						}
					}
				}
			}
			if most := slices.Max(counts); most != max(1, want/windows) || want >= windows && slices.Min(counts) != most {
				t.Errorf("windows are read %v times", counts)
			}
		})
	}
	if windows%8 == 0 {
		t.Errorf("%d windows: no last step is filled up", windows)
	}
}

// TestEpochsGoOn checks that a run of epochs resumes up to its last step, then has nothing to do,
// and continues if it is given more epochs.
func TestEpochsGoOn(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	sets := []string{"train.steps=null", "train.epochs=0.1", "schedule=null", "checkpoint.every=2", "checkpoint.save_on_exit=true"}
	goOn := func(c *spec.Job) *heard {
		t.Helper()
		h := &heard{}
		if err := Run(t.Context(), c, Options{Out: "run", Resume: "latest", Observer: h}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	all := goOn(spectest.MustLoad(t, sets...))
	before := listing(t, "run")
	if h := goOn(spectest.MustLoad(t, sets...)); len(h.steps) > 0 || !strings.Contains(strings.Join(h.notes, "\n"), "a larger train.epochs would continue from it") {
		t.Errorf("nothing is left: %v", h.notes)
	}
	after := listing(t, "run")
	for name := range after {
		if after[name] != before[name] && filepath.Ext(name) != "" && filepath.Base(name) != ".lock" { // folders are locked while the data is read
			t.Errorf("%s changes though nothing is left", name)
		}
	}
	// The job does not say how long: as in the checkpoint.
	if h := goOn(spectest.MustLoad(t, "train.steps=null", "schedule=null")); len(h.steps) > 0 {
		t.Errorf("%d steps though the checkpoint's epochs are done", len(h.steps))
	}
	more := goOn(spectest.MustLoad(t, append(sets, "train.epochs=0.2")...))
	told := strings.Join(more.notes, "\n")
	if len(all.steps)+len(more.steps) != more.header.Steps || more.header.Steps < 2*len(all.steps)-1 || !strings.Contains(told, "changed since the checkpoint: train.epochs 0.1 → 0.2") ||
		!strings.Contains(told, fmt.Sprintf("learning rate of step %d: ", len(all.steps)+1)) {
		t.Errorf("%d steps, then %d of %d\n%s", len(all.steps), len(more.steps), more.header.Steps, told)
	}
	next, b, err := startOf(spectest.MustLoad(t, "train.steps=50", "schedule=null", "checkpoint.dir=run/ckpt"), "latest")
	if err != nil {
		t.Fatal(err)
	}
	b.close()
	if told = strings.Join(b.news, "\n"); next.Train.Steps != 50 || next.Train.Epochs != 0 || !strings.Contains(told, "train.steps none → 50, train.epochs 0.2 → none") {
		t.Errorf("%v steps, %v epochs\n%s", next.Train.Steps, next.Train.Epochs, told)
	}
}

// TestEpochProblems checks that epochs together with steps, and too many epochs, are refused.
func TestEpochProblems(t *testing.T) {
	jobtest.InTinyFolder(t)
	_, err := spec.Load("job.yaml", []string{"train.epochs=1"})
	if err == nil || !strings.Contains(err.Error(), "train.epochs: steps and epochs are both given; want one of the two") {
		t.Error(err)
	}
	for _, epochs := range []string{"1e12", "1e300"} {
		err = Run(t.Context(), spectest.MustLoad(t, "train.steps=null", "train.epochs="+epochs), Options{Out: "run"})
		if !input.IsInput(err) || !strings.Contains(err.Error(), "steps, more than 1000000000; want fewer") || input.Exists("run/job.yaml") {
			t.Error(err)
		}
	}
}
