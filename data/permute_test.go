package data

import (
	"slices"
	"testing"
)

func order(seed, epoch, n uint64) []uint64 {
	p := newPermutation(seed, epoch, n)
	out := make([]uint64, n)
	for i := range out {
		out[i] = p.at(uint64(i))
	}
	return out
}

func TestPermutationIsABijection(t *testing.T) {
	sizes := []uint64{255, 256, 257, 1023, 1025, 65537}
	for n := uint64(1); n <= 200; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		for seed := range uint64(3) {
			got := order(seed, 7*seed, n)
			slices.Sort(got)
			for i, x := range got {
				if x != uint64(i) {
					t.Fatalf("n=%d seed=%d: not a permutation: position %d has %d", n, seed, i, x)
				}
			}
		}
	}
}

// TestPermutationIsPinned fixes the order: a resumed run must read the same samples in later
// versions.
func TestPermutationIsPinned(t *testing.T) {
	if got, want := order(1, 0, 10), []uint64{7, 3, 5, 1, 0, 4, 6, 8, 2, 9}; !slices.Equal(got, want) {
		t.Errorf("epoch 0: %v, want %v", got, want)
	}
	if got, want := order(1, 1, 10), []uint64{1, 4, 6, 5, 9, 3, 8, 0, 7, 2}; !slices.Equal(got, want) {
		t.Errorf("epoch 1: %v, want %v", got, want)
	}
	big := newPermutation(42, 3, 1<<40+1)
	if got := big.at(123456789); got != 265645819404 {
		t.Errorf("large: %d", got)
	}
}

func TestPermutationDependsOnSeedAndEpoch(t *testing.T) {
	base := order(1, 1, 1000)
	for _, other := range [][2]uint64{{2, 1}, {1, 2}, {1 << 32, 1}, {0, 0}} {
		same := 0
		for i, x := range order(other[0], other[1], 1000) {
			if x == base[i] {
				same++
			}
		}
		if same > 10 { // 1 is expected
			t.Errorf("seed %d epoch %d agrees with seed 1 epoch 1 at %d of 1000 positions", other[0], other[1], same)
		}
	}
}

// TestPermutationIsUniform counts, over 20000 epochs, where position i of 10 is mapped. Each of
// 100 cells expects 2000; the sum of squared deviations over 2000 has 81 degrees of freedom,
// and exceeds 150 by chance less than once in 10^5.
func TestPermutationIsUniform(t *testing.T) {
	const n, epochs = 10, 20000
	var cells [n][n]float64
	for epoch := range uint64(epochs) {
		for i, x := range order(9, epoch, n) {
			cells[i][x]++
		}
	}
	chi := 0.0
	for _, row := range cells {
		for _, c := range row {
			chi += (c - epochs/n) * (c - epochs/n) / (epochs / n)
		}
	}
	if chi > 150 {
		t.Errorf("chi-squared %.0f", chi)
	}
}

// TestPermutationHasNoTrend examines neighbours in a large epoch: the mean distance of two
// random positions in [0, n) is n/3.
func TestPermutationHasNoTrend(t *testing.T) {
	const n = 1 << 16
	sum, rising := 0.0, 0
	got := order(5, 5, n)
	for i := 1; i < n; i++ {
		d := float64(got[i]) - float64(got[i-1])
		if d > 0 {
			rising++
		}
		sum += max(d, -d)
	}
	if mean := sum / n / n; mean < 0.32 || mean > 0.347 {
		t.Errorf("mean distance of neighbours %.3f n, want 1/3", mean)
	}
	if f := float64(rising) / n; f < 0.49 || f > 0.51 {
		t.Errorf("%.3f of the steps rise", f)
	}
}

func BenchmarkWindow(b *testing.B) {
	s := Split{context: 256, stretches: layOut(1<<34, 256, 0).train, shuffle: true}
	for i := range b.N {
		s.Window(int64(i))
	}
}
