// Command schedule draws docs/schedule.svg: what the queues of one rank did
// during a training step at stage 3, from a trace of a real run.
//
//	go run ./docs/schedule > docs/schedule.svg
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"zeroth/device"
	"zeroth/job/build"
	"zeroth/job/config"
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
const steps = 6

// record trains some steps and returns the spans of rank 0 in the fastest.
func record(file string, sets []string) (best []span, err error) {
	c, err := config.Load(file, sets)
	if err != nil {
		return nil, err
	}
	ranks, err := build.Open(c, build.Setup{})
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, r := range ranks {
			r.Close()
		}
	}()
	var tr tracer
	for _, q := range ranks[0].Queues {
		q.Trace(tr.task)
	}
	shortest := time.Duration(1 << 62)
	err = build.Together(ranks, func(r *build.Rank) error {
		if err := r.Trainer.Fill(zero.Master, fresh); err != nil {
			return err
		}
		for range steps {
			if r.Rank == 0 {
				tr.begin()
			}
			if _, err := r.Trainer.Step(zeros, 1e-3); err != nil {
				return err
			}
			for _, q := range r.Queues {
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

// zeros is a batch of token 0: what is computed does not change how long.
func zeros(_ int, input, target []int32) error {
	clear(input)
	clear(target)
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

// The drawing's measures, in pixels.
const (
	width  = 960
	left   = 80
	lane   = 34
	height = 3*(lane+10) + 40
)

// draw writes the spans as SVG, a lane for each queue and a hue for each unit.
func draw(w io.Writer, spans []span) error {
	lanes := map[string]int{"compute": 0, "comm": 1, "update": 2}
	var end time.Duration
	for _, s := range spans {
		end = max(end, s.to)
	}
	x := func(t time.Duration) float64 { return left + float64(t)/float64(end)*(width-left-10) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="Arial,sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for i, name := range []string{"compute", "comm", "update"} {
		fmt.Fprintf(&b, `<text x="8" y="%d">%s</text>`+"\n", 10+i*(lane+10)+lane/2+4, name)
	}
	hues := map[string]int{}
	for _, s := range spans {
		if _, ok := hues[s.unit]; !ok {
			hues[s.unit] = len(hues) * 47 % 360
		}
		light := 82 // on the way forward
		if s.what == "backward" || s.what == "reduce-scatter" {
			light = 62
		}
		y, wide := 10+lanes[s.queue]*(lane+10), max(0.6, x(s.to)-x(s.from))
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="hsl(%d,60%%,%d%%)"><title>%s of %s, %v</title></rect>`+"\n",
			x(s.from), y, wide, lane, hues[s.unit], light, s.what, s.unit, (s.to - s.from).Round(10*time.Microsecond))
		if wide > 30 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(s.from)+wide/2, y+lane/2+4, s.unit)
		}
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">0</text><text x="%d" y="%d" text-anchor="end">%v</text>`+"\n</svg>\n", left, height-12, width-10, height-12, end.Round(time.Millisecond))
	_, err := io.WriteString(w, b.String())
	return err
}
