package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/job/state"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// heard is an Observer that keeps what it hears.
type heard struct {
	header report.Header
	steps  []report.Step
	evals  []report.Eval
	mu     sync.Mutex // guards notes
	notes  []string
	sums   []report.Summary
	onStep func(report.Step)
}

func (h *heard) Step(s report.Step) {
	h.steps = append(h.steps, s)
	if h.onStep != nil {
		h.onStep(s)
	}
}

func (h *heard) Event(e report.Event) {
	switch e := e.(type) {
	case report.Header:
		h.header = e
	case report.Eval:
		h.evals = append(h.evals, e)
	case report.Summary:
		h.sums = append(h.sums, e)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	notes(func(line string) { h.notes = append(h.notes, line) }).Event(e)
}

// TestTrain checks that a run prints and writes every step and every due evaluation, and ends with
// a sample from the model it has written.
func TestTrain(t *testing.T) {
	defer goleak.VerifyNone(t)
	jobtest.InTinyFolder(t)
	c := spectest.MustLoad(t, "sample={prompt: 'line ', tokens: 5}")
	h := &heard{}
	if err := Run(t.Context(), c, Options{Out: "run", Observer: h}); err != nil {
		t.Fatal(err)
	}
	schedule := setup.Schedule(c)
	for i, s := range h.steps {
		if s.Step != i+1 || s.Tokens != int64(s.Step*4*8) || s.LR != schedule.At(i) || !(s.Loss > 4 && s.Loss < 6) || !(s.GradNorm > 0) || !(s.StepSeconds > 0) {
			t.Errorf("step %d: %+v", i+1, s)
		}
		if got, want := s.TokensPerSecond*s.StepSeconds, 32.0; math.Abs(got-want) > 1e-9 {
			t.Errorf("step %d: %g tokens a second in %g s", i+1, s.TokensPerSecond, s.StepSeconds)
		}
	}
	var at []int
	for _, e := range h.evals {
		at = append(at, e.Step)
	}
	if len(h.steps) != 7 || !slices.Equal(at, []int{3, 6, 7}) {
		t.Errorf("%d steps, evaluations after %v, want 7 and after 3, 6 and the last", len(h.steps), at)
	}
	steps, evals, err := report.ReadMetrics("run/metrics.jsonl")
	if err != nil || !reflect.DeepEqual(steps, h.steps) || !reflect.DeepEqual(evals, h.evals) {
		t.Errorf("metrics.jsonl: %v\n%v\n%v", err, steps, evals)
	}
	if raw, err := os.ReadFile("run/job.yaml"); err != nil || string(raw) != string(c.YAML()) || strings.Contains(string(raw), "run") {
		t.Errorf("job.yaml: %v\n%s", err, raw)
	}
	if svg, err := os.ReadFile("run/loss.svg"); err != nil || !strings.Contains(string(svg), "validation") {
		t.Errorf("loss.svg: %v", err)
	}
	last, sum := h.steps[6], h.sums[0]
	sum.Seconds = 0
	if a := sum.Memory; a == nil || !strings.Contains(a.String(), " per rank, exactly as planned") || a.Step != 7 || len(a.Ranks) != c.Parallel.Ranks {
		t.Errorf("memory: %v", a)
	}
	sum.Memory = nil
	if !strings.HasPrefix(sum.Sample, "line ") || len(sum.Sample) < len("line ")+5 {
		t.Errorf("sample: %q", sum.Sample)
	}
	want := report.Summary{Steps: 7, Loss: last.Loss, ValLoss: h.evals[2].ValLoss, Tokens: last.Tokens, MemoryPerRank: h.header.MemoryPerRank, Out: "run", Sample: sum.Sample}
	if len(h.sums) != 1 || sum != want {
		t.Errorf("summary %+v\nwant    %+v", sum, want)
	}
}

// TestHeader checks that the header describes the job, with the numbers that only building it
// shows.
func TestHeader(t *testing.T) {
	jobtest.InTinyFolder(t)
	h := &heard{}
	c := spectest.MustLoad(t, "device=cpu", "parallel={ranks: 4, replicate: 2}", "train.steps=1")
	if err := Run(t.Context(), c, Options{Out: "run", Observer: h}); err != nil {
		t.Fatal(err)
	}
	plan, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	const parameters = (256+8)*8 + 2*8 + 12*8*8 + 13*8
	set, err := data.Open(t.Context(), spec.Source(c))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	want := report.Header{Start: report.Start{Model: "GPT-2 3.0k", Parameters: parameters, Ranks: 4, Stage: 3, Precision: "bf16", Device: "cpu", Steps: 1, TokensPerStep: 64},
		Mesh: shard.Mesh{Pipeline: 1, Context: 1, Tensor: 1, Expert: 1, Shard: 2, Replicate: 2}, GlobalBatch: 8, DataTokens: set.Train.Windows() * 8, Out: "run", MemoryPerRank: plan.Device.Total(), HostPerRank: plan.Host.Total()}
	if !reflect.DeepEqual(h.header, want) {
		t.Errorf("got  %+v\nwant %+v", h.header, want)
	}
}

// TestStop checks that a run that is asked to stop does so after the current step, on all ranks,
// and saves its results.
func TestStop(t *testing.T) {
	defer goleak.VerifyNone(t)
	jobtest.InTinyFolder(t)
	reason := errors.New("enough")
	for _, c := range []struct{ at, atMost int }{{1, 2}, {4, 5}} {
		ctx, stop := context.WithCancelCause(t.Context())
		h := &heard{onStep: func(s report.Step) {
			if s.Step == c.at {
				stop(reason)
			}
		}}
		out := fmt.Sprintf("run%d", c.at)
		if err := Run(ctx, spectest.MustLoad(t, "train.steps=1000", "sample.tokens=5", "parallel.ranks=3"), Options{Out: out, Observer: h}); !stoppedBy(err, reason, len(h.steps)) {
			t.Errorf("error %v, want %v after step %d", err, reason, len(h.steps))
		}
		if n := len(h.steps); n < c.at || n > c.atMost {
			t.Errorf("asked at step %d, stopped after %d", c.at, n)
		}
		if len(h.sums) != 1 || !h.sums[0].Stopped || h.sums[0].Steps != len(h.steps) || h.sums[0].Sample != "" {
			t.Errorf("summary %+v", h.sums)
		}
		if steps, _, err := report.ReadMetrics(out + "/metrics.jsonl"); err != nil || len(steps) != len(h.steps) {
			t.Errorf("%d steps in metrics.jsonl, %v; want %d", len(steps), err, len(h.steps))
		}
		for _, name := range []string{"loss.svg", "model/config.json", "model/model.safetensors"} {
			if !input.Exists(out + "/" + name) {
				t.Errorf("no %s is kept", name)
			}
		}
	}
}

// stoppedBy tells whether a run without checkpoints was stopped for a reason,
// after so many steps.
func stoppedBy(err, reason error, steps int) bool {
	var s *Stopped
	return errors.As(err, &s) && errors.Is(err, reason) && s.Step == steps && s.Checkpoint == ""
}

// TestStopAtTheEnd checks that a run that is asked to stop at its last step is done, not stopped.
func TestStopAtTheEnd(t *testing.T) {
	jobtest.InTinyFolder(t)
	ctx, stop := context.WithCancel(t.Context())
	h := &heard{onStep: func(s report.Step) {
		if s.Step == 6 {
			stop()
		}
	}}
	if err := Run(ctx, spectest.MustLoad(t, "train.eval_every=0"), Options{Out: "run", Observer: h}); err != nil {
		t.Error(err)
	}
	if len(h.sums) != 1 || h.sums[0].Stopped || h.sums[0].Steps != 7 {
		t.Errorf("summary %+v", h.sums)
	}
}

// TestStopWhileReading checks that a run that is asked to stop while it reads the data leaves no
// files.
func TestStopWhileReading(t *testing.T) {
	jobtest.InTinyFolder(t)
	reason := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(reason)
	h := &heard{}
	if err := Run(ctx, spectest.MustLoad(t), Options{Out: "run", Observer: h}); !stoppedBy(err, reason, 0) || input.Exists("run") || len(h.sums) > 0 {
		t.Errorf("error %v, want %v; summary %v", err, reason, h.sums)
	}
}

// TestTrainCannotWrite checks that a folder in place of a file is reported as a mistake before
// anything is done.
func TestTrainCannotWrite(t *testing.T) {
	defer goleak.VerifyNone(t)
	jobtest.InTinyFolder(t)
	c := spectest.MustLoad(t)
	for _, name := range []string{"job.yaml", "loss.svg", "model/model.safetensors.tmp"} { // folders where files should be
		if err := os.MkdirAll(name+".run/"+name+"/x", 0o777); err != nil {
			t.Fatal(err)
		}
		h := &heard{}
		err := Run(t.Context(), c, Options{Out: name + ".run", Resume: "latest", Observer: h})
		if !input.IsInput(err) || !strings.Contains(err.Error(), name+": it is a folder, not a regular file") || len(h.steps) > 0 {
			t.Errorf("%s: %v, %d steps", name, err, len(h.steps))
		}
	}
	if err := Run(t.Context(), c, Options{Out: "a.txt/run", Observer: &heard{}}); !input.IsInput(err) || !strings.HasPrefix(err.Error(), "--out: ") {
		t.Errorf("a run folder in a file: %v", err)
	}
}

// TestValidationSamples checks that the samples of an evaluation are the same for all ranks and
// micro-batches: spread evenly over the validation data, and distinct if there are enough.
func TestValidationSamples(t *testing.T) {
	jobtest.InTinyFolder(t)
	var want []string
	for _, sets := range [][]string{
		{"parallel.ranks=2"},
		{"parallel.ranks=4", "train.micro_batch=1"},
		{"parallel.ranks=1", "train.accumulate=2"},
	} {
		c := spectest.MustLoad(t, sets...)
		set, err := data.Open(t.Context(), spec.Source(c))
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		var got []string
		for micro := range c.Train.EvalBatches * c.Train.Accumulate {
			for r := range c.Parallel.Ranks {
				l := newLoop(&run{c: c, job: setup.Planned(c), set: set, start: &beginning{}, savers: []*state.Saver{nil}, rec: &recorder{}}, &setup.Rank{Rank: r})
				n, T := c.Train.MicroBatch, c.Model.Context
				input, target := make([]int32, n*T), make([]int32, n*T)
				w, _ := l.validation.work(0, l.validation.micros())
				if err := w.Fill(micro, []data.Values{{I32: input}, {I32: target}}); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					got = append(got, fmt.Sprint(input[i*T:(i+1)*T], target[i*T:(i+1)*T]))
				}
			}
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v:\n%v\nwant\n%v", sets, got, want)
		}
		for i, g := range got {
			window := int64(i) * set.Validation.Windows() / int64(len(got))
			var input, target [8]int32
			set.Validation.Batch([]data.Values{{I32: input[:]}, {I32: target[:]}}, window)
			if g != fmt.Sprint(input, target) {
				t.Errorf("%v: sample %d is not window %d of %d", sets, i, window, set.Validation.Windows())
			}
		}
	}
}

