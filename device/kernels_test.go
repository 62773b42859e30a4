package device

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestRopeFrequencies compares with the frequencies of transformers 5.23's rotary embedding
// (_compute_llama3_parameters for the scaled ones) with the settings of Llama-3.1: theta 500000,
// head width 128, factor 8 from 8192 positions.
func TestRopeFrequencies(t *testing.T) {
	plain := Rope{D: 128, Theta: 500000}
	scaled := plain
	scaled.Scaling = RopeScaling{Kind: RopeLlama3, Factor: 8, Low: 1, High: 4, Context: 8192}
	for _, c := range ropeFrequencies {
		for _, got := range []struct {
			r    Rope
			want float64
		}{{plain, c.plain}, {scaled, c.scaled}} {
			if f := got.r.Freq(c.j); math.Abs(f-got.want) > 1e-6*got.want {
				t.Errorf("pair %d, %+v: %.9g, want %.9g", c.j, got.r.Scaling, f, got.want)
			}
		}
	}
}

// pair, its frequency, and that after scaling: unchanged, in between, divided
var ropeFrequencies = []struct {
	j             int
	plain, scaled float64
}{
	{0, 1, 1},
	{1, 0.814617217, 0.814617217},
	{28, 0.00321144611, 0.00321144611},
	{29, 0.00261609908, 0.00216657063},
	{30, 0.0021311196, 0.00137189368},
	{31, 0.00173604675, 0.00085675146},
	{32, 0.00141421345, 0.000524846022},
	{33, 0.00115204265, 0.00031269365},
	{34, 0.000938473851, 0.000178507791},
	{35, 0.000764496974, 9.55621217e-05},
	{36, 0.000622772437, 7.78465546e-05},
	{48, 5.31829573e-05, 6.64786967e-06},
	{63, 2.4551407e-06, 3.06892588e-07},
}

// TestPairs counts pairs one by one.
func TestPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		a := Attn{B: 2, T: 1 + rng.IntN(20), H: 3, KV: 1, D: 1, Past: rng.IntN(20), Window: rng.IntN(25)}
		want := 0
		for t := range a.T {
			want += a.Past + t + 1 - a.First(t, nil)
		}
		if got := a.Pairs(); got != int64(6*want) {
			t.Fatalf("%+v: %d pairs, want %d", a, got, 6*want)
		}
	}
}
