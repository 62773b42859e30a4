package zero

import (
	"testing"

	"zeroth/collective"
	"zeroth/nn"
	"zeroth/pipe"
	"zeroth/shard"
)

// TestMostInFlight checks that the most micro-batches of a step need the most places in a pipeline, so that there are
// enough for any number of them when replicas are lost.
func TestMostInFlight(t *testing.T) {
	for _, s := range []pipe.Schedule{pipe.GPipe, pipe.OneF1B, pipe.ZBH1} {
		for ranks := range 6 {
			m := shard.Mesh{Pipeline: 1 + ranks}
			for rank := range m.Pipeline {
				places := func(micro, most int) []int {
					c := &Config{Mesh: m, Groups: collective.DryWorld(m, rank), Model: &nn.Model{}, Micro: micro, Most: most}
					c.Pipeline = Pipeline{Schedule: s, Begins: make([]int, m.Pipeline)}
					p, err := newPipeline(c)
					if err != nil {
						t.Fatal(err)
					}
					return []int{p.inputs.most, p.streams.most, p.flights[0].most}
				}
				const most = 30
				enough := places(1, most)
				for micro := range most {
					for i, n := range places(1+micro, 0) {
						if n > enough[i] {
							t.Errorf("%s, rank %d of %d: %d micro-batches need %v places, %d need %v", s, rank, m.Pipeline, 1+micro, places(1+micro, 0), most, enough)
						}
					}
				}
			}
		}
	}
}
