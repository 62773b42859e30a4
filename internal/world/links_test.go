package world_test

import (
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/internal/world"
	"zeroth/shard"
)

// TestLinksAreMeasured checks that links are measured if a choice depends on them, that all
// processes get the same numbers, and that groups work afterwards. Otherwise the defaults are
// used without a notice.
func TestLinksAreMeasured(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range []struct {
		transport string
		hosts     []int
		per       int
		near, far bool // measured
	}{
		{"auto", []int{0, 0, 2, 2}, 1, true, true},
		{"tcp", []int{0, 1, 1, 0, 1}, 1, true, true},
		{"tcp", []int{0, 1}, 2, false, true},
		{"tcp", []int{0, 1, 2}, 1, false, false}, // one rank per host: no choice
		{"auto", []int{0, 0, 0}, 1, false, false},
	} {
		var mu sync.Mutex
		told := 0
		worlds, _ := enterWith(t, len(c.hosts), c.per, c.transport, func(cfg *world.Config) {
			cfg.Note = func(text string) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(text, "links, measured in ") && strings.Contains(text, " between hosts; gathers go ") {
					told++
				}
			}
		})
		for _, w := range worlds {
			w.PutOn(c.hosts)
		}
		n := len(c.hosts) * c.per
		got := connect(worlds, shard.Mesh{Shard: n, Replicate: 1})
		var all sync.WaitGroup
		for p, e := range got {
			if e.err != nil {
				t.Fatal(e.err)
			}
			l, u := worlds[p].Links(), collective.Usual
			if l != worlds[0].Links() || c.near != (l.Near != u.Near) || c.far != (l.Far != u.Far) || !(l.Near > 0 && l.Far > 0 && l.NearDelay > 0 && l.FarDelay > 0) {
				t.Errorf("%+v: process %d has links %+v, process 0 %+v", c, p, l, worlds[0].Links())
			}
			for i, r := range e.ranks {
				for _, g := range []collective.Group{r.World, e.saves[i]} {
					all.Go(func() {
						if s, err := sum(g, p*c.per+i); err != nil || s != float32(n*(n-1)/2) {
							t.Errorf("%+v: rank %d: sum %g (%v)", c, p*c.per+i, s, err)
						}
					})
				}
			}
		}
		all.Wait()
		closeAll(worlds)
		if want := len(worlds); told != want && c.far || told != 0 && !c.far {
			t.Errorf("%+v: told %d times", c, told)
		}
	}
}