// TestTrainingSamples checks that the samples of a step follow from its place in the training
// order, and are dealt to ranks and micro-batches in turn.
func TestTrainingSamples(t *testing.T) {
	jobtest.InTinyFolder(t)
	c := spectest.MustLoad(t, "parallel.ranks=2", "train.accumulate=2")
	set, err := data.Open(t.Context(), spec.Source(c))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	first := int64(40)
	for micro := range 2 {
		for r := range 2 {
			l := newLoop(&run{c: c, job: setup.Planned(c), set: set, start: &beginning{Progress: state.Progress{Samples: 32}}, savers: []*state.Saver{nil}, rec: &recorder{}}, &setup.Rank{Rank: r})
			l.advance() // 8 samples
			var input, target, wantInput, wantTarget [2 * 8]int32
			if err := l.fill(micro, []data.Values{{I32: input[:]}, {I32: target[:]}}); err != nil {
				t.Fatal(err)
			}
			set.Train.Batch([]data.Values{{I32: wantInput[:]}, {I32: wantTarget[:]}}, first)
			if input != wantInput || target != wantTarget {
				t.Errorf("micro-batch %d of rank %d does not begin at sample %d", micro, r, first)
			}
			first += 2
		}
	}
}

// TestTogether checks that of the errors of all ranks, one that is not a consequence of another is
// returned.
func TestTogether(t *testing.T) {
	jobtest.InTinyFolder(t)
	ranks, err := setup.Open(setup.Local(spectest.MustLoad(t, "parallel.ranks=3")))
	if err != nil {
		t.Fatal(err)
	}
	defer setup.CloseAll(ranks)
	cause := errors.New("rank 1 has had enough")
	err = setup.Together(ranks, func(r *setup.Rank) error {
		if r.Rank == 1 {
			return cause
		}
		q := r.Queues[setup.Comm] // the others wait for it
		collective.AllGather(r.Groups.World, q, device.OfF32(make([]float32, 3)))
		if err := q.Wait(); !errors.Is(err, collective.ErrClosed) {
			t.Errorf("rank %d: %v", r.Rank, err)
		}
		return fmt.Errorf("rank %d: %w", r.Rank, collective.ErrClosed)
	})
	if err != cause {
		t.Errorf("got %v, want %v", err, cause)
	}
	err = setup.Together(ranks, func(r *setup.Rank) error { return fmt.Errorf("rank %d: %w", r.Rank, collective.ErrClosed) })
	if !errors.Is(err, collective.ErrClosed) {
		t.Errorf("all ranks closed: %v", err)
	}
	if err := setup.Together(ranks, func(*setup.Rank) error { return nil }); err != nil {
		t.Errorf("no error: %v", err)
	}
}

