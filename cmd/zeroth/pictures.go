package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/job/spec"
)

// pictures holds the files to draw a plan to; empty means none.
type pictures struct{ timeline, stages string }

func (p *pictures) addFlags(f *pflag.FlagSet) {
	f.StringVar(&p.timeline, "timeline", "", "draw a rank's memory over a step to a `file`: .html (zooms), .svg, or .csv for the numbers")
	f.StringVar(&p.stages, "stages", "", "draw a rank's memory at stages 0 to 3 side by side to an .svg `file`, and print which fit")
}

// check reports files in other formats.
func (p *pictures) check() error {
	_, timeline := timelineFormat(p.timeline)
	wrong := input.Problems{timeline}
	wrong.If(p.stages != "" && filepath.Ext(p.stages) != ".svg", "--stages %s: want a file name that ends in .svg", p.stages)
	return wrong.Err()
}

// timelineFormat returns the function that writes a plan in the format of path's extension,
// or nil if path is empty.
func timelineFormat(path string) (func(*forecast.Plan, io.Writer) error, error) {
	if path == "" {
		return nil, nil
	}
	write, ok := map[string]func(*forecast.Plan, io.Writer) error{
		".html": (*forecast.Plan).WriteHTML, ".csv": (*forecast.Plan).WriteCSV, ".svg": (*forecast.Plan).WriteSVG,
	}[filepath.Ext(path)]
	if !ok {
		return nil, input.BadInput(fmt.Errorf("--timeline %s: want a file name that ends in .html, .svg or .csv", path))
	}
	return write, nil
}

// draw writes the timeline if a file for it is set.
func (p *pictures) draw(planned *forecast.Plan) error {
	write, err := timelineFormat(p.timeline)
	if write == nil {
		return err
	}
	return writeFile(p.timeline, func(out io.Writer) error { return write(planned, out) })
}

// compare plans the job at each stage, draws the plans to file and returns lines to print.
// They include the stages that the job's other settings exclude, with the reason.
func (p *planned) compare(file string, m forecast.Machine, newPlan func(*spec.Job, forecast.Machine) (*forecast.Plan, error)) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	var s forecast.Stages
	for stage := range 4 {
		c, err := p.machine(1, 0).Draft(p.file, append(p.overlays(), fmt.Sprintf("zero.stage=%d", stage)))
		var planned *forecast.Plan
		if err == nil {
			planned, err = newPlan(c, m)
		}
		if err != nil {
			s.Refused = append(s.Refused, fmt.Sprintf("stage %d is not possible for this job: %v", stage, err))
			continue
		}
		s.Plans = append(s.Plans, planned)
	}
	if len(s.Plans) == 0 {
		return nil, input.BadInput(fmt.Errorf("--stages: nothing to draw: %s", s.Refused[0]))
	}
	return s.Lines(), writeFile(file, s.WriteSVG)
}
