//go:build cuda && mutation

package cuda_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/device/cuda/fake"
)

// TestEveryWaitIsNeeded omits the waits of TestWaits one at a time, in several orders of the work,
// and reports those that no order has detected. It is run on demand: which wait has which number
// depends on the rank that issues first, and a wait for which another rank's substitutes is only
// detected in some interleavings.
func TestEveryWaitIsNeeded(t *testing.T) {
	fake.Only(t)
	count := filepath.Join(t.TempDir(), "count")
	fake.Again(t, "TestWaits", "FAKECUDA_MODE=lazy:1", "FAKECUDA_COUNT="+count)
	raw, err := os.ReadFile(count)
	if err != nil {
		t.Fatal(err)
	}
	var waits int
	lines := strings.Fields(string(raw))
	if _, err := fmt.Sscan(lines[len(lines)-1], &waits); err != nil || waits == 0 {
		t.Fatalf("%q waits: %v", raw, err)
	}
	const orders = 100
	var survivors []int
	for n := 1; n <= waits; n++ {
		seen := false
		for seed := 1; seed <= orders && !seen; seed++ {
			_, err := fake.Output("TestWaits", fmt.Sprintf("FAKECUDA_MODE=lazy:%d", seed), fmt.Sprintf("FAKECUDA_DROP_WAIT=%d", n))
			seen = err != nil
		}
		if !seen {
			survivors = append(survivors, n)
		}
	}
	t.Logf("%d waits, each left out in up to %d orders: %d were missed, not %v", waits, orders, waits-len(survivors), survivors)
	if len(survivors) > 0 {
		t.Errorf("waits %v are not missed in %d orders", survivors, orders)
	}
}
