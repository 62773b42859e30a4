package checkpoint

import (
	"fmt"
	"maps"
	"slices"

	"zeroth/internal/input/jsonread"
	"zeroth/shard"
)

// cut selects the part of a tensor in which an extent counts its elements: ranges of one
// dimension.
type cut struct {
	Dim  int      `json:"dim"`
	Take [][2]int `json:"take"` // indices [lo, hi), ascending
}

// maxTake is the maximum number of ranges in a cut.
const maxTake = 16

var cutKeys = []string{"dim", "take"}

// cutOf converts a parameter's cut to the form in extents; nil means the whole tensor.
func cutOf(c shard.Cut) *cut {
	if c.Full == nil {
		return nil
	}
	x := &cut{Dim: c.Dim}
	for _, r := range c.Take {
		x.Take = append(x.Take, [2]int{r.Lo, r.Hi})
	}
	return x
}

// same reports whether c and o select the same part.
func (c *cut) same(o *cut) bool {
	return c == o || c != nil && o != nil && c.Dim == o.Dim && slices.Equal(c.Take, o.Take)
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
	s := fmt.Sprintf("{%d", c.Dim)
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
	return p.Part(c.Dim, take...), nil
}

// readCut reads a cut from a part file.
func readCut(r *jsonread.Reader) (*cut, error) {
	c := &cut{}
	err := r.Members(cutKeys, func(name string) error {
		if name == "dim" {
			return jsonread.Whole(r, &c.Dim)
		}
		return r.Array(func(i int) error {
			if i == maxTake {
				return fmt.Errorf("a part of more than %d ranges", maxTake)
			}
			c.Take = append(c.Take, [2]int{})
			n := 0
			err := r.Array(func(j int) error {
				if n++; j > 1 {
					return fmt.Errorf("a range of more than two numbers")
				}
				return jsonread.Whole(r, &c.Take[i][j])
			})
			if err == nil && n != 2 {
				err = fmt.Errorf("a range of %d numbers", n)
			}
			return err
		})
	})
	return c, err
}

// checkDivided checks that parts (nil: the whole) contain each element of a tensor exactly once.
func checkDivided(t Tensor, parts []*cut) error {
	var all []shard.Range
	for i, c := range parts {
		switch {
		case c == nil && len(parts) > 1:
			return fmt.Errorf("it is stored both whole and in parts")
		case c == nil:
			return nil
		case c.Dim != parts[0].Dim:
			return fmt.Errorf("parts %d and 0 divide dimensions %d and %d", i, c.Dim, parts[0].Dim)
		}
		for _, r := range c.Take {
			if r[1] > r[0] {
				all = append(all, shard.Range{Lo: r[0], Hi: r[1]})
			}
		}
	}
	slices.SortFunc(all, func(a, b shard.Range) int { return a.Lo - b.Lo })
	if err := checkCovered(t.Shape[parts[0].Dim], all); err != nil {
		return fmt.Errorf("parts in dimension %d: %w", parts[0].Dim, err)
	}
	return nil
}

// checkWhole checks that the ranges of all parts, which are keyed by their cuts' names, contain
// every element of a tensor exactly once.
func checkWhole(t Tensor, parts map[string]*partRanges) error {
	if len(parts) == 0 {
		return checkCovered(t.Numel(), nil)
	}
	var cuts []*cut
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		x := parts[name]
		p, err := x.cut.param(t)
		if err != nil {
			return err
		}
		slices.SortFunc(x.ranges, func(a, b shard.Range) int { return a.Lo - b.Lo })
		if err := checkCovered(p.Numel(), x.ranges); err != nil {
			if name != "" {
				err = fmt.Errorf("part %s: %w", name, err)
			}
			return err
		}
		cuts = append(cuts, x.cut)
	}
	return checkDivided(t, cuts)
}

// partRanges are the ranges of elements stored for a part of a tensor.
type partRanges struct {
	cut    *cut
	ranges []shard.Range
}
