package report

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"zeroth/internal/show"
)

// Progress is an Observer that prints for people. Close ends it, also after a run that failed
// before Done; it may be called twice.
type Progress interface {
	Observer
	Close()
}

// NewProgress draws a bar if out is a terminal that can, and writes lines
// otherwise. NO_COLOR (no-color.org) is respected.
func NewProgress(out io.Writer) Progress {
	if terminal(out) {
		return newBar(out, os.Getenv("NO_COLOR") == "")
	}
	return newLines(out)
}

// Lines writes plain lines, for pipes and logs: the header, about one step per second and about
// 200 steps per run at most, evaluations, and the end.
type Lines struct {
	mu    sync.Mutex
	w     io.Writer
	steps int
	pace  pace
	due   due
}

// newLines writes to w.
func newLines(w io.Writer) *Lines { return &Lines{w: w} }

func (l *Lines) line(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.w, show.OnScreen(fmt.Appendf(nil, format, args...)))
}

// Step writes a line if the last one is old enough.
func (l *Lines) Step(s Step) {
	l.pace.add(s.StepSeconds)
	if !l.due.step(s, l.steps) {
		return
	}
	l.line("step %d/%d  %s", s.Step, l.steps, s.status(l.pace.eta(l.steps-s.Step), l.pace.unit, 200))
}

// Event writes a line, or several.
func (l *Lines) Event(e Event) {
	switch e := e.(type) {
	case Header:
		l.steps, l.pace.unit = e.Steps, e.Unit
		for _, r := range e.Rows() {
			l.line("%-7s %s", r[0], r[1])
		}
	case Eval:
		l.line("step %d/%d  validation loss %.4f%s", e.Step, l.steps, e.ValLoss, texts(e.Metrics))
	case Note:
		l.line("%s", show.Bound(string(e)))
	case Warning:
		l.line("%s", show.Bound(string(e)))
	case Summary:
		for _, line := range e.Lines() {
			l.line("%s", line)
		}
	}
}

// texts returns metrics of a program's network for people.
func texts(metrics map[string]float64) (s string) {
	own("", metrics, func(name string, x float64) { s += fmt.Sprintf(", %s %.4f", name, x) })
	return s
}

// Close implements Progress; every line is complete already.
func (l *Lines) Close() {}

// Bar draws a progress bar on a terminal, with evaluations and notes above it.
type Bar struct {
	w     io.Writer
	color bool

	mu    sync.Mutex // guards the fields below, which the bar's goroutine reads
	p     *mpb.Progress
	bar   *mpb.Bar
	steps int
	step  Step
	pace  pace
}

// newBar draws on w, a terminal.
func newBar(w io.Writer, color bool) *Bar { return &Bar{w: w, color: color} }

func (b *Bar) paint(code, s string) string {
	if !b.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// start writes the header and starts to draw.
func (b *Bar) start(h Header) {
	for _, r := range h.Rows() {
		name := fmt.Sprintf("%-7s", r[0])
		text := b.fitted(name + " " + show.OnScreen([]byte(r[1])))
		fmt.Fprintln(b.w, b.paint("36", name)+text[len(name):])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps, b.pace.unit = h.Steps, h.Unit
	b.p = mpb.New(mpb.WithOutput(b.w), mpb.WithAutoRefresh())
	b.bar = b.p.New(int64(h.Steps), mpb.BarStyle(),
		mpb.BarWidth(barWidth(b.w)),
		mpb.PrependDecorators(decor.CountersNoUnit("step %d/%d")),
		mpb.AppendDecorators(decor.Any(b.status)))
}

// status returns the text behind the bar, shortened to fit the line.
func (b *Bar) status(s decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step.Step == 0 {
		return "first step"
	}
	return b.step.status(b.pace.eta(b.steps-b.step.Step), b.pace.unit, s.AvailableWidth-barWidth(b.w)-2) // and the spaces around it
}

// barWidth returns the width of a bar in columns, less on a narrow terminal.
func barWidth(out io.Writer) int {
	if width := show.Width(out); width > 0 {
		return max(8, min(30, width-70))
	}
	return 30
}

// fitted returns a text in a form that the terminal can show.
func (b *Bar) fitted(text string) string { return show.Fitted(b.w, text) }

// running returns the container while it draws, otherwise nil.
func (b *Bar) running() (*mpb.Progress, *mpb.Bar) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.p, b.bar
}

// Step moves the bar.
func (b *Bar) Step(s Step) {
	b.mu.Lock()
	b.step = s
	b.pace.add(s.StepSeconds)
	b.mu.Unlock()
	if _, bar := b.running(); bar != nil {
		bar.SetCurrent(int64(s.Step))
	}
}

// Event writes lines above the bar, which a Header begins and a Summary ends.
func (b *Bar) Event(e Event) {
	switch e := e.(type) {
	case Header:
		b.start(e)
	case Eval:
		b.above(fmt.Sprintf("step %d: validation loss %.4f%s", e.Step, e.ValLoss, texts(e.Metrics)))
	case Note:
		b.above(string(e))
	case Warning:
		b.above(string(e))
	case Summary:
		b.done(e)
	}
}

// above writes a line above the bar.
func (b *Bar) above(s string) {
	s = b.fitted(show.OnScreen([]byte(s)))
	p, _ := b.running()
	if p != nil {
		if _, err := p.Write([]byte(s + "\n")); err == nil {
			return
		}
	}
	fmt.Fprintln(b.w, s)
}

// done ends the bar and writes the end.
func (b *Bar) done(s Summary) {
	b.Close()
	for _, line := range s.Lines() {
		text := show.OnScreen([]byte(line))
		if line != s.Sample { // printed as it is
			text = b.fitted(text)
		}
		fmt.Fprintln(b.w, text)
	}
}

// Close leaves the bar on a line of its own.
func (b *Bar) Close() {
	p, bar := b.running()
	if p == nil {
		return
	}
	bar.Abort(false)
	p.Wait()
	b.mu.Lock()
	b.p, b.bar = nil, nil
	b.mu.Unlock()
}
