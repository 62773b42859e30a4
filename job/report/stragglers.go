package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/collective"
)

// Behind describes how far the slowest rank of a step was behind: it waits least, and the
// others wait for it. The zero value means that nothing was measured.
type Behind struct {
	Rank   int           // rank that waited least
	Who    string        // what it belongs to, whose delays count together: "replica 2"; empty: only the rank
	Lag    time.Duration // its wait, subtracted from the others' median
	Waited time.Duration // median wait of the others
	Before time.Duration // from the start of the step to the rank's first operation
	Others time.Duration // the same for the others, median
	Took   time.Duration // duration of the step
}

// BehindOf finds the slowest rank of a step from the paces of all ranks. It returns zero for
// one rank, or if nothing was measured.
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

// Spreads returns how long a step took and how long ranks waited in it; zero for one rank, or
// if nothing was measured.
func Spreads(paces []collective.Pace) (took, waited Spread) {
	if len(paces) < 2 || paces[0].Took == 0 {
		return
	}
	took, waited = Spread{Least: RankValue{Seconds: math.Inf(1)}}, Spread{Least: RankValue{Seconds: math.Inf(1)}}
	for r, p := range paces {
		took.add(RankValue{p.Took.Seconds(), r})
		waited.add(RankValue{p.Waited.Seconds(), r})
	}
	return took, waited
}

func (s *Spread) add(x RankValue) {
	if x.Seconds < s.Least.Seconds {
		s.Least = x
	}
	if x.Seconds > s.Most.Seconds {
		s.Most = x
	}
}

// median returns the lower median of all ranks but one.
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

// Part returns how much longer the rank takes for a step than the others would without it: 0.2
// means 20 %.
func (b Behind) Part() float64 {
	if b.Took <= b.Lag {
		return 0
	}
	return float64(b.Lag) / float64(b.Took-b.Lag)
}

func (b Behind) late(part float64) bool { return b.Lag >= leastLag && b.Part() >= part }

// who names the rank, or what it belongs to.
func (b Behind) who() string { return cmp.Or(b.Who, fmt.Sprint("rank ", b.Rank)) }

// A rank is reported if it prolonged lateSteps of at most the last stragglerSteps steps by a factor and leastLag, all of
// these together by that factor, and it caused stragglerShare of the lost time. So a rank that is slow in bursts is
// reported, and a single long pause is not.
const (
	Straggles      = 1.2 // the usual Factor
	stragglerShare = 0.75
	lateSteps      = 20
	stragglerSteps = 100
	leastLag       = 2 * time.Millisecond // less is the noise of a scheduler
)

// Stragglers reports a slow rank once, until it has kept up for stragglerSteps. All ranks of a run report the same.
type Stragglers struct {
	Factor float64  // by which a rank has to prolong steps
	last   []Behind // the last steps, at most stragglerSteps
	named  string   // of the spell
	kept   int      // steps it has kept up
}

// Add adds a step, and returns a line to print if a rank is to be reported.
func (s *Stragglers) Add(b Behind) string {
	if b.Took == 0 { // not measured
		return ""
	}
	if len(s.last) == stragglerSteps {
		s.last = s.last[:copy(s.last, s.last[1:])]
	}
	s.last = append(s.last, b)
	late, who := b.late(s.Factor-1), b.who()
	if late && who == s.named {
		s.kept = 0
	} else if s.kept++; s.kept == stragglerSteps {
		s.named = ""
	}
	if !late || who == s.named {
		return ""
	}
	of, part := s.slow(who)
	if of == 0 {
		return ""
	}
	s.named, s.kept = who, 0
	steps := fmt.Sprintf("for %d steps", lateSteps)
	if of > lateSteps {
		steps = fmt.Sprintf("in %d of the last %d steps", lateSteps, of)
	}
	its := "it"
	if b.Who != "" {
		its = fmt.Sprint("its rank ", b.Rank)
	}
	return fmt.Sprintf("%s has delayed the others by %.0f %% %s: in the last step, of %v, they waited %v longer than %s did; it reached its first operation after %v, the others after %v",
		who, 100*part, steps, short(b.Took), short(b.Lag), its, short(b.Before), short(b.Others))
}

// slow returns the smallest number of last steps in which a rank was late often enough to be named,
// 0 if there is none, and the fraction by which it prolonged them.
func (s *Stragglers) slow(who string) (of int, part float64) {
	var rest, lost, its time.Duration // of the steps without delay; delays of all ranks; the rank's
	late := 0
	for _, b := range slices.Backward(s.last) {
		of++
		rest += b.Took - b.Lag
		lost += b.Lag
		if b.who() == who {
			its += b.Lag
			if b.late(s.Factor - 1) {
				late++
			}
		}
		if part = float64(its) / float64(rest); late >= lateSteps && part >= s.Factor-1 && float64(its) >= stragglerShare*float64(lost) {
			return of, part
		}
	}
	return 0, 0
}

// short returns a time with few digits.
func short(d time.Duration) time.Duration {
	for unit := time.Microsecond; unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}
