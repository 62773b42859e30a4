package rendezvous_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/tests/nightly"
)

// TestAskFollowsWhoWaits checks that every process learns where the chain of waits ends instead of
// the rank it waits for itself. A chain ends at ranks that wait for each other or at a process that
// does not answer.
func TestAskFollowsWhoWaits(t *testing.T) {
	nightly.Parallel(t)
	type on = map[int][]int // ranks for which each rank waits
	// Each rank is in an operation of its own; at describes it and not describes a rank that blocks
	// another.
	at := func(r int) string {
		return fmt.Sprintf("operation %d of shard (all-gather of 96 fp32, unit h.%d, step 5)", r, r)
	}
	not := func(r int, host string, waiter int) string {
		return fmt.Sprintf("rank %d (%q) has not reached %s, in which rank %d waits: its last was %s, started 3s ago", r, host, at(waiter), waiter, at(r))
	}
	for what, c := range map[string]struct {
		waits  on
		silent int // process; 0: none
		want   string
	}{
		"a chain":             {waits: on{0: {2}, 2: {4}, 6: {4}, 4: {7}}, want: not(7, "h3", 4)},
		"two ends":            {waits: on{0: {2, 5}, 2: {7}}, want: not(5, "h2", 0) + "; " + not(7, "h3", 2)},
		"a circle":            {waits: on{0: {4}, 1: {5}, 4: {6}, 6: {4}, 5: {0}}, want: `ranks 4,6 ("h2", "h3") wait for each other: rank 4 in ` + at(4) + ", rank 6 in " + at(6)},
		"a chain of three":    {waits: on{0: {2}, 2: {4}, 4: {2, 6}, 6: {1}, 1: {3}, 3: {5}}, want: not(5, "h2", 3)},
		"one is silent":       {waits: on{0: {2}, 2: {6}}, silent: 3, want: `rank 6 ("h3") has not answered, and rank 2 waits for it in ` + at(2)},
		"silent and a circle": {waits: on{0: {2}, 2: {0}, 4: {7}}, silent: 3, want: `ranks 0,2 ("h0", "h1") wait for each other: rank 0 in ` + at(0) + ", rank 2 in " + at(2) + `; rank 7 ("h3") has not answered, and rank 4 waits for it in ` + at(4)},
		"nobody":              {},
	} {
		t.Run(what, func(t *testing.T) {
			stars := joined(t, 4, nil)
			hold := make(chan struct{})
			for p, s := range stars {
				s.Answer(func() (all []collective.Wait) {
					if c.silent > 0 && p == c.silent {
						<-hold
					}
					time.Sleep(time.Duration(len(stars)-p) * 10 * time.Millisecond) // the first process answers last
					for r := 2 * p; r < 2*p+2; r++ {
						all = append(all, collective.Wait{Rank: r, For: c.waits[r], GroupName: "shard", Ago: 3 * time.Second, Operation: collective.Operation{
							Seq: r, Step: 5, Op: "all-gather", Label: fmt.Sprint("unit h.", r), Type: "fp32", Count: 96, State: collective.Started}})
					}
					return all
				})
			}
			said := make([]string, len(stars))
			var asked sync.WaitGroup
			for p, s := range stars {
				asked.Go(func() { said[p] = s.Ask() })
			}
			asked.Wait()
			for p, text := range said {
				if _, got, _ := strings.Cut(text, "root cause: "); got != c.want {
					t.Errorf("process %d is told %q, want %q", p, text, c.want)
				}
			}
			close(hold)
			closeAll(stars)
			if text := stars[1].Ask(); !strings.HasSuffix(text, c.want) {
				t.Errorf("told %q after the end", text)
			}
		})
	}
}
