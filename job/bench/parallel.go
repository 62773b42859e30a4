package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/trace"
	"zeroth/shard"
)

const (
	warmSteps = 2 // at the start of a run, which do not count
	turns     = 3 // runs of each way, so that what disturbs the machine for a while does not order the ways
)

// Comparison is a job trained in several ways, each with its plan and simulation.
type Comparison struct {
	Ranks     int        `json:"ranks"`
	Batch     int        `json:"batch"`   // sequences per step
	Context   int        `json:"context"` // tokens per sequence
	Precision string     `json:"precision"`
	Steps     int        `json:"steps"` // measured steps in each turn
	Hardware  string     `json:"simulated_on,omitempty"`
	Unknown   string     `json:"not_simulated,omitempty"` // why no way was simulated
	Ways      []Compared `json:"ways"`
}

// Compared is the result of one way.
type Compared struct {
	Way        string   `json:"way"`
	Mesh       string   `json:"mesh,omitempty"`
	Stage      int      `json:"stage"`
	Sets       []string `json:"sets,omitempty"`          // settings that turn the job into this way
	Refused    string   `json:"not_available,omitempty"` // the reason; there are no figures then
	Run        *Figures `json:"run,omitempty"`
	Predicted  *Figures `json:"predicted,omitempty"`
	Difference float64  `json:"loss_difference"` // largest difference from the first way's losses over all steps
}

// Figures are the results of runs: medians over steps, and then over turns. Memory and bytes are the maximum over
// ranks.
type Figures struct {
	Tokens  float64 `json:"tokens_per_second"` // of all ranks; 0: unknown
	Spread  float64 `json:"spread,omitempty"`  // between the fastest and the slowest turn, as a share of Tokens
	Memory  int64   `json:"memory_bytes"`      // allocated by a rank
	Sent    int64   `json:"sent_bytes_a_step"` // -1: unknown
	Waiting float64 `json:"waiting"`           // share of a step in which a rank communicates without computing, or nothing runs; a mean over ranks
}

// Compare trains the job of a load in each of the named ways. It first measures what the
// simulations need, unless hardware is given. A way that the job does not support appears in the
// result with the reason. progress receives messages.
func Compare(ctx context.Context, load Load, names []string, steps int, hardware *forecast.Hardware, progress func(doing string)) (*Comparison, error) {
	c, err := load(nil)
	if err != nil {
		return nil, err
	}
	if c.Parallel.Ranks < 2 {
		return nil, input.BadInput(errors.New("the job has one rank, and nothing to divide; want --set parallel.ranks=2 or more"))
	}
	all, err := choose(c, load, names, warmSteps+steps)
	if err != nil {
		return nil, err
	}
	x := &Comparison{Ranks: c.Parallel.Ranks, Batch: c.Train.Batch, Context: c.Model.Context, Precision: c.Precision.String(), Steps: steps}
	simulate := x.simulator(all, hardware, progress)
	for _, w := range all {
		y, err := w.predict(simulate, progress)
		if err != nil {
			return x, fmt.Errorf("%s: %w", w.name, err)
		}
		x.Ways = append(x.Ways, *y)
	}
	ran := make([][]*listener, len(all))
	defer x.summarize(ran)
	for turn := range turns {
		for i, w := range all {
			if x.Ways[i].Refused != "" {
				continue
			}
			l, err := w.run(ctx, func(doing string) { progress(fmt.Sprintf("%s, turn %d of %d: %s", w.name, turn+1, turns, doing)) })
			switch {
			case input.IsInput(err):
				x.Ways[i] = Compared{Way: w.name, Stage: w.stage, Refused: err.Error()}
			case err != nil:
				return x, fmt.Errorf("%s: %w", w.name, err)
			default:
				ran[i] = append(ran[i], l)
			}
		}
	}
	return x, nil
}

// summarize adds the results of the ways, given the runs of each.
func (x *Comparison) summarize(ran [][]*listener) {
	var first *listener // of the first way
	for i, each := range ran {
		y, speeds := &x.Ways[i], []float64{}
		if y.Refused != "" {
			continue
		}
		for _, l := range each {
			first = cmp.Or(first, l)
			y.Run = l.figures()
			y.Difference = max(y.Difference, largestDifference(first.losses, l.losses))
			speeds = append(speeds, y.Run.Tokens)
		}
		if y.Run != nil {
			y.Run.Tokens = median(speeds)
			y.Run.Spread = (slices.Max(speeds) - slices.Min(speeds)) / y.Run.Tokens
		}
	}
}

