package job

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Header is what a run is, known before its first step.
type Header struct {
	Model         string // "GPT-2 10.7M"
	Parameters    int64
	Ranks         int
	Shard         int
	Replicate     int
	Stage         int
	Precision     string
	GlobalBatch   int // sequences a step
	TokensPerStep int
	Steps         int
	DataTokens    int64 // to train on
	Out           string
	MemoryPerRank int64  // bytes
	HostPerRank   int64  // bytes of what is offloaded, in host memory
	DiskPerRank   int64  // bytes of what is offloaded, on disk
	Offload       string // what is, in words; empty for nothing
}

// Step is one update, as a line of metrics.jsonl has it.
type Step struct {
	Step            int     // from 1
	Loss            float64 // nats per token, mean over the global batch
	LR              float64
	GradNorm        float64 // of the whole gradient, before clipping
	Tokens          int64   // trained on so far, this step included
	TokensPerSecond float64
	StepSeconds     float64
	Skipped         int // steps skipped so far because a gradient was not finite
}

// Eval is a validation loss after a step.
type Eval struct {
	Step    int
	ValLoss float64 // nats per token
}

// Summary is how a run ended.
type Summary struct {
	Steps         int     // done, those of the runs before included
	Loss          float64 // NaN if there was no step
	ValLoss       float64 // the last one; NaN if there was none
	Tokens        int64
	Seconds       float64
	MemoryPerRank int64    // bytes, the peak of the rank with the highest
	Memory        *Account // at the end; nil if the run failed
	Out           string   // the run folder
	Stopped       bool     // before the last step, because it was asked to
	Sample        string   // prompt and text; empty if the job asks for none
	Trace         Exposure // without steps if none were traced
}

// Observer hears how a run goes. Start comes first, Done last; the loop calls
// all but Note from one goroutine. Note, a line for people, may come from any.
type Observer interface {
	Start(Header)
	Step(Step)
	Eval(Eval)
	Note(string)
	Done(Summary)
}

// Observers pass everything on to each of them, in order.
type Observers []Observer

func (os Observers) Start(h Header) {
	for _, o := range os {
		o.Start(h)
	}
}

func (os Observers) Step(s Step) {
	for _, o := range os {
		o.Step(s)
	}
}

func (os Observers) Eval(e Eval) {
	for _, o := range os {
		o.Eval(e)
	}
}

func (os Observers) Note(line string) {
	for _, o := range os {
		o.Note(line)
	}
}

func (os Observers) Done(s Summary) {
	for _, o := range os {
		o.Done(s)
	}
}

// pace is how long a step takes, an average that forgets slowly.
type pace struct{ seconds float64 }

func (p *pace) add(seconds float64) {
	if p.seconds == 0 {
		p.seconds = seconds
	}
	p.seconds += 0.1 * (seconds - p.seconds)
}

// eta is the time the steps that are left will take.
func (p *pace) eta(left int) time.Duration {
	return time.Duration(p.seconds * float64(left) * float64(time.Second))
}

// rows are the header's lines: a word and what it is.
func (h Header) rows() [][2]string {
	ranks := fmt.Sprintf("%d, stage %d, %s", h.Ranks, h.Stage, h.Precision)
	if h.Replicate > 1 {
		ranks = fmt.Sprintf("%d = shard %d × replicate %d, stage %d, %s", h.Ranks, h.Shard, h.Replicate, h.Stage, h.Precision)
	}
	rows := [][2]string{
		{"model", fmt.Sprintf("%s, %s parameters", h.Model, grouped(h.Parameters))},
		{"ranks", ranks},
		{"batch", fmt.Sprintf("%d sequences, %s tokens a step, %s steps", h.GlobalBatch, grouped(int64(h.TokensPerStep)), grouped(int64(h.Steps)))},
		{"data", grouped(h.DataTokens) + " tokens"},
	}
	if h.MemoryPerRank > 0 {
		rows = append(rows, [2]string{"memory", byteSize(h.MemoryPerRank) + " a rank"})
	}
	if h.Offload != "" {
		away := byteSize(h.HostPerRank) + " on the host"
		if h.DiskPerRank > 0 {
			away += ", " + byteSize(h.DiskPerRank) + " on disk"
		}
		rows = append(rows, [2]string{"offload", h.Offload + ": " + away + " a rank"})
	}
	return append(rows, [2]string{"out", h.Out})
}

// lines are the end of a run in words.
func (s Summary) lines() []string {
	verb := "done:"
	if s.Stopped {
		verb = "stopped after"
	}
	out := fmt.Sprintf("%s %s steps, %s tokens in %s", verb, grouped(int64(s.Steps)), grouped(s.Tokens), span(s.Seconds))
	if !math.IsNaN(s.Loss) {
		out += fmt.Sprintf(", loss %.4f", s.Loss)
	}
	if !math.IsNaN(s.ValLoss) {
		out += fmt.Sprintf(", validation loss %.4f", s.ValLoss)
	}
	if s.MemoryPerRank > 0 {
		out += fmt.Sprintf(", peak %s a rank", byteSize(s.MemoryPerRank))
	}
	lines := []string{out, "kept in " + s.Out}
	if s.Memory != nil {
		lines = append(lines, s.Memory.String())
	}
	if s.Trace.Steps > 0 {
		lines = append(lines, s.Trace.line())
	}
	if s.Sample != "" {
		lines = append(lines, "", s.Sample)
	}
	return lines
}

// grouped is 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// compact is 12345 as 12.3k.
func compact(x float64) string {
	switch {
	case x >= 1e9:
		return fmt.Sprintf("%.1fG", x/1e9)
	case x >= 1e6:
		return fmt.Sprintf("%.1fM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

// byteSize is bytes in units of 1024.
func byteSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for ; math.Abs(x) >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[i])
}

// span is a length of time as people say it: 4.2s, 3m05s, 2h10m.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1fs", seconds)
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// status is a step in words, as many as fit into width columns; the most
// telling come first.
func (s Step) status(eta time.Duration, width int) string {
	words := []string{
		fmt.Sprintf("loss %.4f", s.Loss),
		compact(s.TokensPerSecond) + " tokens/s",
		"ETA " + span(eta.Seconds()),
		fmt.Sprintf("lr %.2e", s.LR),
		fmt.Sprintf("norm %.3f", s.GradNorm),
	}
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
