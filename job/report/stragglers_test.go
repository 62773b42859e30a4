package report

import (
	"strings"
	"testing"
	"time"

	"zeroth/collective"
)

// step is one of four ranks of which one is behind by a part of a second.
func step(slow int, lag time.Duration) []collective.Pace {
	paces := make([]collective.Pace, 4)
	for r := range paces {
		paces[r] = collective.Pace{Before: time.Millisecond, Waited: 100*time.Millisecond + lag, Took: time.Second + lag}
	}
	paces[slow].Waited -= lag
	return paces
}

func TestBehind(t *testing.T) {
	for _, lag := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond} {
		b := BehindOf(step(2, lag))
		if b.Lag != lag || b.Part() != lag.Seconds() || lag > 0 && b.Rank != 2 {
			t.Errorf("%v: %+v, %g", lag, b, b.Part())
		}
	}
	two := BehindOf([]collective.Pace{{Waited: 30, Took: 100}, {Waited: 10, Took: 100}})
	if two.Rank != 1 || two.Lag != 20 || two.Part() != 0.25 {
		t.Errorf("%+v", two)
	}
	for _, none := range [][]collective.Pace{nil, {{Took: 5}}, make([]collective.Pace, 3)} {
		if b := BehindOf(none); b != (Behind{}) || b.Part() != 0 {
			t.Errorf("%v: %+v", none, b)
		}
	}
}

// A rank is named once a spell: after 20 steps in a row, and again only when it has
// kept up for 20 between.
func TestStragglers(t *testing.T) {
	var s Stragglers
	at := 0
	add := func(steps, slow int, lag time.Duration) (named []int) {
		for range steps {
			at++
			if line := s.Add(BehindOf(step(slow, lag))); line != "" {
				named = append(named, at)
				if !strings.HasPrefix(line, "rank 2 has been 25 % behind for 20 steps: in the last one of 1.25s the others waited 250ms longer than it") {
					t.Error(line)
				}
			}
		}
		return named
	}
	const late, little = 250 * time.Millisecond, 190 * time.Millisecond
	for _, c := range []struct {
		steps, slow int
		lag         time.Duration
		want        int // step at which it is named; 0: it is not
	}{
		{100, 2, little, 0}, // to 100
		{19, 2, late, 0},    // 119
		{1, 2, little, 0},   // 120
		{19, 2, late, 0},    // 139
		{1, 1, late, 0},     // 140: another
		{50, 2, late, 160},  // 190: one spell
		{10, 2, little, 0},  // 200
		{100, 2, late, 0},   // 300: of the same spell
		{20, 2, little, 0},  // 320: over
		{100, 2, late, 340}, // 420
	} {
		got := add(c.steps, c.slow, c.lag)
		if c.want == 0 && got != nil || c.want > 0 && (len(got) != 1 || got[0] != c.want) {
			t.Errorf("%+v: named at %v", c, got)
		}
	}
}
