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
		{"constant", Schedule{Constant, 8, 1, 0, 3, 0, 0}, []float64{8, 8, 8, 8}},
		{"constant with warmup", Schedule{Constant, 8, 1, 4, 6, 0, 0}, []float64{2, 4, 6, 8, 8, 8, 8}},
		{"linear", Schedule{Linear, 8, 0, 0, 5, 0, 0}, []float64{8, 6, 4, 2, 0, 0}},
		{"linear with warmup", Schedule{Linear, 8, 2, 2, 5, 0, 0}, []float64{4, 8, 6, 4, 2, 2}},
		{"cosine", Schedule{Cosine, 8, 0, 0, 5, 0, 0}, []float64{8, 4 + 2*math.Sqrt2, 4, 4 - 2*math.Sqrt2, 0, 0}},
		{"cosine with warmup", Schedule{Cosine, 9, 1, 2, 6, 0, 0}, []float64{4.5, 9, 5 + 2*math.Sqrt2, 5, 5 - 2*math.Sqrt2, 1, 1}},
		{"warmup of one", Schedule{Linear, 8, 0, 1, 3, 0, 0}, []float64{8, 4, 0}},
		{"one step", Schedule{Cosine, 8, 1, 0, 1, 0, 0}, []float64{8, 1}},
		{"two steps", Schedule{Cosine, 8, 1, 0, 2, 0, 0}, []float64{8, 1}},
		{"all warmup", Schedule{Cosine, 8, 1, 4, 4, 0, 0}, []float64{2, 4, 6, 8, 1}},
		{"wsd", Schedule{WSD, 8, 2, 2, 8, 3, 0}, []float64{4, 8, 8, 8, 8, 6, 4, 2, 2}},
		{"wsd that only falls", Schedule{WSD, 8, 0, 0, 5, 9, 0}, []float64{8, 6, 4, 2, 0}},
		{"wsd that ends at once", Schedule{WSD, 8, 1, 0, 3, 1, 0}, []float64{8, 8, 1}},
		{"inverse square root", Schedule{InverseSqrt, 6, 0, 3, 9, 0, 0}, []float64{2, 4, 6, 6 / math.Sqrt(4.0/3), 6 / math.Sqrt(5.0/3), 6 / math.Sqrt(2)}},
		{"inverse square root without warmup", Schedule{InverseSqrt, 6, 0, 0, 2, 0, 0}, []float64{6, 6 / math.Sqrt(1.0001), 6 / math.Sqrt(1.0002)}},
		{"linear of transformers", Schedule{Linear, 8, 0, 2, 6, 0, 1}, []float64{0, 4, 8, 6, 4, 2}},
		{"linear of transformers without warmup", Schedule{Linear, 8, 0, 0, 4, 0, 1}, []float64{8, 6, 4, 2}},
		{"cosine of transformers", Schedule{Cosine, 8, 0, 1, 5, 0, 1}, []float64{0, 8, 4 + 2*math.Sqrt2, 4, 4 - 2*math.Sqrt2}},
		{"inverse square root of transformers", Schedule{InverseSqrt, 6, 0, 3, 9, 0, 1}, []float64{0, 2, 4, 6, 6 / math.Sqrt(4.0/3)}},
		{"WarmupLR of DeepSpeed", Schedule{Constant, 8, 8, 4, 9, 0, 2}, []float64{0, 0, 2, 4, 6, 8, 8}},
		{"WarmupDecayLR of DeepSpeed", Schedule{Linear, 8, 0, 2, 6, 0, 2}, []float64{0, 0, 4, 8, 6, 4}},
		{"a lag without warmup", Schedule{Constant, 8, 8, 0, 9, 0, 2}, []float64{0, 8, 8}},
		{"more warmup than run", Schedule{Linear, 8, 1, 8, 4, 0, 0}, []float64{1, 2, 3, 4}},
	} {
		for step, want := range c.want {
			if got := c.s.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: step %d: %g, want %g", c.name, step, got, want)
			}
		}
	}
}

func TestScheduleNeverRisesAfterWarmup(t *testing.T) {
	for _, kind := range []Kind{Constant, Linear, Cosine, WSD, InverseSqrt} {
		s := Schedule{kind, 6e-4, 6e-5, 20, 200, 30, 0}
		for step := 20; step < 210; step++ {
			if s.At(step) > s.At(step-1) || s.At(step) < s.MinLR {
				t.Fatalf("kind %d: %g at step %d after %g", kind, s.At(step), step, s.At(step-1))
			}
		}
	}
}
