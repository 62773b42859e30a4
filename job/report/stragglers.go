package report

import (
	"fmt"
	"slices"
	"time"

	"zeroth/collective"
)

// Behind is how far one rank of a step was behind the others: who is slow waits
// least, and the others wait for it. The zero value is of a step that nobody
// measured.
type Behind struct {
	Rank   int           // that waited least
	Lag    time.Duration // how much less than the others, by their median
	Waited time.Duration // the median of the others
	Before time.Duration // from the step's begin to the rank's first operation
	Others time.Duration // likewise of the others, by their median
	Took   time.Duration // the step
}

// BehindOf finds the slowest rank of a step by the paces of all; there is none of
// one rank, nor where nothing was measured.
func BehindOf(paces []collective.Pace) (b Behind) {
	if len(paces) < 2 || paces[0].Took == 0 {
		return b
	}
	for r, p := range paces {
		if p.Waited < paces[b.Rank].Waited {
			b.Rank = r
		}
	}
	own := paces[b.Rank]
	b.Waited = median(paces, b.Rank, func(p collective.Pace) time.Duration { return p.Waited })
	b.Others = median(paces, b.Rank, func(p collective.Pace) time.Duration { return p.Before })
	b.Lag, b.Before, b.Took = b.Waited-own.Waited, own.Before, own.Took
	return b
}

// median is the lower one of all ranks but one.
func median(paces []collective.Pace, but int, of func(collective.Pace) time.Duration) time.Duration {
	var all []time.Duration
	for r, p := range paces {
		if r != but {
			all = append(all, of(p))
		}
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// Part is how much longer the rank takes for a step than the others would without
// it: 0.2 is 20 % behind.
func (b Behind) Part() float64 {
	if b.Took <= b.Lag {
		return 0
	}
	return float64(b.Lag) / float64(b.Took-b.Lag)
}

const (
	// stragglerPart and stragglerSteps say when a rank is named: it is that far
	// behind, in that many steps in a row.
	stragglerPart  = 0.2
	stragglerSteps = 20
)

// Stragglers names a rank that stays behind, once a spell, which ends when the rank
// has kept up for as long.
type Stragglers struct {
	rank, steps int // that is behind, in so many steps in a row
	named, kept int // rank + 1 of the spell's; steps it has kept up
}

// Add takes a step, and is a line for people when the rank is to be named.
func (s *Stragglers) Add(b Behind) string {
	late := b.Part() >= stragglerPart
	if late && b.Rank == s.rank {
		s.steps++
	} else {
		s.rank, s.steps = b.Rank, 0
		if late {
			s.steps = 1
		}
	}
	if s.named > 0 && (!late || b.Rank != s.named-1) {
		if s.kept++; s.kept == stragglerSteps {
			s.named = 0
		}
	} else {
		s.kept = 0
	}
	if s.steps < stragglerSteps || s.named == s.rank+1 {
		return ""
	}
	s.named, s.kept = s.rank+1, 0
	return fmt.Sprintf("rank %d has been %.0f %% behind for %d steps: in the last one of %v the others waited %v longer than it, and it took %v to its first operation, the others %v",
		b.Rank, 100*b.Part(), stragglerSteps, short(b.Took), short(b.Lag), short(b.Before), short(b.Others))
}

// short is a time with few digits.
func short(d time.Duration) time.Duration {
	for unit := time.Microsecond; unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}
