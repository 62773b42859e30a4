package watch

import (
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"zeroth/job/report"
	"zeroth/job/trace"
)

// ran100k returns the state of a run after 100,000 steps on four ranks.
func ran100k() *State {
	s := NewState("run")
	s.Begin(report.Start{Run: "r", Steps: 200_000}, "model: {}\n", true)
	for i := 1; i <= 100_000; i++ {
		s.Step(report.Step{Step: i, Loss: 2, StepSeconds: 1})
	}
	for rank := range 4 {
		var spans []trace.Stretch
		for i := range 300 {
			spans = append(spans, trace.Stretch{From: float64(i), To: float64(i) + 0.5, Task: "all-gather", Label: "unit h.3: gather"})
		}
		s.Lanes(50, rank, 0, []trace.Lane{{Queue: "compute", Spans: spans}, {Queue: "comm", Spans: spans}}, 300)
	}
	return s
}

// BenchmarkClients measures the processor time of three pages and a scraper at the end of a step.
// With one step per second, ns/op is the time per second.
func BenchmarkClients(b *testing.B) {
	s := ran100k()
	pages := make([]follower, 3)
	for i := range pages {
		pages[i].state = s
		pages[i].next()
	}
	scrape := promhttp.HandlerFor(s.hist.registry, promhttp.HandlerOpts{})
	for i := 100_001; b.Loop(); i++ {
		s.Step(report.Step{Step: i, Loss: 2, StepSeconds: 1})
		for p := range pages {
			if pages[p].next() == "" {
				b.Fatal("a page gets nothing")
			}
		}
		scrape.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil))
	}
}

// BenchmarkStep measures how long a step's report delays the training loop.
func BenchmarkStep(b *testing.B) {
	s := ran100k()
	for i := 100_001; b.Loop(); i++ {
		s.Step(report.Step{Step: i, Loss: 2, StepSeconds: 1})
	}
}
