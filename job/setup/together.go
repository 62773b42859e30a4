package setup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zeroth/collective"
)

// Together runs f on every rank at once and returns the error that explains
// those of the others.
//
// A rank that fails closes its groups, and the others then end at their next
// collective. One that does not within the job's parallel.timeout, because it
// is stuck in a system call, say, is left behind: the error names it, and its
// Close does nothing, for its goroutine may still be in its memory.
func Together(ranks []*Rank, f func(*Rank) error) error { return TogetherUntil(nil, ranks, f) }

// TogetherUntil is Together for ranks of which others are elsewhere: when those have
// ended, the ones here have as long as when one of them has failed.
func TogetherUntil(ended <-chan struct{}, ranks []*Rank, f func(*Rank) error) error {
	type end struct {
		rank int
		err  error
	}
	ends := make(chan end, len(ranks)) // so that also a rank that was left behind can end
	for i, r := range ranks {
		go func() {
			err := f(r)
			if err != nil {
				_ = r.Groups.Close() // so that no other rank waits for this one; err is the error to report
			}
			ends <- end{i, err}
		}()
	}
	errs, done := make([]error, len(ranks)), make([]bool, len(ranks))
	var grace <-chan time.Time // begins with the first failure
	begin := func() {
		if grace == nil {
			grace = time.After(ranks[0].patience())
		}
	}
	for left := len(ranks); left > 0; {
		select {
		case e := <-ends:
			left--
			if errs[e.rank], done[e.rank] = e.err, true; e.err != nil {
				begin()
			}
		case <-ended:
			ended = nil
			begin()
		case <-grace:
			return leaveBehind(ranks, errs, done)
		}
	}
	return explains(errs)
}

// explains is the error that is least a consequence of others.
func explains(errs []error) error {
	return slices.MinFunc(errs, func(a, b error) int { return cmp.Compare(effect(a), effect(b)) })
}

// leaveBehind gives up the ranks that have not ended.
func leaveBehind(ranks []*Rank, errs []error, ended []bool) error {
	var names []string
	for i, r := range ranks {
		if !ended[i] {
			r.Lost.Store(true)
			names = append(names, strconv.Itoa(r.Rank))
		}
	}
	who := "rank " + names[0] + " has"
	if len(names) > 1 {
		who = "ranks " + strings.Join(names, ",") + " have"
	}
	why := explains(errs)
	if why == nil {
		why = fmt.Errorf("other processes have ended: %w", collective.ErrClosed)
	}
	return fmt.Errorf("%w; %s not answered for %v since: left behind", why, who, ranks[0].patience())
}

// patience is how long the rank waits for the others to end when it has failed.
func (r *Rank) patience() time.Duration { return cmp.Or(r.timeout, collective.DefaultDeadline) }

// effect is how far an error is from its cause: a rank's own failure, the
// deadline that a rank did not keep, the loss of a peer, a closed group.
func effect(err error) int {
	var late collective.ErrLate
	var lost collective.ErrPeerLost
	switch {
	case err == nil:
		return 4
	case !errors.Is(err, collective.ErrClosed):
		return 0
	case errors.As(err, &late):
		return 1
	case errors.As(err, &lost):
		return 2
	}
	return 3
}
