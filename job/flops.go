package job

import (
	"context"
	"fmt"
	"strings"

	"zeroth/config"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
)

// countFlops determines the model's operations in a step and the peak rate of the devices, on
// process 0. A job too large for counting trains without MFU.
func (r *run) countFlops(context.Context) error {
	if r.self.Process > 0 {
		return nil
	}
	var h *forecast.Hardware
	if name := r.c.Report.Machine; name != "" {
		var err error
		if h, err = forecast.OpenHardware(name); err != nil {
			return config.Problems{spec.ProblemOf(r.c, "report.machine", strings.TrimPrefix(err.Error(), "--machine "), "")}
		}
	} else if r.c.On() == "cuda" {
		h = forecast.PresetOf(setup.Where(r.job))
	}
	if h != nil {
		r.speed.PeakFlops = h.PeakOf(r.c.Precision)
	}
	flops, err := forecast.ModelFlops(setup.Planned(r.c))
	if err != nil {
		r.observers.Note(fmt.Sprintf("no MFU: %v", err))
		return nil
	}
	r.speed.ModelFlops = flops
	return nil
}

// begins describes this start of the run.
func (r *run) begins(h report.Header) report.Start {
	s := h.Start
	s.Step, s.Time, s.Version, s.Mesh = r.start.Step, report.Now(), state.Version(), h.Dimensions()
	s.ModelFlops, s.PeakFlops = r.speed.ModelFlops, r.speed.PeakFlops
	return s
}
