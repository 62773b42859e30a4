package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/plan"
	"zeroth/job/setup"
)

// pictures are the files that a plan is drawn into; empty is none.
type pictures struct{ timeline, stages string }

func (p *pictures) flags(f *pflag.FlagSet) {
	f.StringVar(&p.timeline, "timeline", "", "draw a rank's memory over a step into a `file`: .html, which zooms, .svg, or .csv for the numbers")
	f.StringVar(&p.stages, "stages", "", "draw a rank's memory at the stages 0 to 3, side by side, into a `file`: .svg; and say which fit")
}

// check refuses files of other formats.
func (p *pictures) check() error {
	_, timeline := timelineFormat(p.timeline)
	var stages error
	if p.stages != "" && filepath.Ext(p.stages) != ".svg" {
		stages = fmt.Errorf("--stages %s: want a file that ends in .svg", p.stages)
	}
	if err := errors.Join(timeline, stages); err != nil {
		return input.BadInput(err)
	}
	return nil
}

// timelineFormat writes a plan in the format of a file's extension; nil for no
// file.
func timelineFormat(path string) (func(*plan.Plan, io.Writer) error, error) {
	if path == "" {
		return nil, nil
	}
	write, ok := map[string]func(*plan.Plan, io.Writer) error{
		".html": (*plan.Plan).WriteHTML, ".csv": (*plan.Plan).WriteCSV, ".svg": (*plan.Plan).WriteSVG,
	}[filepath.Ext(path)]
	if !ok {
		return nil, input.BadInput(fmt.Errorf("--timeline %s: want a file that ends in .html, .svg or .csv", path))
	}
	return write, nil
}

// draw writes the timeline, if it is asked for.
func (p *pictures) draw(planned *plan.Plan) error {
	write, err := timelineFormat(p.timeline)
	if write == nil {
		return err
	}
	return writeFile(p.timeline, func(out io.Writer) error { return write(planned, out) })
}

// compare plans the job at each stage, draws that, and returns what to print. A
// stage that the job's other settings exclude is told with the reason.
func (p *planned) compare(file string, m plan.Machine, of func(*config.Config, plan.Machine) (*plan.Plan, error)) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	var s plan.Stages
	for stage := range 4 {
		c, err := setup.Here(1, 0).Draft(p.file, append(p.overlays(), fmt.Sprintf("zero.stage=%d", stage)))
		var at *plan.Plan
		if err == nil {
			at, err = of(c, m)
		}
		if err != nil {
			s.Refused = append(s.Refused, fmt.Sprintf("stage %d does not go with this job: %v", stage, err))
			continue
		}
		s.Plans = append(s.Plans, at)
	}
	if len(s.Plans) == 0 {
		return nil, input.BadInput(fmt.Errorf("--stages: there is none to draw: %s", s.Refused[0]))
	}
	return s.Lines(), writeFile(file, s.WriteSVG)
}
