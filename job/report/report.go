package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/collective"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/job/trace"
	"zeroth/shard"
)

// Header describes a run before its first step.
type Header struct {
	Start                        // only what the job determines
	Groups        []spec.Grouped // of parameters; nil for a job without groups
	shard.Mesh                   // of the ranks
	Master        bool           // rank 0 is one
	GlobalBatch   int            // sequences per step
	Epochs        float64        // epochs in those steps; 0 if the job gives steps
	DataTokens    int64          // tokens of training data, without padding
	Out           string
	MemoryPerRank int64  // bytes
	HostPerRank   int64  // offloaded bytes in host memory
	DiskPerRank   int64  // offloaded bytes on disk
	Offload       string // describes what is offloaded; "" for nothing
}

// Step is one update, as in a line of metrics.jsonl.
type Step struct {
	Step            int     `json:"step"` // counted from 1
	Loss            float64 `json:"loss"` // nats per token, mean over the global batch
	LR              float64 `json:"lr"`
	GradNorm        float64 `json:"grad_norm"` // norm of the whole gradient, before clipping
	Tokens          int64   `json:"tokens"`    // tokens trained on so far, including this step
	TokensPerSecond float64 `json:"tokens_per_second"`
	StepSeconds     float64 `json:"step_seconds"`
	Skipped         int     `json:"skipped"`      // steps skipped so far because a gradient was not finite
	Time            float64 `json:"time"`         // end of the step: seconds since 1970, in whole milliseconds
	DataSeconds     float64 `json:"data_seconds"` // time in which rank 0 read its samples
	MFU             float64 `json:"mfu"`          // model operations per second, as a share of the peak; 0 if the peak is unknown

	Parts trace.Exposure `json:"-"` // of rank 0's step; without steps if it was not measured

	// For the previous step, with several ranks: the median time that ranks waited for each other,
	// the slowest rank, and how far it was behind; see Behind.
	Waited  float64 `json:"waited_seconds"`
	Slowest int     `json:"slowest_rank"`
	Behind  float64 `json:"behind"` // 0.2: the step took 20 % longer than it would have without this rank

	RankSeconds, RankWaits Spread `json:"-"` // also of the previous step: each rank's time and wait

	Metrics map[string]float64 `json:"-"` // of a program's network: means over the global batch; nil: none
}

// Spread is the smallest and the largest value of a quantity over ranks, with their ranks.
type Spread struct {
	Least, Most RankValue
}

// RankValue is a rank's number.
type RankValue struct {
	Seconds float64
	Rank    int
}

// Start describes a run at one of its starts, as in metrics.jsonl.
type Start struct {
	Step          int     `json:"-"`    // steps done before
	Run           string  `json:"run"`  // name of the run, the same in all its starts
	Time          float64 `json:"time"` // seconds since 1970
	Version       string  `json:"version"`
	Model         string  `json:"model"` // "GPT-2 10.7M"
	Parameters    int64   `json:"parameters"`
	Ranks         int     `json:"ranks"`
	Mesh          string  `json:"mesh"`
	Stage         int     `json:"stage"`
	Precision     string  `json:"precision"`
	Device        string  `json:"device"`          // of the ranks: "cpu", "cuda: GPU 0 (NVIDIA H200)"
	Steps         int     `json:"steps"`           // total steps of the job
	TokensPerStep int     `json:"tokens_per_step"` // tokens of all ranks
	Unit          string  `json:"unit,omitempty"`  // of TokensPerStep; empty: tokens
	ModelFlops    float64 `json:"model_flops"`     // of a rank in a step, without recomputation; in a pipeline a mean
	PeakFlops     float64 `json:"peak_flops"`      // of a rank per second; 0 if unknown
}

// Rows returns pairs of a word and its value, like those of a Header.
func (s Start) Rows() [][2]string {
	return [][2]string{
		{"model", fmt.Sprintf("%s, %s parameters", s.Model, show.Grouped(s.Parameters))},
		{"ranks", fmt.Sprintf("%d = %s, stage %d, %s", s.Ranks, s.Mesh, s.Stage, s.Precision)},
		{"device", s.Device},
		{"batch", fmt.Sprintf("%s %s a step, %s steps", show.Grouped(int64(s.TokensPerStep)), cmp.Or(s.Unit, "tokens"), show.Grouped(int64(s.Steps)))},
		{"version", s.Version},
	}
}

// End describes how a start of a run ended.
type End struct {
	Step  int     `json:"-"` // steps done
	Time  float64 `json:"time"`
	State string  `json:"state"`         // "done", "stopped" or "failed"
	Why   string  `json:"why,omitempty"` // the reason, if the run did not reach its last step
}

