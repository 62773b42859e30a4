package show

import "testing"

func TestSizesInThousands(t *testing.T) {
	for n, want := range map[int64][2]string{0: {"0 B", "0 B"}, 999: {"999 B", "999 B"}, 1000: {"1.0 kB", "1.00 kB"}, 999_949: {"999.9 kB", "999.95 kB"},
		999_950: {"1.0 MB", "999.95 kB"}, 999_996: {"1.0 MB", "1.00 MB"}, 1_234_000_000: {"1.2 GB", "1.23 GB"}, 5e15: {"5000.0 TB", "5000.00 TB"}, -2500: {"-2.5 kB", "-2.50 kB"}} {
		if got := [2]string{BriefSize(n), DecimalSize(n)}; got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
