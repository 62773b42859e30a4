// Command pipeline draws docs/pipeline.svg: which micro-batch each rank of a pipeline works on,
// in the schedules, as package forecast simulates them.
//
//	go run ./docs/pipeline > docs/pipeline.svg
package main

import (
	"fmt"
	"os"
	"strconv"

	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/pipe"
)

func main() {
	text, err := drawing()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

// The pipeline that is drawn, and the seconds that a rank's layers take for a micro-batch.
const (
	ranks, micros     = 4, 8
	forward, backward = 1.0, 2.0

	width = 8 // of the model
)

// shapes are the schedules that are drawn.
var shapes = []pipe.Shape{
	{Schedule: pipe.GPipe, Ranks: ranks, Virtual: 1, Micro: micros},
	{Schedule: pipe.OneF1B, Ranks: ranks, Virtual: 1, Micro: micros},
	{Schedule: pipe.Interleaved, Ranks: ranks, Virtual: 2, Micro: micros},
	{Schedule: pipe.ZBH1, Ranks: ranks, Virtual: 1, Micro: micros},
}

// drawing draws each schedule.
func drawing() (string, error) {
	var charts []*show.Chart
	for _, s := range shapes {
		boxes, bubble, err := simulate(s)
		if err != nil {
			return "", err
		}
		charts = append(charts, chart(s, boxes, bubble))
	}
	return show.SVG(charts...), nil
}

// box is an action of a rank, and when it begins and ends, in seconds.
type box struct {
	pipe.Action
	rank     int
	from, to float64
}

// simulate returns what the ranks do in the last step that is simulated, and the bubble. Each
// stage has one block, and only attention takes time: so each action is one task.
func simulate(s pipe.Shape) (boxes []box, bubble float64, err error) {
	sets := []string{"device=cpu", "zero.stage=1", "model.heads=1", "model.width=" + strconv.Itoa(width), "model.context=8", "model.vocab=16", "train.micro_batch=1", "train.batch=null"}
	for key, n := range map[string]int{"parallel.ranks": s.Ranks, "parallel.pipeline": s.Ranks, "pipeline.virtual": s.Virtual, "model.layers": s.Stages(), "train.accumulate": s.Micro} {
		sets = append(sets, key+"="+strconv.Itoa(n))
	}
	c, err := setup.ThisMachine(1, 0).Draft("", append(sets, "pipeline.schedule="+string(s.Schedule)))
	if err != nil {
		return nil, 0, err
	}
	r, err := forecast.SimulateWith(setup.Planned(c), costs(c))
	if err != nil {
		return nil, 0, err
	}
	end := 0.0
	for rank, tracks := range r.Trace.Ranks() {
		order, tasks := s.Order(rank), tracks[setup.Compute].All()
		for i, t := range tasks[len(tasks)-len(order):] {
			boxes = append(boxes, box{order[i], rank, 1e-9 * float64(t.Start), 1e-9 * float64(t.End)})
			end = max(end, boxes[len(boxes)-1].to)
		}
	}
	for i := range boxes {
		boxes[i].from -= end - r.Seconds
		boxes[i].to -= end - r.Seconds
	}
	return boxes, r.Bubble, nil
}

// costs is a model in which passes through blocks take their time, and all else none. Of a
// backward pass in two parts each takes half: the second one in the gradient of one of the
// block's weights.
func costs(c *spec.Job) forecast.CostModel {
	virtual := float64(c.PipelineShape().Virtual)
	split := c.PipelineShape().Schedule == pipe.ZBH1
	return forecast.CostModel{There: 1, Wants: func(setup.QueueRole) float64 { return 0 }, Seconds: func(_ setup.QueueRole, k forecast.Kernel, _ forecast.Work) float64 {
		switch k.Op {
		case "attention":
			return forward / virtual
		case "attention gradient":
			if split {
				return backward / 2
			}
			return backward / virtual
		case "weight gradient":
			if split && k.M*k.N == 3*width*width { // of queries, keys and values
				return backward / 2
			}
		}
		return 0
	}}
}

// kinds are the colors of actions: by direction, and by which of its stages a rank works at.
var kinds = []struct {
	kind  pipe.Kind
	chunk int
	name  string
	color show.Color
}{
	{pipe.WeightGrad, 0, "backward, gradients of weights", show.Color{Light: "#8fbf7f", Dark: "#5d9450"}},
	{pipe.InputGrad, 0, "backward, gradients of inputs", show.Color{Light: "#f0a35c", Dark: "#d98434"}},
	{pipe.Backward, 1, "backward, second stage", show.Color{Light: "#f7cfa6", Dark: "#8f5a26"}},
	{pipe.Backward, 0, "backward", show.Color{Light: "#f0a35c", Dark: "#d98434"}},
	{pipe.Forward, 1, "forward, second stage", show.Color{Light: "#b9d3ef", Dark: "#2f5687"}},
	{pipe.Forward, 0, "forward", show.Color{Light: "#6ea3dc", Dark: "#4f8fd6"}},
}

// chart draws a row for each rank and a box for each action, with its micro-batch if there is room.
func chart(s pipe.Shape, boxes []box, bubble float64) *show.Chart {
	c := &show.Chart{Title: string(s.Schedule), Height: 150,
		Notes: []string{fmt.Sprintf("stages of each rank: %d; a rank is idle for %.1f %% of the step", s.Virtual, 100*bubble)},
		X:     show.Axis{Label: "time, in forward passes of a rank", Hi: (micros + ranks - 1) * (forward + backward)}, Y: show.Axis{Label: "rank", Hi: ranks}}
	for rank := range ranks {
		c.Y.Bands = append(c.Y.Bands, show.Band{From: float64(ranks - 1 - rank), To: float64(ranks - rank), Label: strconv.Itoa(rank)})
	}
	for _, kind := range kinds {
		for _, b := range boxes {
			if b.Kind != kind.kind || b.Stage/ranks != kind.chunk {
				continue
			}
			low := float64(ranks-1-b.rank) + 0.08
			high := low + 0.84
			c.Series = append(c.Series, show.Series{Name: kind.name, Color: kind.color, Fill: true,
				Points: []show.XY{{X: b.from, Y: low}, {X: b.from, Y: high}, {X: b.to, Y: high}, {X: b.to, Y: low}}})
			if b.to-b.from > 0.9 { // else there is no room
				c.Marks = append(c.Marks, show.Mark{XY: show.XY{X: (b.from + b.to) / 2, Y: low + 0.08}, Label: strconv.Itoa(b.Micro + 1)})
			}
		}
	}
	return c
}
