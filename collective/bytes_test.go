package collective_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/device/cpu"
)

func TestGatherBytes(t *testing.T) {
	for size := 1; size <= 5; size++ {
		var wg sync.WaitGroup
		for r, g := range collective.NewLocal(size) {
			wg.Go(func() {
				dev := cpu.NewHost(1)
				defer dev.Close()
				q := dev.NewQueue("comm")
				defer q.Close()
				for round := range 3 {
					say := func(r int) string { return strings.Repeat(fmt.Sprint(round, r), (r*7+round)%5) }
					all, err := collective.GatherBytes(g, q, []byte(say(r)))
					if err != nil {
						t.Error(err)
						return
					}
					for i, b := range all {
						if string(b) != say(i) {
							t.Errorf("rank %d of %d hears %q from %d, want %q", r, size, b, i, say(i))
						}
					}
				}
			})
		}
		wg.Wait()
	}
}
