package job

import (
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
)

// TestUnplannedEventsAreReported checks that a run that differs from its plan is reported and
// continues.
func TestUnplannedEventsAreReported(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	c := spectest.MustLoad(t)
	p, err := forecast.NewPlan(c, forecast.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[string][]*forecast.Moment{
		"":                      p.Timeline,
		"unplanned event":       append(p.Timeline[:len(p.Timeline):len(p.Timeline)], p.Timeline[0]),
		"ended before its":      p.Timeline[:len(p.Timeline)-1],
		"event 2 of step 1 was": append([]*forecast.Moment{p.Timeline[0], p.Timeline[0]}, p.Timeline[2:]...),
	} {
		o := &Observation{got: forecast.Measured{Step: 1, Timeline: got}}
		differs, err := o.compare(c)
		if err != nil || !strings.Contains(differs, want) || (want == "") != (differs == "") || (want == "") != (o.Plan.Measured != nil) {
			t.Errorf("%q, %v; want %q", differs, err, want)
		}
	}
}