// TestReadingIsReported checks that reading is reported every two seconds, from the second on.
func TestReadingIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heard{}
		report := reading(report.Observers{h})
		for i := range 50 {
			report(int64(i)*1e6, 50e6)
			time.Sleep(100 * time.Millisecond)
		}
		want := []string{"reading data: 21 of 50 MB", "reading data: 42 of 50 MB"}
		if !slices.Equal(h.notes, want) {
			t.Errorf("got %q, want %q", h.notes, want)
		}
	})
}

// TestValidationLossIsNoNumber checks that a validation loss that is not a number is reported as
// divergence, written as null, and omitted from the metrics of checkpoints.
func TestValidationLossIsNoNumber(t *testing.T) {
	jobtest.InTinyFolder(t)
	h := &heard{}
	c := spectest.MustLoad(t, "train.steps=1", "train.eval_every=1", "optimizer.lr=1e30", "schedule={type: constant, warmup: 0}", "checkpoint={every: 1, keep: {best: val_loss, last: 2}}", "precision=fp32")
	if err := Run(t.Context(), c, Options{Out: "run", Observer: h}); err != nil {
		t.Fatal(err)
	}
	if told := strings.Join(h.notes, "\n"); !strings.Contains(told, "the validation loss after step 1 is NaN: training has diverged; lower optimizer.lr") {
		t.Errorf("told %s", told)
	}
	raw, err := os.ReadFile("run/metrics.jsonl")
	if err != nil || !strings.Contains(string(raw), "{\"step\":1,\"val_loss\":null}\n") {
		t.Errorf("metrics: %v\n%s", err, raw)
	}
	ck, _ := opened(t, "run/ckpt/step-00000001")
	defer ck.Close()
	if _, ok := ck.Metrics["val_loss"]; ok || ck.Metrics["loss"] == 0 {
		t.Errorf("metrics of the checkpoint: %v", ck.Metrics)
	}
	err = Run(t.Context(), spectest.MustLoad(t, "train.steps=2", "checkpoint.every=1"), Options{Out: "run", Resume: "latest", Observer: h})
	if err == nil || !strings.Contains(err.Error(), "lower the learning rate") {
		t.Errorf("the next step: %v", err)
	}
}

