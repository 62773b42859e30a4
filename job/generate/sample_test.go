package generate

import (
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/data"
	"zeroth/input"
	"zeroth/job/config"
)

func TestChooseLikeliest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		logits []float32
		want   int32
	}{{[]float32{1, 3, 2}, 1}, {[]float32{-5}, 0}, {[]float32{2, 7, 7, 1}, 1}, {[]float32{-1e30, -3e38, -1e29}, 2}} {
		if got := choose(c.logits, 0, 0, rng); got != c.want {
			t.Errorf("%v: %d, want %d", c.logits, got, c.want)
		}
		if got := choose(c.logits, 2, 1, rand.New(rand.NewPCG(3, 4))); got != c.want {
			t.Errorf("%v of the top 1: %d, want %d", c.logits, got, c.want)
		}
	}
	if rng.Uint64() != rand.NewPCG(1, 2).Uint64() {
		t.Error("without temperature a random number is drawn")
	}
}

// Tokens come as often as softmax(logits/temperature) over the top k says, and
// the same seed draws the same.
func TestChooseDraws(t *testing.T) {
	logits := []float32{0.5, 2, -1, 1.5, 2.5}
	for _, c := range []struct {
		temperature float64
		k           int
	}{{1, 0}, {0.5, 0}, {2, 3}, {1, 5}, {1, 9}, {0.01, 0}} {
		const n = 20000
		var counts [5]int
		rng, again := rand.New(rand.NewPCG(7, 0)), rand.New(rand.NewPCG(7, 0))
		for range n {
			id := choose(logits, c.temperature, c.k, rng)
			if id != choose(logits, c.temperature, c.k, again) {
				t.Fatal("the same seed draws differently")
			}
			counts[id]++
		}
		rank := [5]int{3, 1, 4, 2, 0} // of each token by its logit
		var want [5]float64
		sum := 0.0
		for id, l := range logits {
			if c.k == 0 || rank[id] < c.k {
				want[id] = math.Exp(float64(l) / c.temperature)
				sum += want[id]
			}
		}
		for id := range want {
			p := want[id] / sum
			if got := float64(counts[id]) / n; math.Abs(got-p) > 4*math.Sqrt(p*(1-p)/n)+1e-9 { // 4 standard deviations
				t.Errorf("temperature %v, top %d: token %d at %.4f, want %.4f", c.temperature, c.k, id, got, p)
			}
		}
	}
}

func TestEncodePrompt(t *testing.T) {
	if ids, err := config.Encode(data.Bytes{}, "az", 123); err != nil || len(ids) != 2 || ids[1] != 'z' {
		t.Errorf("%v %v", ids, err)
	}
	for prompt, want := range map[string]string{
		"":    "an empty prompt: give at least one token to go on from",
		"a{b": `the prompt has the token "{", number 123, but the model knows only the first 123`,
	} {
		if _, err := config.Encode(data.Bytes{}, prompt, 123); err == nil || err.Error() != want || !input.IsInput(err) {
			t.Errorf("%q: %v, want %s", prompt, err, want)
		}
	}
}
