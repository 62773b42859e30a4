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

// Together runs f on every rank concurrently and returns the error that caused the others.
//
// A rank that fails closes its groups, which ends the others at their next collective. A rank that
// does not end within the job's parallel.timeout, for example because it is stuck in a system
// call, or for which NCCL hangs, is abandoned. The error names it, and its Close does nothing,
// because its goroutine may still use its memory.
func Together(ranks []*Rank, f func(*Rank) error) error { return TogetherUntil(nil, ranks, f) }

// TogetherUntil is Together for ranks with peers in other processes. When ended is closed, the
// ranks have the same time to end as after a failure.
func TogetherUntil(ended <-chan struct{}, ranks []*Rank, f func(*Rank) error) error {
	type end struct {
		rank int
		err  error
	}
	ends := make(chan end, len(ranks)) // buffered so that an abandoned rank can end, too
	for i, r := range ranks {
		go func() {
			err := f(r)
			if err != nil {
				_ = r.Groups.Close() // so that no rank waits for this one; err is the error to report
			}
			ends <- end{i, err}
		}()
	}
	errs, done := make([]error, len(ranks)), make([]bool, len(ranks))
	var grace <-chan time.Time // starts at the first failure
	begin := func() {
		if grace == nil {
			grace = time.After(ranks[0].patience())
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for left := len(ranks); left > 0; {
		select {
		case <-tick.C:
			for _, r := range ranks {
				if err := r.hangs(); err != nil {
					return leaveBehind(ranks, errs, done, err)
				}
			}
		case e := <-ends:
			left--
			if errs[e.rank], done[e.rank] = e.err, true; e.err != nil {
				begin()
			}
		case <-ended:
			ended = nil
			begin()
		case <-grace:
			return leaveBehind(ranks, errs, done, nil)
		}
	}
	return explains(errs)
}

// explains returns the error closest to the cause.
func explains(errs []error) error {
	return slices.MinFunc(errs, func(a, b error) int { return cmp.Compare(effect(a), effect(b)) })
}

// leaveBehind abandons the ranks that have not ended, because one of them hangs or all have had their time.
func leaveBehind(ranks []*Rank, errs []error, ended []bool, hangs error) error {
	var names []string
	for i, r := range ranks {
		if !ended[i] {
			r.Lost.Store(true)
			names = append(names, strconv.Itoa(r.Rank))
		}
	}
	who := "rank " + strings.Join(names, ",") + " has"
	if len(names) > 1 {
		who = "ranks " + strings.Join(names, ",") + " have"
	}
	why := explains(errs)
	if why == nil {
		why = fmt.Errorf("other processes ended: %w", collective.ErrClosed)
	}
	if hangs != nil {
		return fmt.Errorf("%w, after: %w", hangs, why)
	}
	return fmt.Errorf("%w; %s still not ended after %v: not waiting any longer", why, who, ranks[0].patience())
}

// patience returns how long to wait for other ranks to end after a failure.
func (r *Rank) patience() time.Duration { return cmp.Or(r.timeout, collective.DefaultDeadline) }

// effect returns how far an error is from its cause, in this order: a rank's own failure, a missed
// deadline, the loss of a peer, a closed group.
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
