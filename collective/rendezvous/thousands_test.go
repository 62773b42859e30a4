//go:build unix

package rendezvous_test

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/tests/nightly"
)

// TestThousands makes 200 processes, in a nightly run 2,000, join and agree on one machine.
func TestThousands(t *testing.T) {
	nightly.Long(t)
	processes := nightly.Of(201, 2001)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(3*processes) {
		t.Skipf("%d descriptors are too few", limit.Cur)
	}
	begin := time.Now()
	stars := joined(t, processes, func(_ int, c *rendezvous.Config) {
		c.Heartbeat, c.Wait, c.DeadAfter = 5*time.Second, 2*time.Minute, time.Minute
	})
	came := time.Since(begin)
	if err := errors.Join(agree(t, stars, func(int) []rendezvous.Fact { return []rendezvous.Fact{{Name: "job", Value: "aa"}} })...); err != nil {
		t.Error(err)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	t.Logf("%d processes came in %v, agreed after %v; %d MB in use", processes, came, time.Since(begin), m.HeapAlloc>>20)
	if m.HeapAlloc > 2<<30 { // each of them holds the whole table, here in one process
		t.Errorf("%d MB in use", m.HeapAlloc>>20)
	}
	closeAll(stars)
}
