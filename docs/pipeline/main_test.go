package main

import (
	"math"
	"os"
	"testing"

	"zeroth/pipe"
)

// TestDrawing checks that the drawing in the docs equals that of the simulation.
func TestDrawing(t *testing.T) {
	want, err := drawing()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("../pipeline.svg"); err != nil || string(got) != want {
		t.Errorf("docs/pipeline.svg is another (%v): go run ./docs/pipeline > docs/pipeline.svg", err)
	}
}

// TestBoxes checks that boxes are as wide as their actions take, follow each other on a rank, and
// begin when their inputs are complete.
func TestBoxes(t *testing.T) {
	for _, s := range shapes {
		boxes, _, err := simulate(s)
		if err != nil {
			t.Fatal(err)
		}
		ends, free := map[pipe.Action]float64{}, map[int]float64{}
		for _, b := range boxes {
			ends[b.Action] = b.to
		}
		each := 2
		if s.Schedule == pipe.ZBH1 {
			each = 3
		}
		if len(ends) != len(boxes) || len(boxes) != each*s.Stages()*s.Micro {
			t.Errorf("%s: %d boxes for %d actions of %d", s.Schedule, len(boxes), len(ends), each*s.Stages()*s.Micro)
		}
		for _, b := range boxes {
			wide := map[pipe.Kind]float64{pipe.Forward: forward, pipe.Backward: backward, pipe.InputGrad: backward / 2, pipe.WeightGrad: backward / 2}[b.Kind] / float64(s.Virtual)
			if math.Abs(b.to-b.from-wide) > 1e-6 || b.from < free[b.rank]-1e-6 || b.Stage%s.Ranks != b.rank {
				t.Errorf("%s: rank %d: %v from %v to %v, the one before until %v", s.Schedule, b.rank, b.Action, b.from, b.to, free[b.rank])
			}
			free[b.rank] = b.to
			if need, some := s.Needs(b.Action); some && b.from < ends[need]-1e-6 {
				t.Errorf("%s: rank %d: %v at %v, before %v is done", s.Schedule, b.rank, b.Action, b.from, need)
			}
		}
	}
}
