package rendezvous_test

import (
	"sync"
	"testing"
	"time"
)

// TestDumpAsksAll checks that a request from any process reaches all, and that simultaneous
// requests from all processes, as after a launcher's signal, are not multiplied.
func TestDumpAsksAll(t *testing.T) {
	for who := range 3 {
		stars := joined(t, 3, nil)
		asked, over := make([]chan struct{}, len(stars)), make(chan struct{})
		var all sync.WaitGroup
		for p, s := range stars {
			asked[p] = make(chan struct{}, 100)
			all.Go(func() {
				for {
					select {
					case <-s.Dumps():
						asked[p] <- struct{}{}
					case <-over:
						return
					}
				}
			})
		}
		begin := time.Now()
		for range 10 {
			stars[who].Dump()
		}
		for p := range stars {
			select {
			case <-asked[p]:
			case <-time.After(20 * time.Second):
				t.Errorf("process %d was not asked", p)
			}
		}
		closeAll(stars)
		close(over)
		all.Wait()
		if n, most := len(asked[0]), int(time.Since(begin)/time.Second)+1; n > most {
			t.Errorf("%d requests were passed on in %v", n+1, time.Since(begin))
		}
	}
}
