package report

import (
	"strings"
	"testing"
	"time"

	"zeroth/collective"
)

// step returns the times of four ranks in a step in which one rank, slow, lags behind by lag.
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

// TestStragglers checks that a rank is named after 20 late steps, consecutive or in bursts, and
// again only after 100 steps without delay. Ranks that are slow in turn, that pause a few times,
// or that cost the others little are not named.
func TestStragglers(t *testing.T) {
	const late, little = 250 * time.Millisecond, 190 * time.Millisecond
	type spell struct {
		steps, slow int
		lag         time.Duration
	}
	for name, c := range map[string]struct {
		once  []spell
		again []spell        // many times
		named map[int]string // by step
	}{
		"in a row":       {once: []spell{{100, 2, little}, {100, 2, late}}, named: map[int]string{120: "25 % for 20 steps"}},
		"a little":       {once: []spell{{1000, 2, little}}},
		"interrupted":    {once: []spell{{19, 2, late}, {1, 1, late}, {50, 2, late}}, named: map[int]string{21: "24 % in 20 of the last 21 steps"}},
		"two spells":     {once: []spell{{50, 2, late}, {99, 2, 0}, {50, 2, late}, {100, 2, 0}, {50, 2, late}}, named: map[int]string{20: "25 % for 20 steps", 319: "25 % for 20 steps"}},
		"bursts":         {again: []spell{{7, 2, 0}, {3, 2, time.Second}}, named: map[int]string{69: "32 % in 20 of the last 62 steps"}},
		"bursts, cheap":  {again: []spell{{7, 2, 0}, {3, 2, late}}},
		"pauses":         {again: []spell{{30, 2, 0}, {1, 2, time.Minute}}},
		"two by turns":   {again: []spell{{3, 1, time.Second}, {3, 2, time.Second}}},
		"two, one worse": {again: []spell{{1, 1, time.Second}, {9, 2, time.Second}}, named: map[int]string{23: "91 % in 20 of the last 22 steps"}},
	} {
		s := Stragglers{Factor: Straggles}
		named, at := map[int]string{}, 0
		add := func(all []spell) {
			for _, x := range all {
				for range x.steps {
					at++
					if line := s.Add(BehindOf(step(x.slow, x.lag))); line != "" {
						named[at] = line
					}
				}
			}
		}
		add(c.once)
		for range 100 {
			add(c.again)
		}
		right := len(named) == len(c.named)
		for at, want := range c.named {
			right = right && strings.HasPrefix(named[at], "rank 2 has delayed the others by "+want+": in the last step, of ")
		}
		if !right {
			t.Errorf("%s: named %v, want %v", name, named, c.named)
		}
	}
}

// TestStragglersOfShortSteps checks that no rank is named for a delay that a scheduler may cause, whatever part of
// a short step it is.
func TestStragglersOfShortSteps(t *testing.T) {
	s := Stragglers{Factor: Straggles}
	for range 1000 {
		if line := s.Add(Behind{Rank: 1, Lag: 50 * time.Microsecond, Took: 76 * time.Microsecond}); line != "" {
			t.Fatal(line)
		}
	}
}
