package data

import (
	"fmt"
	"math"
)

// mixture determines by weights how often windows of each group are drawn. An epoch of N windows
// has N samples. A group with weight w has N·w/Σw of them, rounded to within one: their positions
// are drawn anew in every epoch, and at each of them comes the group's next window, in the order of
// the group's own epochs. So within a group the windows are drawn equally often, to within one, and
// a sample is a function of the seed and its number.
type mixture []component

// component is a group: windows [first, first+windows) of the split, and positions
// [at, at+samples) of an epoch before permuting.
type component struct{ first, windows, at, samples int64 }

// wrongWeights returns the problems of the weights.
func (d Documents) wrongWeights() (errs []error) {
	if n := len(d.Weights); n > 0 && n != len(d.Files) {
		errs = append(errs, problem("documents", "%d weights for %d patterns; give every pattern a weight, or none", n, len(d.Files)))
	}
	for i, w := range d.Weights {
		if !(w > 0 && w <= math.MaxFloat32) {
			errs = append(errs, problem(fmt.Sprintf("documents[%d]", i), "a weight of %v; want a positive number", w))
		}
	}
	return errs
}

// newMixture returns the components of groups, given the number of windows before the end of
// each.
func newMixture(d Documents, ends []int32) (mixture, error) {
	m, total := mixture(make([]component, len(ends))), int64(ends[len(ends)-1])
	all, sum := 0.0, 0.0
	for _, w := range d.Weights {
		all += w
	}
	for i, w := range d.Weights {
		c, lo := &m[i], int64(math.Round(sum/all*float64(total)))
		sum += w
		c.at, c.samples = lo, int64(math.Round(sum/all*float64(total)))-lo
		if i > 0 {
			c.first = int64(ends[i-1])
		}
		c.windows = int64(ends[i]) - c.first
		if key := fmt.Sprintf("documents[%d]", i); c.windows == 0 {
			return nil, problem(key, "%s: no documents to train on, other than those of earlier patterns or for validation; remove it", d.Files[i])
		} else if c.samples == 0 {
			return nil, problem(key, "%s: its weight, %g of %g, is less than one of %d samples; raise the weight or remove the pattern", d.Files[i], w, all, total)
		}
	}
	return m, nil
}

// window returns the window at a position of an epoch before permuting.
func (m mixture) window(seed uint64, epoch, position int64) int64 {
	for i, c := range m {
		if position < c.at+c.samples {
			n := epoch*c.samples + position - c.at
			return c.first + permuted(mix(seed+uint64(i+1)*golden), n/c.windows, c.windows, n%c.windows)
		}
	}
	panic(fmt.Sprintf("data: position %d in a mixture of %d components", position, len(m)))
}

// notes describes the effect of the weights.
func (m mixture) notes(d Documents, s *sequences) (notes []string) {
	last := m[len(m)-1]
	total, all, learned := last.at+last.samples, 0.0, make([]float64, len(m))
	for i, c := range m {
		sum := 0
		for w := range c.windows {
			sum += s.learnedIn(c.first + w)
		}
		learned[i] = float64(sum) / float64(c.windows) * float64(c.samples)
		all += learned[i]
	}
	for i, c := range m {
		notes = append(notes, fmt.Sprintf("%s: weight %g: %.1f %% of the samples, %.1f %% of the learned tokens; in an epoch of %d samples it is read %.2f times",
			d.Files[i], d.Weights[i], 100*float64(c.samples)/float64(total), 100*learned[i]/all, total, float64(c.samples)/float64(c.windows)))
	}
	return notes
}
