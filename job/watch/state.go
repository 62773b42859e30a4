package watch

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"zeroth/device"
	"zeroth/job/report"
	"zeroth/job/trace"
)

// Limits of a State.
const (
	mostPoints = 1 << 17 // steps; in longer runs neighbors are merged
	mostEvals  = 1 << 13
	mostLines  = 500 // of the log
	mostSaves  = 100 // also changes
	mostLanes  = 16  // ranks with a timeline
	mostOwn    = 96  // metrics of a program's network or of routers, in order of their names
)

// State is the known state of a run. Training writes to it; any goroutine may read.
type State struct {
	mu      sync.Mutex
	moved   time.Time // time when a start, a step, an evaluation or a checkpoint last ended
	version uint64    // version of everything below
	run     Run
	points  []point  // elements are never modified; merging creates a new slice
	own     []string // names of the metrics of a program's network, as points have them
	merged  int      // steps in each point, 1 at first
	open    point    // the point being merged
	opened  int      // steps merged into open
	evals   []report.Eval
	lines   []Line
	dropped int // lines dropped before them
	hist    *metrics
}

// Run is the state of a run in one document, which /api/run serves.
type Run struct {
	Start    report.Start `json:"start"`
	Run      string       `json:"run"`
	Out      string       `json:"out"`
	State    string       `json:"state"` // "starting", "running", "done", "stopped", "failed"
	Why      string       `json:"why,omitempty"`
	Rows     [][2]string  `json:"rows"` // the run in words
	Job      string       `json:"job"`  // job.yaml
	Step     int          `json:"step"` // last completed step
	Now      *Now         `json:"now,omitempty"`
	Memory   []Category   `json:"memory"`
	Saves    []Save       `json:"checkpoints"`
	Timeline *Timeline    `json:"timeline,omitempty"`
	Saving   bool         `json:"saving"` // whether checkpoints can be requested
	Changes  []Change     `json:"changes,omitempty"`
	Replicas int          `json:"replicas,omitempty"` // that train since the last change in this start; 0 if there was none
}

// Change is a change of the replicas, after a step.
type Change struct {
	Step int     `json:"step"`
	Time float64 `json:"time"`
	Text string  `json:"text"`
}

// Now describes the last step.
type Now struct {
	Loss, LR, GradNorm, TokensPerSecond, MFU, StepSeconds Number
	ETA                                                   Number // seconds
	Tokens                                                int64
	Skipped                                               int
	RankSeconds, RankWaits                                report.Spread
	Parts                                                 *trace.Exposure   `json:",omitempty"`
	Metrics                                               map[string]Number `json:",omitempty"` // of a program's network
}

// Number is a float64 that is written as null if it is not finite.
type Number float64

// MarshalJSON implements json.Marshaler.
func (x Number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(x)), nil }

func appendNumber(b []byte, x float64) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, x, 'g', 7, 64)
}

// Category is a category of memory of the rank that holds the most, in bytes.
type Category struct {
	Name    string `json:"name"`
	Tier    string `json:"place"` // "device", "host" or "disk"
	Planned int64  `json:"planned"`
	Held    int64  `json:"held"`
}