// simulator returns a function that simulates a way; its result is nil if the machine cannot
// be measured.
func (x *Comparison) simulator(all []chosen, hardware *forecast.Hardware, progress func(string)) func(*spec.Job) (*forecast.Step, error) {
	if hardware != nil {
		x.Hardware = hardware.Name
		return func(c *spec.Job) (*forecast.Step, error) {
			return forecast.SimulateUntraced(setup.Planned(c), hardware)
		}
	}
	var jobs []*spec.Job
	for _, w := range all {
		if w.job != nil {
			jobs = append(jobs, w.job)
		}
	}
	none := func(why string) func(*spec.Job) (*forecast.Step, error) {
		x.Unknown = why
		return func(*spec.Job) (*forecast.Step, error) { return nil, nil }
	}
	switch {
	case len(jobs) == 0:
		return none("")
	case jobs[0].On() == "cuda":
		return none("kernels of GPUs are measured by 'zeroth bench gpu --write-machine FILE'; want --machine FILE")
	}
	h, err := Measure(jobs[0], func(doing string) { progress("measuring " + doing) }, jobs[1:]...)
	if err != nil {
		return none(err.Error())
	}
	x.Hardware = "this machine"
	return func(c *spec.Job) (*forecast.Step, error) { return SimulateHere(c, h) }
}

// plan plans the job in a way.
func (w chosen) plan() (*Compared, error) {
	x := &Compared{Way: w.name, Stage: w.stage}
	if w.refuse != nil {
		x.Refused = w.refuse.Error()
		return x, nil
	}
	p, err := forecast.NewPlan(w.job, forecast.Machine{})
	if err != nil {
		return nil, err
	}
	x.Mesh, x.Sets, x.Predicted = dimensions(spec.Mesh(w.job)), w.set, &Figures{}
	for _, at := range append([]*forecast.Plan{p}, p.Kinds...) {
		x.Predicted.Memory = max(x.Predicted.Memory, at.Allocated.Total()+at.Host.Total())
		x.Predicted.Sent = max(x.Predicted.Sent, at.Sent)
	}
	return x, nil
}

// predict plans and simulates the job in a way.
func (w chosen) predict(simulate func(*spec.Job) (*forecast.Step, error), progress func(string)) (*Compared, error) {
	progress(w.name + ": planning")
	x, err := w.plan()
	if err != nil || x.Refused != "" {
		return x, err
	}
	s, err := simulate(w.job)
	if s != nil {
		x.Predicted.Tokens, x.Predicted.Waiting = s.Tokens, s.Exposed/s.Seconds+s.Bubble
	}
	return x, err
}

// run trains the job in a temporary folder.
func (w chosen) run(ctx context.Context, progress func(string)) (*listener, error) {
	dir, err := input.TempDir("zeroth-bench-")
	if err != nil {
		return nil, err
	}
	defer input.RemoveTemp(dir)
	l := &listener{trace: trace.New(), progress: func(step int) { progress(fmt.Sprintf("step %d of %d", step, w.job.Train.Steps)) }}
	progress("reading the data")
	err = job.Run(ctx, w.job, job.Options{Out: filepath.Join(dir, "run"), Observer: l, Trace: l.trace, NoModel: true})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// listener records what a run reports.
type listener struct {
	trace    *trace.Trace
	progress func(step int)
	losses   []float64
	tokens   []float64 // a second
	memory   *report.Account
}

// Step implements report.Observer.
func (l *listener) Step(s report.Step) {
	l.losses, l.tokens = append(l.losses, s.Loss), append(l.tokens, s.TokensPerSecond)
	l.progress(s.Step)
}

// Event implements report.Observer.
func (l *listener) Event(e report.Event) {
	if s, ok := e.(report.Summary); ok {
		l.memory = s.Memory
	}
}

// figures returns the results of the finished run.
func (l *listener) figures() *Figures {
	f := &Figures{Tokens: median(l.tokens[warmSteps:]), Sent: slices.Max(l.trace.Sent)}
	if slices.Contains(l.trace.Sent, -1) {
		f.Sent = -1
	}
	for _, r := range l.memory.Ranks {
		f.Memory = max(f.Memory, r.Device.Peak.Total()+r.Host.Peak.Total())
	}
	var waits []float64
	for _, e := range l.trace.After(warmSteps) {
		waits = append(waits, (e.Exposed+e.Idle)/e.Seconds)
	}
	f.Waiting = median(waits)
	return f
}

// largestDifference returns the largest difference between losses.
func largestDifference(first, losses []float64) (most float64) {
	for i, x := range losses {
		most = max(most, math.Abs(x-first[i]))
	}
	return most
}

// dimensions describes the dimensions of a mesh that have several ranks.
func dimensions(m shard.Mesh) string {
	words := strings.Split(m.Dimensions(), " × ")
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return strings.HasSuffix(w, " 1") }), " × ")
}
