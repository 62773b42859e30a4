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

// TestEveryWaitIsNeeded leaves the waits of TestWaits out, one at a time, in several
// orders of the work, and tells those that no order has missed. It is run on demand:
// which wait has which number depends on which rank issues first, and one that another
// rank's wait stands for is missed in some of these interleavings alone.
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
