package optim

import (
	"math"
	"testing"
)

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Schedule
		want []float64 // at steps 0, 1, ...
	}{
		{"constant", Schedule{Constant, 8, 1, 0, 3}, []float64{8, 8, 8, 8}},
		{"constant with warmup", Schedule{Constant, 8, 1, 4, 6}, []float64{2, 4, 6, 8, 8, 8, 8}},
		{"linear", Schedule{Linear, 8, 0, 0, 5}, []float64{8, 6, 4, 2, 0, 0}},
		{"linear with warmup", Schedule{Linear, 8, 2, 2, 5}, []float64{4, 8, 6, 4, 2, 2}},
		{"cosine", Schedule{Cosine, 8, 0, 0, 5}, []float64{8, 4 + 2*math.Sqrt2, 4, 4 - 2*math.Sqrt2, 0, 0}},
		{"cosine with warmup", Schedule{Cosine, 9, 1, 2, 6}, []float64{4.5, 9, 5 + 2*math.Sqrt2, 5, 5 - 2*math.Sqrt2, 1, 1}},
		{"warmup of one", Schedule{Linear, 8, 0, 1, 3}, []float64{8, 4, 0}},
		{"one step", Schedule{Cosine, 8, 1, 0, 1}, []float64{8, 1}},
		{"two steps", Schedule{Cosine, 8, 1, 0, 2}, []float64{8, 1}},
		{"all warmup", Schedule{Cosine, 8, 1, 4, 4}, []float64{2, 4, 6, 8, 1}},
		{"more warmup than run", Schedule{Linear, 8, 1, 8, 4}, []float64{1, 2, 3, 4}},
	} {
		for step, want := range c.want {
			if got := c.s.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: step %d: %g, want %g", c.name, step, got, want)
			}
		}
	}
}

func TestScheduleNeverRisesAfterWarmup(t *testing.T) {
	for _, kind := range []Kind{Constant, Linear, Cosine} {
		s := Schedule{kind, 6e-4, 6e-5, 20, 200}
		for step := 20; step < 210; step++ {
			if s.At(step) > s.At(step-1) || s.At(step) < s.MinLR {
				t.Fatalf("kind %d: %g at step %d after %g", kind, s.At(step), step, s.At(step-1))
			}
		}
	}
}