// Save describes a checkpoint that was written or failed.
type Save struct {
	Step    int     `json:"step"`
	Time    float64 `json:"time"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	Bytes   int64   `json:"bytes,omitempty"` // of one that a report has found
	Best    bool    `json:"best,omitempty"`  // likewise
}

// Timeline shows the work on the ranks' queues in a step.
type Timeline struct {
	Step    int         `json:"step"`
	Seconds float64     `json:"seconds"`
	Ranks   []RankLanes `json:"ranks"`
}

// RankLanes holds the lanes of one rank.
type RankLanes struct {
	Rank  int          `json:"rank"`
	Stage int          `json:"stage"` // its pipeline stage
	Lanes []trace.Lane `json:"lanes"`
}

// Line is a line of the log.
type Line struct {
	Time float64 `json:"time"`
	Text string  `json:"text"`
}

// point is the means of one or several steps.
type point struct {
	step int // the last of the steps
	of   [columns]float32
	own  []float32 // of State.own; it may be shorter
	low  float32   // lowest loss
	high float32   // highest loss
}

// names are the JSON names of a point's numbers.
var names = [...]string{"loss", "lr", "grad_norm", "tokens_per_second", "mfu", "step_seconds", "data_seconds", "waited_seconds", "exposed_seconds", "idle_seconds"}

const columns = 10

func pointOf(s report.Step) point {
	nan := math.NaN()
	exposed, idle, mfu := nan, nan, nan
	if p := s.Parts; p.Steps > 0 {
		exposed, idle = p.Exposed, p.Idle
	}
	if s.MFU > 0 {
		mfu = s.MFU
	}
	p := point{step: s.Step, low: float32(s.Loss), high: float32(s.Loss)}
	for i, x := range [columns]float64{s.Loss, s.LR, s.GradNorm, s.TokensPerSecond, mfu, s.StepSeconds, s.DataSeconds, s.Waited, exposed, idle} {
		p.of[i] = float32(x)
	}
	return p
}

// mean returns the mean of points, ignoring missing numbers.
func mean(all []point) point {
	p := point{step: all[len(all)-1].step, low: all[0].low, high: all[0].high}
	for i := range p.of {
		p.of[i] = meanOf(all, func(q point) float32 { return q.of[i] })
	}
	width := 0
	for _, q := range all {
		width = max(width, len(q.own))
	}
	for i := range width {
		p.own = append(p.own, meanOf(all, func(q point) float32 { return q.metric(i) }))
	}
	for _, q := range all {
		if !(p.low <= q.low) {
			p.low = q.low
		}
		if !(p.high >= q.high) {
			p.high = q.high
		}
	}
	return p
}

// meanOf returns the mean of a number of each point, NaN if all lack it.
func meanOf(all []point, of func(point) float32) float32 {
	sum, n := 0.0, 0
	for _, q := range all {
		if x := float64(of(q)); !math.IsNaN(x) {
			sum += x
			n++
		}
	}
	return float32(sum / float64(n))
}

// metric returns the metric of a program's network with an index of State.own.
func (p point) metric(i int) float32 {
	if i < len(p.own) {
		return p.own[i]
	}
	return float32(math.NaN())
}

// learn adds new names of metrics of a program's network, and returns the values of all names.
func (s *State) learn(metrics map[string]float64) (values []float32) {
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if len(s.own) < mostOwn && !slices.Contains(s.own, name) {
			s.own = append(s.own, name)
		}
	}
	if len(metrics) == 0 {
		return nil
	}
	for _, name := range s.own {
		values = append(values, float32(metric(metrics, name)))
	}
	return values
}

// metric returns the value of a name, NaN without one.
func metric(metrics map[string]float64, name string) float64 {
	if x, ok := metrics[name]; ok {
		return x
	}
	return math.NaN()
}

// NewState returns the state of a run that has not started.
func NewState(out string) *State {
	return &State{merged: 1, moved: time.Now(), hist: newMetrics(), run: Run{Out: out, State: "starting", Memory: []Category{}, Saves: []Save{}, Rows: [][2]string{}}}
}

// change changes the state.
func (s *State) change(f func()) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.version++
}

// Earlier adds the history of earlier starts of the run.
func (s *State) Earlier(l *report.Log) {
	s.change(func() {
		for _, x := range l.Steps {
			s.add(x)
		}
		for _, e := range l.Evals[max(0, len(l.Evals)-mostEvals):] {
			s.learn(e.Metrics)
			s.evals = append(s.evals, e)
		}
		s.hist.starts.Add(float64(len(l.Starts)))
		for _, c := range l.Changes {
			s.changed(c)
		}
		if n := len(l.Steps); n > 0 {
			s.hist.tokensBefore, s.hist.skippedLast = l.Steps[n-1].Tokens, l.Steps[n-1].Skipped
		}
	})
}

// Begin records a start of the run.
func (s *State) Begin(b report.Start, job string, saving bool) {
	s.change(func() {
		s.moved = time.Now()
		s.run.Start, s.run.Run, s.run.Job, s.run.Saving, s.run.State = b, b.Run, job, saving, "running"
		s.hist.starts.Inc()
	})
}

// Event implements report.Observer.
func (s *State) Event(e report.Event) {
	switch e := e.(type) {
	case report.Header:
		s.change(func() { s.run.Rows = e.Rows() })
	case report.Eval:
		s.eval(e)
	case report.Note:
		s.line(string(e))
	case report.Warning:
		s.line(string(e))
	case *report.Account:
		s.memory(e)
	case report.Change:
		s.change(func() {
			s.changed(e)
			s.run.Replicas = e.Replicas
			s.hist.left(e.Replicas)
		})
	case report.Summary:
		s.change(func() { s.run.State = map[bool]string{true: "stopped", false: "done"}[e.Stopped] })
	case report.End:
		s.change(func() { s.run.State, s.run.Why = e.State, e.Why })
	}
}

// changed adds a change of the replicas. The caller holds mu.
func (s *State) changed(c report.Change) {
	s.hist.change(c)
	s.run.Changes = append(s.run.Changes[max(0, len(s.run.Changes)-mostSaves+1):], Change{c.Step, c.Time, c.String()})
}

// Step implements report.Observer.
func (s *State) Step(x report.Step) {
	s.change(func() {
		s.moved = time.Now()
		s.add(x)
		now := &Now{Loss: Number(x.Loss), LR: Number(x.LR), GradNorm: Number(x.GradNorm), TokensPerSecond: Number(x.TokensPerSecond), MFU: Number(x.MFU), StepSeconds: Number(x.StepSeconds),
			Tokens: x.Tokens, Skipped: x.Skipped, RankSeconds: x.RankSeconds, RankWaits: x.RankWaits, ETA: Number(float64(s.run.Start.Steps-x.Step) * s.pace(x.StepSeconds))}
		if x.Parts.Steps > 0 {
			now.Parts = &x.Parts
		} else if s.run.Now != nil {
			now.Parts = s.run.Now.Parts
		}
		s.run.Now = now
		s.hist.step(x)
		for i, y := range s.learn(x.Metrics) {
			if now.Metrics == nil {
				now.Metrics = map[string]Number{}
			}
			now.Metrics[s.own[i]] = Number(y)
			s.hist.trained.WithLabelValues(s.own[i]).Set(float64(y))
		}
	})
}

// pace returns the recent seconds per step.
func (s *State) pace(last float64) float64 {
	few := s.points[max(0, len(s.points)-20):]
	if len(few) == 0 {
		return last
	}
	return float64(mean(few).of[5])
}

// add adds a step. If there are too many points, it merges pairs of neighbors.
func (s *State) add(x report.Step) {
	s.run.Step = x.Step
	p := pointOf(x)
	p.own = s.learn(x.Metrics)
	if s.opened > 0 {
		p = mean([]point{s.open, p}) // later steps have more weight, which is good enough for a drawing
	}
	s.open = p
	if s.opened++; s.opened < s.merged {
		return
	}
	s.opened = 0
	s.points = append(s.points, p)
	if len(s.points) < mostPoints {
		return
	}
	half := make([]point, 0, mostPoints)
	for two := range slices.Chunk(s.points, 2) {
		half = append(half, mean(two))
	}
	s.points, s.merged = half, 2*s.merged
}

func (s *State) eval(e report.Eval) {
	s.change(func() {
		s.moved = time.Now()
		if len(s.evals) == mostEvals {
			s.evals = append([]report.Eval(nil), s.evals[mostEvals/2:]...)
		}
		s.evals = append(s.evals, e)
		s.hist.valLoss.Set(e.ValLoss)
		for i, y := range s.learn(e.Metrics) {
			s.hist.validated.WithLabelValues(s.own[i]).Set(float64(y))
		}
	})
}

// line adds a line to the log.
func (s *State) line(line string) {
	s.change(func() {
		if len(s.lines) == mostLines {
			s.lines = append([]Line(nil), s.lines[mostLines/2:]...)
			s.dropped += mostLines / 2
		}
		s.lines = append(s.lines, Line{report.Now(), line[:min(len(line), 4000)]})
	})
}

// Saved records a checkpoint that was written, or the error.
func (s *State) Saved(step int, seconds float64, err error) {
	s.change(func() {
		s.moved = time.Now()
		x := Save{Step: step, Time: report.Now(), Seconds: seconds}
		if err != nil {
			x.Error = err.Error()
		}
		s.run.Saves = append(slices.Clone(s.run.Saves[max(0, len(s.run.Saves)-mostSaves+1):]), x)
		s.hist.saved(x)
	})
}

// memory records what the rank with the most memory holds, and its plan.
func (s *State) memory(a *report.Account) {
	most := slices.MaxFunc(a.Ranks, func(x, y report.Held) int { return int(x.Planned.Memory() - y.Planned.Memory()) })
	var all []Category
	for use := range device.Uses {
		all = append(all, Category{use.String(), "device", most.Planned.Device[use], most.Device.Peak[use]},
			Category{use.String(), "host", most.Planned.Host[use], most.Host.Peak[use]})
	}
	all = append(all, Category{"optimizer and parameters", "disk", most.Planned.Disk, most.Disk})
	all = slices.DeleteFunc(all, func(c Category) bool { return c.Planned == 0 && c.Held == 0 })
	s.change(func() {
		s.run.Memory = all
		s.hist.memory(all)
	})
}

// Lanes records the work on a rank's queues in a step. Only the last step is kept.
func (s *State) Lanes(step, rank, stage int, lanes []trace.Lane, seconds float64) {
	s.change(func() {
		t := &Timeline{Step: step, Seconds: seconds}
		if last := s.run.Timeline; last != nil && last.Step == step {
			t.Seconds, t.Ranks = max(seconds, last.Seconds), slices.Clone(last.Ranks)
		}
		if len(t.Ranks) < mostLanes {
			t.Ranks = append(t.Ranks, RankLanes{rank, stage, lanes})
			slices.SortFunc(t.Ranks, func(a, b RankLanes) int { return a.Rank - b.Rank })
		}
		s.run.Timeline = t
	})
}

// Idle returns the time since the run last made progress. Notices, such as waiting for something,
// are not progress.
func (s *State) Idle() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.moved)
}

// Doc returns the document and its version.
func (s *State) Doc() (Run, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run, s.version
}

// Series returns the numbers of the steps in (from, to] as JSON, in up to most points: an array
// for each name, for the lowest and the highest loss, and for the metrics of a program's network.
func (s *State) Series(from, to, most int) []byte {
	text, _ := s.series(from, from, to, most)
	return text
}

// series is like Series, with the evaluations of the steps in (evaluated, to], and returns the last
// one's step; evaluated if there is none. An evaluation ends after its step has been shown.
func (s *State) series(from, evaluated, to, most int) (text []byte, last int) {
	s.mu.Lock()
	points, evals, open, opened, own := s.points, s.evals, s.open, s.opened, s.own
	s.mu.Unlock()
	lo, _ := slices.BinarySearchFunc(points, from+1, func(p point, step int) int { return p.step - step })
	hi, _ := slices.BinarySearchFunc(points, to+1, func(p point, step int) int { return p.step - step })
	points = points[lo:hi:hi]
	if opened > 0 && from < open.step && open.step <= to {
		points = append(points, open)
	}
	points = thin(points, most)
	evals = slices.DeleteFunc(slices.Clone(evals), func(e report.Eval) bool { return e.Step <= evaluated || e.Step > to })
	if last = evaluated; len(evals) > 0 {
		last = evals[len(evals)-1].Step
	}
	return encode(points, evals, own), last
}

// thin reduces points to up to most means of neighbors.
func thin(points []point, most int) []point {
	run := (len(points) + most - 1) / most
	if run <= 1 {
		return points
	}
	var few []point
	for some := range slices.Chunk(points, run) {
		few = append(few, mean(some))
	}
	return few
}

func encode(points []point, evals []report.Eval, own []string) []byte {
	b := []byte(`{"step":[`)
	list := func(n int, add func(i int)) {
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			add(i)
		}
		b = append(b, ']')
	}
	list(len(points), func(i int) { b = strconv.AppendInt(b, int64(points[i].step), 10) })
	key := func(name string) {
		text, _ := json.Marshal(name) // cannot fail for a text
		b = append(append(append(b, ','), text...), ":["...)
	}
	column := func(name string, of func(p point) float32) {
		key(name)
		list(len(points), func(i int) { b = appendNumber(b, float64(of(points[i]))) })
	}
	for c, name := range names {
		column(name, func(p point) float32 { return p.of[c] })
	}
	column("low", func(p point) float32 { return p.low })
	column("high", func(p point) float32 { return p.high })
	for i, name := range own {
		column("metrics/"+name, func(p point) float32 { return p.metric(i) })
		key("val_metrics/" + name)
		list(len(evals), func(at int) { b = appendNumber(b, metric(evals[at].Metrics, name)) })
	}
	b = append(b, `,"eval_step":[`...)
	list(len(evals), func(i int) { b = strconv.AppendInt(b, int64(evals[i].Step), 10) })
	b = append(b, `,"val_loss":[`...)
	list(len(evals), func(i int) { b = appendNumber(b, evals[i].ValLoss) })
	return append(b, '}')
}

// Log returns the lines from number n on, and the number of the next one.
func (s *State) Log(n int) ([]Line, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := min(max(0, n-s.dropped), len(s.lines))
	return slices.Clone(s.lines[at:]), s.dropped + len(s.lines)
}

// planned returns the categories of rank 0 in a memory line. Without measurements, the plan
// stands for what the rank holds.
func planned(line []byte) []Category {
	all := []Category{}
	var of struct {
		Memory struct {
			Planned struct {
				Device, Host map[string]int64
				Disk         int64
			}
			Ranks []struct {
				Rank int
				Peak map[string]int64
			}
		}
	}
	if json.Unmarshal(line, &of) != nil { // damaged or missing
		return all
	}
	m := of.Memory
	held := m.Planned.Device
	if len(m.Ranks) > 0 && m.Ranks[0].Rank == 0 {
		held = m.Ranks[0].Peak
	}
	for use := range device.Uses {
		name := use.String()
		all = append(all, Category{name, "device", m.Planned.Device[name], held[name]}, Category{name, "host", m.Planned.Host[name], m.Planned.Host[name]})
	}
	all = append(all, Category{"optimizer and parameters", "disk", m.Planned.Disk, m.Planned.Disk})
	return slices.DeleteFunc(all, func(c Category) bool { return c.Planned == 0 && c.Held == 0 })
}

// Ended returns the state of a finished run, from its files and its checkpoints.
func Ended(out string, l *report.Log, job string, saves []Save) *State {
	s := NewState(out)
	for _, x := range l.Steps {
		s.Step(x)
	}
	s.evals = l.Evals
	for _, e := range l.Evals {
		s.learn(e.Metrics)
	}
	if n := len(l.Starts); n > 0 {
		s.Begin(l.Starts[n-1], job, false)
		s.run.Rows = l.Starts[n-1].Rows()
	}
	s.run.Job, s.run.Memory, s.run.State = job, planned(l.Memory), "running, or killed"
	s.run.Saves = append(s.run.Saves, saves...)
	for _, c := range l.Changes {
		s.changed(c)
	}
	if c := l.Changed(); c != nil {
		s.run.Replicas = c.Replicas
	}
	if l.End != nil {
		s.Event(*l.End)
	}
	return s
}