// Eval is a validation loss after a step.
type Eval struct {
	Step    int
	ValLoss float64            // nats per token
	Metrics map[string]float64 // of a program's network, like Step's
}

// Change is a change of the replicas that train, after a step.
type Change struct {
	Step     int     `json:"-"`
	Time     float64 `json:"time"`  // seconds since 1970
	Epoch    int     `json:"epoch"` // number of the change
	Replicas int     `json:"replicas"`
	Lost     []int   `json:"lost,omitempty"`   // ranks, by the numbers of the first start
	Slow     bool    `json:"slow,omitempty"`   // the others have left out a replica of Lost
	Joined   []int   `json:"joined,omitempty"` // ranks that have come back
	Seconds  float64 `json:"seconds"`          // from when the ranks had stopped
}

// String describes the change for people.
func (c Change) String() string {
	s, lost := fmt.Sprintf("after step %d: ", c.Step), "lost"
	if c.Slow {
		lost = "left out slow"
	}
	for _, x := range []struct {
		word  string
		ranks []int
	}{{lost, c.Lost}, {"joined by", c.Joined}} {
		if len(x.ranks) > 0 {
			s += fmt.Sprintf("%s %s, ", x.word, collective.RankNames(slices.Sorted(slices.Values(x.ranks))))
		}
	}
	return s + "going on with " + c.Left()
}

// Left returns how many replicas train after the change.
func (c Change) Left() string {
	if c.Replicas == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", c.Replicas)
}

// Lead is the event of a process that was not the first one, and reports for the run from now on.
type Lead struct{}

// Summary describes how a run ended.
type Summary struct {
	Steps         int     // steps done, including those of earlier starts
	Loss          float64 // NaN without steps
	ValLoss       float64 // last validation loss; NaN if there was none
	Tokens        int64
	Unit          string // of Tokens; empty: tokens
	Seconds       float64
	MFU           float64        // mean over the steps of this start; 0 if the peak is unknown
	MemoryPerRank int64          // bytes, the peak of the rank with the highest
	Memory        *Account       // account at the end; nil if the run failed
	Out           string         // the run folder
	Model         string         // which step its final model has, in words; empty: the last
	Stopped       bool           // stopped on request before the last step or within its evaluation
	Sample        string         // prompt and text; empty if the job asks for none
	Trace         trace.Exposure // without steps if none were traced
}

// Now returns the time for records of a run: seconds since 1970, in whole milliseconds.
func Now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// Observer receives the progress of a run: a Header first, a Summary last. The loop calls Step and
// all events but a Note, which may come from any goroutine.
type Observer interface {
	Step(Step)
	Event(Event)
}

// Event is a Header, an Eval, a Note, a Warning, a Summary, or a record of metrics.jsonl: a Start, an
// *Account, or an End.
type Event interface{ event() }

// Note is a line for people.
type Note string

// Warning is a line about something that may need a person.
type Warning string

func (Header) event()   {}
func (Lead) event()     {}
func (Change) event()   {}
func (Eval) event()     {}
func (Note) event()     {}
func (Warning) event()  {}
func (Summary) event()  {}
func (Start) event()    {}
func (*Account) event() {}
func (End) event()      {}

// Observers passes everything on to each observer, in order.
type Observers []Observer

// Step implements Observer.
func (os Observers) Step(s Step) {
	for _, o := range os {
		o.Step(s)
	}
}

// Event implements Observer. It bounds the length of lines.
func (os Observers) Event(e Event) {
	switch line := e.(type) {
	case Note:
		e = Note(show.Bound(string(line)))
	case Warning:
		e = Warning(show.Bound(string(line)))
	}
	for _, o := range os {
		o.Event(e)
	}
}

// Note passes on a Note.
func (os Observers) Note(line string) { os.Event(Note(line)) }

// Warn passes on a Warning.
func (os Observers) Warn(line string) { os.Event(Warning(line)) }

// pace is a moving average of step times.
type pace struct {
	seconds float64
	unit    string // of speeds; empty: tokens
}

func (p *pace) add(seconds float64) {
	if p.seconds == 0 {
		p.seconds = seconds
	}
	p.seconds += 0.1 * (seconds - p.seconds)
}

// eta returns the time that the remaining steps will take.
func (p *pace) eta(left int) time.Duration {
	return time.Duration(p.seconds * float64(left) * float64(time.Second))
}

// perStep returns the size of a step in words.
func (h Header) perStep() string {
	if h.Unit == "samples" {
		return show.Grouped(int64(h.GlobalBatch)) + " samples"
	}
	return fmt.Sprintf("%d sequences, %s %s", h.GlobalBatch, show.Grouped(int64(h.TokensPerStep)), cmp.Or(h.Unit, "tokens"))
}