// TestScheduleLongerThanTheRun checks that a run that ends before its schedule reports it, even if
// its steps follow from epochs.
func TestScheduleLongerThanTheRun(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	for sets, want := range map[string]string{
		"schedule.warmup=8":                        "schedule.warmup of 8 steps is longer than the run of 7: the learning rate only rises to 0.000525 and never reaches optimizer.lr 0.0006",
		"schedule.warmup=7":                        "",
		"schedule.warmup=null":                     "",
		"schedule={type: wsd, warmup: 3}":          "",
		"schedule={type: wsd, warmup: 3,decay: 4}": "",
		"schedule={type: wsd, warmup: 3,decay: 5}": "schedule.decay of 5 steps is longer than the rest of the run after the warmup: the learning rate falls in the last 4 steps",
		"train={epochs: 0.1, eval_every: 0}":       "",
		"train={epochs: 0.001, eval_every: 0}":     "schedule.warmup of 3 steps is longer than the run of 1: the learning rate only rises to 0.0002 and never reaches optimizer.lr 0.0006",
	} {
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, sets), Options{Out: t.TempDir(), Observer: h}); err != nil {
			t.Fatal(err)
		}
		has := slices.DeleteFunc(h.notes, func(s string) bool { return !strings.HasPrefix(s, "schedule.") })
		if strings.Join(has, "\n") != want {
			t.Errorf("%s: notes %q, want %q", sets, has, want)
		}
	}
}
