// Command schedule draws docs/schedule.svg: what the queues of one rank did
// during a training step at stage 3, from a trace of a real run.
//
//	go run ./docs/schedule > docs/schedule.svg
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"zeroth/data"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

func main() {
	spans, err := record("examples/quickstart.yaml", []string{"parallel.ranks=2", "train.micro_batch=2"})
	if err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	}
	if err := draw(os.Stdout, spans); err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	}
}

// span is an operation on a unit: neighbouring tasks of a queue.
type span struct {
	queue, unit, what string
	from, to          time.Duration // since the step began
}

// steps is how many a recording takes; the fastest is drawn.
const steps = 30

// record trains some steps and returns the spans of rank 0 in the fastest.
func record(file string, sets []string) (best []span, err error) {
	c, err := setup.ThisMachine(1, 0).Load(file, sets)
	if err != nil {
		return nil, err
	}
	ranks, err := setup.Open(setup.Local(c))
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, r := range ranks {
			r.Close()
		}
	}()
	var tr tracer
	for _, q := range ranks[0].Queues.All() {
		q.Trace(tr.task)
	}
	shortest := time.Duration(1 << 62)
	err = setup.Together(ranks, func(r *setup.Rank) error {
		if err := r.Trainer.Fill(zero.Master, fresh); err != nil {
			return err
		}
		for range steps {
			if r.Rank == 0 {
				tr.begin()
			}
			if _, err := r.Trainer.Step(zero.Work{Fill: zeros, LR: 1e-3}); err != nil {
				return err
			}
			for _, q := range r.Queues.All() {
				if err := q.Wait(); err != nil {
					return err
				}
			}
			if r.Rank != 0 {
				continue
			}
			if took := time.Since(tr.start); took < shortest {
				shortest, best = took, tr.take()
			}
		}
		return nil
	})
	return best, err
}

func fresh(p zero.Part, dst []float32) error {
	nn.Fill(1, p.Param, shard.Range{Lo: p.At.Lo, Hi: p.At.Hi}, dst)
	return nil
}

// zeros returns a batch of token 0. The time of computing does not depend on the tokens.
func zeros(_ int, into []data.Values) error {
	for _, field := range into {
		clear(field.I32)
	}
	return nil
}

// tracer joins a queue's neighbouring tasks about one unit to spans.
type tracer struct {
	mu    sync.Mutex
	start time.Time
	spans []span
	last  map[string]int // the index of each queue's last span
}

func (tr *tracer) begin() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.start, tr.spans, tr.last = time.Now(), nil, map[string]int{}
}

func (tr *tracer) take() []span {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.spans
}

func (tr *tracer) task(s device.Span) {
	if s.Task == "wait" || s.Label == "" {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	unit, what, _ := strings.Cut(strings.TrimPrefix(s.Label, "unit "), ": ")
	from, to := s.Start.Sub(tr.start), s.End.Sub(tr.start)
	i, ok := tr.last[s.Queue]
	if ok && tr.spans[i].unit == unit && tr.spans[i].what == what {
		tr.spans[i].to = to
		return
	}
	tr.last[s.Queue] = len(tr.spans)
	tr.spans = append(tr.spans, span{s.Queue, unit, what, from, to})
}

// lanes are the queues, from the top.
var lanes = []string{"compute", "comm", "update"}

// work is the kinds of work, as the legend has them.
var work = []struct {
	what  string
	color show.Color
}{
	{"forward", show.Color{Light: "#6ea3dc", Dark: "#4f8fd6"}}, {"backward", show.Color{Light: "#f0a35c", Dark: "#d98434"}},
	{"all-gather", show.Color{Light: "#9fd0b0", Dark: "#3f9a66"}}, {"reduce-scatter", show.Color{Light: "#c9b3e6", Dark: "#8a63d2"}},
	{"norm", show.Color{Light: "#b4b4b4", Dark: "#8c8c8c"}}, {"update", show.Color{Light: "#e58a86", Dark: "#c2514c"}},
}

// draw writes the spans as SVG, a lane for each queue and a color for each kind of
// work.
func draw(w io.Writer, spans []span) error {
	var end time.Duration
	for _, s := range spans {
		end = max(end, s.to)
	}
	ms := func(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }
	c := &show.Chart{Title: "One training step of one rank, at stage 3",
		Notes: []string{"its queues in a real run of two ranks; the names are units"},
		X:     show.Axis{Label: "time since the step began (ms)", Hi: ms(end)}, Y: show.Axis{Label: "queue", Hi: float64(len(lanes))}}
	for i, name := range lanes {
		c.Y.Bands = append(c.Y.Bands, show.Band{From: float64(len(lanes) - 1 - i), To: float64(len(lanes) - i), Label: name})
	}
	for _, kind := range slices.Backward(work) { // the legend is from the top
		for _, s := range spans {
			if s.what != kind.what {
				continue
			}
			low := float64(len(lanes)-1-slices.Index(lanes, s.queue)) + 0.12
			from, to, high := ms(s.from), ms(s.to), low+0.76
			c.Series = append(c.Series, show.Series{Name: kind.what, Color: kind.color, Fill: true,
				Points: []show.XY{{X: from, Y: low}, {X: from, Y: high}, {X: to, Y: high}, {X: to, Y: low}}})
			if to-from > 0.055*ms(end) {
				c.Marks = append(c.Marks, show.Mark{XY: show.XY{X: (from + to) / 2, Y: low + 0.28}, Label: s.unit})
			}
		}
	}
	_, err := io.WriteString(w, show.SVG(c))
	return err
}