// Rows returns the header's lines, each a word and its value.
func (h Header) Rows() [][2]string {
	ranks := fmt.Sprintf("%d, stage %d, %s", h.Ranks, h.Stage, h.Precision)
	if max(h.Pipeline, h.Context, h.Tensor, h.Expert) > 1 {
		ranks = fmt.Sprintf("%d = %s, stage %d, %s", h.Ranks, h.Dimensions(), h.Stage, h.Precision)
	} else if h.Replicate > 1 {
		ranks = fmt.Sprintf("%d = shard %d × replicate %d, stage %d, %s", h.Ranks, h.Shard, h.Replicate, h.Stage, h.Precision)
	}
	if h.Master {
		ranks += "; rank 0 is the master"
	}
	epochs := ""
	if h.Epochs > 0 {
		epochs = fmt.Sprintf(" for %g epochs", h.Epochs)
	}
	rows := [][2]string{
		{"model", fmt.Sprintf("%s, %s parameters", h.Model, show.Grouped(h.Parameters))},
		{"ranks", ranks},
	}
	if h.Device != "" && h.Device != "cpu" {
		rows = append(rows, [2]string{"device", h.Device})
	}
	rows = append(rows, [][2]string{
		{"batch", h.perStep() + fmt.Sprintf(" a step, %s steps%s", show.Grouped(int64(h.Steps)), epochs)},
		{"data", show.Grouped(h.DataTokens) + " " + cmp.Or(h.Unit, "tokens")},
	}...)
	rows = append(rows, spec.GroupRows(h.Groups)...)
	if h.MemoryPerRank > 0 {
		rows = append(rows, [2]string{"memory", show.ByteSize(h.MemoryPerRank) + " a rank"})
	}
	if h.Offload != "" {
		offloaded := show.ByteSize(h.HostPerRank) + " on the host"
		if h.DiskPerRank > 0 {
			offloaded += ", " + show.ByteSize(h.DiskPerRank) + " on disk"
		}
		rows = append(rows, [2]string{"offload", h.Offload + ": " + offloaded + " a rank"})
	}
	return append(rows, [2]string{"out", h.Out})
}

// Lines returns the end of a run in words.
func (s Summary) Lines() []string {
	verb := "done:"
	if s.Stopped {
		verb = "stopped after"
	}
	out := fmt.Sprintf("%s %s steps, %s %s in %s", verb, show.Grouped(int64(s.Steps)), show.Grouped(s.Tokens), cmp.Or(s.Unit, "tokens"), show.Span(s.Seconds))
	if !math.IsNaN(s.Loss) {
		out += fmt.Sprintf(", loss %.4f", s.Loss)
	}
	if !math.IsNaN(s.ValLoss) {
		out += fmt.Sprintf(", validation loss %.4f", s.ValLoss)
	}
	if s.MFU > 0 {
		out += fmt.Sprintf(", MFU %.1f %%", 100*s.MFU)
	}
	if s.MemoryPerRank > 0 {
		out += fmt.Sprintf(", peak %s per rank", show.ByteSize(s.MemoryPerRank))
	}
	lines := []string{out, "saved to " + s.Out}
	if s.Model != "" {
		lines[1] += "; " + s.Model
	}
	if s.Memory != nil {
		lines = append(lines, s.Memory.String())
	}
	if s.Trace.Steps > 0 {
		lines = append(lines, s.Trace.Line())
	}
	if s.Sample != "" {
		lines = append(lines, "", s.Sample)
	}
	return lines
}

// status describes a step in as many words as fit into width columns, the most important
// first.
func (s Step) status(eta time.Duration, unit string, width int) string {
	words := []string{
		fmt.Sprintf("loss %.4f", s.Loss),
		show.Compact(s.TokensPerSecond) + " " + cmp.Or(unit, "tokens") + "/s",
	}
	if s.MFU > 0 {
		words = append(words, fmt.Sprintf("MFU %.1f %%", 100*s.MFU))
	}
	words = append(words,
		"ETA "+show.Span(eta.Seconds()),
		fmt.Sprintf("lr %.2e", s.LR),
		fmt.Sprintf("norm %.3f", s.GradNorm))
	if s.Skipped > 0 {
		words = append(words, fmt.Sprintf("skipped %d", s.Skipped))
	}
	line := words[0]
	for _, w := range words[1:] {
		if len(line)+2+len(w) > width {
			break
		}
		line += "  " + w
	}
	return line
}
