package checkpoint

import (
	"fmt"
	"slices"

	"zeroth/shard"
)

// cut selects the part of a tensor in which an extent counts its elements: ranges of one
// dimension.
type cut struct {
	First [2]int   `json:"first,omitzero"` // indices [lo, hi) of dimension 0, if that is cut as well; zero: all
	Dim   int      `json:"dim"`
	Take  [][2]int `json:"take"` // indices [lo, hi), ascending
}

// maxTake is the maximum number of ranges in a cut.
const maxTake = 16

// cutOf converts a parameter's cut to the form in extents; nil means the whole tensor.
func cutOf(c shard.Cut) *cut {
	if c.Full == nil {
		return nil
	}
	x := &cut{First: [2]int{c.First.Lo, c.First.Hi}, Dim: c.Dim}
	for _, r := range c.Take {
		x.Take = append(x.Take, [2]int{r.Lo, r.Hi})
	}
	return x
}

// same reports whether c and o select the same part.
func (c *cut) same(o *cut) bool {
	return c == o || c != nil && o != nil && c.First == o.First && c.Dim == o.Dim && slices.Equal(c.Take, o.Take)
}

// first returns the first selected index.
func (c *cut) first() int {
	if c == nil || len(c.Take) == 0 {
		return 0
	}
	return c.Take[0][0]
}

// String names the part in data files and messages; the whole tensor has the name "".
func (c *cut) String() string {
	if c == nil {
		return ""
	}
	s := "{"
	if c.First != [2]int{} {
		s += fmt.Sprintf("0:%d-%d ", c.First[0], c.First[1])
	}
	s += fmt.Sprint(c.Dim)
	for _, r := range c.Take {
		s += fmt.Sprintf(":%d-%d", r[0], r[1])
	}
	return s + "}"
}

// param returns the part of a tensor as a parameter.
func (c *cut) param(t Tensor) (shard.Param, error) {
	p := shard.Param{Name: t.Name, Shape: t.Shape}
	if c == nil {
		return p, nil
	}
	if c.Dim < 0 || c.Dim >= len(t.Shape) || len(c.Take) > maxTake {
		return p, fmt.Errorf("%v: invalid part: dimension %d, %d ranges", t, c.Dim, len(c.Take))
	}
	take, at := make([]shard.Range, len(c.Take)), 0
	for i, r := range c.Take {
		if r[0] < at || r[1] < r[0] || r[1] > t.Shape[c.Dim] {
			return p, fmt.Errorf("%v: invalid part: range [%d, %d) of %d in dimension %d, after %d", t, r[0], r[1], t.Shape[c.Dim], c.Dim, at)
		}
		take[i], at = shard.Range{Lo: r[0], Hi: r[1]}, r[1]
	}
	if c.First != [2]int{} {
		if c.Dim == 0 || c.First[0] < 0 || c.First[1] <= c.First[0] || c.First[1] > t.Shape[0] {
			return p, fmt.Errorf("%v: invalid part: range [%d, %d) of %d in dimension 0", t, c.First[0], c.First[1], t.Shape[0])
		}
		p = p.Part(0, shard.Range{Lo: c.First[0], Hi: c.First[1]})
	}
	return p.Part(c.Dim, take...), nil
}

// checkDivided checks that parts (nil: the whole) contain each element of a tensor exactly once.
func checkDivided(t Tensor, parts []*cut) error {
	taken := map[shard.Range][]shard.Range{} // indices in the parts' dimension, by those in dimension 0
	for i, c := range parts {
		switch {
		case c == nil && len(parts) > 1:
			return fmt.Errorf("it is stored both whole and in parts")
		case c == nil:
			return nil
		case c.Dim != parts[0].Dim:
			return fmt.Errorf("parts %d and 0 divide dimensions %d and %d", i, c.Dim, parts[0].Dim)
		}
		first := shard.Range{Lo: c.First[0], Hi: c.First[1]}
		all := taken[first]
		for _, r := range c.Take {
			if r[1] > r[0] {
				all = append(all, shard.Range{Lo: r[0], Hi: r[1]})
			}
		}
		taken[first] = all
	}
	var firsts []shard.Range
	for first, all := range taken {
		if first.Len() == 0 {
			first.Hi = t.Shape[0]
		}
		firsts = append(firsts, first)
		if err := checkCovering(t.Shape[parts[0].Dim], all); err != nil {
			return fmt.Errorf("parts in dimension %d: %w", parts[0].Dim, err)
		}
	}
	if err := checkCovering(t.Shape[0], firsts); err != nil {
		return fmt.Errorf("parts in dimension 0: %w", err)
	}
	return nil
}

// checkCovering checks that ranges, which it sorts, contain each of n numbers exactly once.
func checkCovering(n int, ranges []shard.Range) error {
	slices.SortFunc(ranges, func(a, b shard.Range) int { return a.Lo - b.Lo })
	return checkCovered(n, ranges)
}
