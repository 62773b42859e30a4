package rendezvous_test

import (
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/collective/rendezvous"
)

// TestAskFollowsWhoWaits: whoever asks is told where the chain ends, not whom it waits for
// itself; ranks that wait for each other are one end, and so is a process that does not
// answer.
func TestAskFollowsWhoWaits(t *testing.T) {
	defer goleak.VerifyNone(t)
	type on = map[int][]int // for whom a rank waits
	for what, c := range map[string]struct {
		waits  on
		silent int // process; 0: none
		want   string
	}{
		"a chain":             {waits: on{0: {2}, 2: {4}, 6: {4}, 4: {7}}, want: `rank 7 ("h3") waits for nobody and has not come; its last was the call of 7`},
		"two ends":            {waits: on{0: {2, 5}, 2: {7}}, want: `ranks 5,7 ("h2", "h3") wait for nobody and have not come`},
		"an operation":        {waits: on{0: {4}, 1: {5}, 4: {6}, 6: {4}, 5: {0}}, want: `ranks 4,6 ("h2", "h3") wait for each other in the call of 4`},
		"a chain of three":    {waits: on{0: {2}, 2: {4}, 4: {2, 6}, 6: {1}, 1: {3}, 3: {5}}, want: `rank 5 ("h2") waits for nobody and has not come; its last was the call of 5`},
		"one is silent":       {waits: on{0: {2}, 2: {6}}, silent: 3, want: `rank 6 ("h3") does not answer`},
		"silent and a circle": {waits: on{0: {2}, 2: {0}, 4: {7}}, silent: 3, want: `rank 7 ("h3") does not answer; ranks 0,2 ("h0", "h1") wait for each other in the call of 0`},
		"nobody":              {},
	} {
		t.Run(what, func(t *testing.T) {
			stars := joined(t, 4, nil)
			hold := make(chan struct{})
			for p, s := range stars {
				s.Answer(func() (all []rendezvous.Waiting) {
					if c.silent > 0 && p == c.silent {
						<-hold
					}
					for r := 2 * p; r < 2*p+2; r++ {
						all = append(all, rendezvous.Waiting{Rank: r, For: c.waits[r], In: "call of " + string(rune('0'+r))})
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
				if _, got, _ := strings.Cut(text, "in the end all wait for this: "); got != c.want {
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
