package data

import (
	"fmt"
	"math"
)

// mixture is how often windows of groups are drawn, by weights. An epoch of N windows
// has N samples. Group g with weight w has N·w/Σw of them, up to one:
// their places are drawn anew in every epoch, and in each of them comes what is next of
// the group's own windows, which it goes through in epochs of its own. So of the windows
// of a group none has come twice more often than another, and a sample is a function of
// the seed and its number.
type mixture []component

// component is a group: windows [first, first+windows) of the split, and of the places
// of an epoch, before they are permuted, [at, at+samples).
type component struct{ first, windows, at, samples int64 }

// wrongWeights are those that are no weights.
func (d Documents) wrongWeights() (errs []error) {
	if n := len(d.Weights); n > 0 && n != len(d.Files) {
		errs = append(errs, problem("documents", "%d weights of %d patterns; give each one, or none", n, len(d.Files)))
	}
	for i, w := range d.Weights {
		if !(w > 0 && w <= math.MaxFloat32) {
			errs = append(errs, problem(fmt.Sprintf("documents[%d]", i), "a weight of %v; want a positive number", w))
		}
	}
	return errs
}

// newMixture is the components of groups that end behind so many windows.
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
			return nil, problem(key, "%s: no document of it is left to train on, beside those that patterns before it name; leave it out", d.Files[i])
		} else if c.samples == 0 {
			return nil, problem(key, "%s: its weight, %g of %g, is less than one of %d samples; raise it or leave the file out", d.Files[i], w, all, total)
		}
	}
	return m, nil
}

// window is what comes in an epoch at a place before it was permuted.
func (m mixture) window(seed uint64, epoch, place int64) int64 {
	for i, c := range m {
		if place < c.at+c.samples {
			n := epoch*c.samples + place - c.at
			return c.first + permuted(mix(seed+uint64(i+1)*golden), n/c.windows, c.windows, n%c.windows)
		}
	}
	panic(fmt.Sprintf("data: place %d of a mixture of %d components", place, len(m)))
}

// notes are what becomes of the weights.
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
