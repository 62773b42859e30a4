// Command survive draws docs/survive.svg: what the ranks of a run do when a replica is lost. Each
// argument is the run folder of a run of four replicas with --trace FOLDER/trace.json, and has a file
// lost with the rank that was lost, how, and when in seconds since 1970.
//
//	go run ./docs/survive RUN... > docs/survive.svg
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"zeroth/internal/show"
	"zeroth/job/report"
)

func main() {
	var charts []*show.Chart
	for i, run := range os.Args[1:] {
		c, err := chart(run, i == len(os.Args)-2)
		if err != nil {
			fmt.Fprintln(os.Stderr, "survive:", err)
			os.Exit(1)
		}
		charts = append(charts, c)
	}
	fmt.Print(show.SVG(charts...))
}

// event is an event of a trace. Times are microseconds.
type event struct {
	Name, Cat, Ph string
	Pid           int
	Ts, Dur       float64
}

const before, ranks = 0.7, 4 // seconds before the loss, rows

var (
	micro  = show.Color{Light: "#6ea3dc", Dark: "#4f8fd6"}
	again  = show.Color{Light: "#e0a3a3", Dark: "#8c4a4a"}
	gone   = show.Color{Light: "#d0d7de", Dark: "#30363d"}
	line   = show.Color{Light: "#c0392b", Dark: "#ff7b72"}
	agreed = show.Color{Light: "#57606a", Dark: "#9da7b3"}
)

// chart draws a run around its loss.
func chart(run string, legend bool) (*show.Chart, error) {
	var t struct{ TraceEvents []event }
	l, err := report.ReadLog(filepath.Join(run, "metrics.jsonl"))
	b, wrong := os.ReadFile(filepath.Join(run, "trace.json"))
	lost, missing := os.ReadFile(filepath.Join(run, "lost"))
	for _, err := range []error{err, wrong, missing, json.Unmarshal(b, &t)} {
		if err != nil {
			return nil, err
		}
	}
	var rank int
	var how string
	var at float64
	if _, err := fmt.Sscan(string(lost), &rank, &how, &at); err != nil {
		return nil, err
	}
	change := l.Changes[0]
	var zero, from, to float64 // of the trace; the attempt that is discarded
	for _, e := range t.TraceEvents {
		switch {
		case e.Cat != "step" || e.Pid != 0:
		case e.Name == fmt.Sprint("step ", change.Step):
			zero, from = l.Steps[change.Step-1].Time-1e-6*(e.Ts+e.Dur), e.Ts+e.Dur
		case e.Name == fmt.Sprint("step ", change.Step+1):
			to = e.Ts
		}
	}
	end := change.Time - at + 1.2
	c := &show.Chart{Title: fmt.Sprintf("replica %d is %s", rank, how), Height: 150, X: show.Axis{Label: "seconds", Lo: -before, Hi: end}, Y: show.Axis{Label: "rank", Hi: ranks}}
	row := func(rank int, name string, color show.Color, from, to float64) {
		low := float64(ranks-1-rank) + 0.08
		if from, to = max(from, -before), min(to, end); from < to {
			c.Series = append(c.Series, show.Series{Name: name, Color: color, Fill: true, Points: []show.XY{{X: from, Y: low}, {X: from, Y: low + 0.84}, {X: to, Y: low + 0.84}, {X: to, Y: low}}})
		}
	}
	for r := range ranks {
		c.Y.Bands = append(c.Y.Bands, show.Band{From: float64(ranks - 1 - r), To: float64(ranks - r), Label: strconv.Itoa(r)})
	}
	seconds := func(ts float64) float64 { return zero + 1e-6*ts - at }
	name := func(ts float64) (string, show.Color) {
		if ts >= from && ts < to {
			return "a micro-batch whose gradients are discarded", again
		}
		return "a micro-batch", micro
	}
	begun, ended := map[int]float64{}, map[int]float64{}
	finish := func(pid int) {
		if b, ok := begun[pid]; ok {
			n, color := name(b)
			row(pid, n, color, seconds(b), seconds(ended[pid]))
		}
		delete(begun, pid)
	}
	for _, e := range t.TraceEvents {
		switch {
		case e.Ph != "X" || e.Name == "wait":
		case e.Cat == "compute" && e.Name == "embedding":
			finish(e.Pid)
			begun[e.Pid] = e.Ts
			fallthrough
		case e.Cat == "compute":
			ended[e.Pid] = e.Ts + e.Dur
		}
	}
	row(rank, "the lost process, of which there is no trace", gone, -before, 0)
	mark := func(name string, color show.Color, x float64) {
		c.Series = append(c.Series, show.Series{Name: name, Color: color, Width: 2, Points: []show.XY{{X: x}, {X: x, Y: ranks}}})
	}
	mark("the loss", line, 0)
	mark("the others go on", agreed, change.Time-at)
	for i := range c.Series {
		if !legend {
			c.Series[i].Name = ""
		}
	}
	return c, nil
}
