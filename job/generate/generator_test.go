package generate

import (
	"slices"
	"testing"

	"zeroth/job/build"
	"zeroth/job/config/configtest"
	"zeroth/job/hf"
)

// What is kept of the tokens before gives the same logits, to the bit, as
// computing all of them: over a text that grows, by one and by more, that
// changes, and that no longer fits into the context.
func TestGeneratorKeepsWhatItKnows(t *testing.T) {
	llama := hf.Model{Family: "llama", Layers: 2, Heads: 4, KVHeads: 2, Width: 32, FFN: 64, Context: 24, Vocab: 256, NormEps: 1e-5, Theta: 1e4}
	for _, m := range []hf.Model{llama, {Family: "gpt2", Layers: 2, Heads: 2, Width: 16, Context: 24, Vocab: 256, NormEps: 1e-5}} {
		folder := configtest.ModelFolder(t, m)
		open := func() *Generator {
			g, err := newGenerator(&source{folder: folder}, m, build.CPU{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(g.Close)
			return g
		}
		g := open()
		text := []int32("to be, or not to be, that is the question")
		other := append([]int32("to be or what"), text...)
		for _, c := range []struct {
			ids  []int32
			news int // positions that have to be computed
		}{{text[:1], 1}, {text[:2], 1}, {text[:9], 7}, {text[:10], 1}, {text[:10], 1}, {text[:5], 1}, {other[:8], 3}, {other[:20], 12},
			{text[:23], 18}, {text[:24], 1}, {text[:25], 24}, {text[:26], 24}, {other, 24}} {
			want, err := open().Next(c.ids)
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.Next(c.ids)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) || g.Batch.T != c.news {
				t.Fatalf("%s: after %d tokens: computed %d, not %d; logits %v, computed whole %v", m.Family, len(c.ids), g.Batch.T, c.news, got[:4], want[:4])
			}
		}
	}
}
