package generate

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

// TestGeneratorCache checks that cached tokens give bit-identical logits to computing
// all of them, for a text that grows, changes, and exceeds the context.
func TestGeneratorCache(t *testing.T) {
	llama := hf.Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 4, Width: 32, Context: 24, Vocab: 256, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 64, Theta: 1e4}}
	long := llama // with other rotary positions from the tenth on
	long.Scaling = device.RopeScaling{Kind: device.RopeLong, Context: 9, Factors: []float64{1, 1, 1, 1}, Beyond: []float64{1, 2, 3, 4}}
	for _, m := range []hf.Model{llama, long, {Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 16, Context: 24, Vocab: 256, Eps: 1e-5}}} {
		folder := spectest.ModelFolder(t, m)
		open := func(texts int) *Generator { return opened(t, folder, m, device.F32, texts) }
		g := open(1)
		text := []int32("to be, or not to be, that is the question")
		other := append([]int32("to be or what"), text...)
		for _, c := range []struct {
			ids  []int32
			news int // positions to compute
		}{{text[:1], 1}, {text[:2], 1}, {text[:9], 7}, {text[:10], 1}, {text[:10], 1}, {text[:5], 1}, {other[:8], 3}, {other[:20], 12},
			{text[:23], 18}, {text[:24], 1}, {text[:25], 24}, {text[:26], 24}, {other, 24}} {
			want, before := next(t, open(1), c.ids)[0], g.computed
			if m.Scaling.Kind == device.RopeLong && len(c.ids) > 9 && !g.texts[0].long || len(c.ids) <= 9 && g.texts[0].long {
				c.news = len(c.ids)
			}
			got := next(t, g, c.ids)[0]
			if news := g.computed - before; !slices.Equal(got, want) || news != c.news {
				t.Fatalf("%s: after %d tokens: computed %d, not %d; logits %v, computed whole %v", m.Family, len(c.ids), news, c.news, got[:4], want[:4])
			}
		}
	}
}

func opened(t *testing.T, folder string, m hf.Model, dtype device.DType, texts int) *Generator {
	t.Helper()
	g, err := newGenerator(&Source{Folder: folder}, m, setup.CPU{}, dtype, texts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// TestGeneratorOfSeveralTexts checks that concurrent texts that grow, end and are replaced have
// bit-identical logits to each text alone, and that a prefix cached for another text is not
// recomputed.
func TestGeneratorOfSeveralTexts(t *testing.T) {
	nightly.Long(t)
	const texts, context = 11, 24
	llama := hf.Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 4, Width: 64, Context: context, Vocab: 256, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 96, Theta: 1e4}}
	gpt2 := hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 2, Heads: 2, Width: 32, Context: context, Vocab: 256, Eps: 1e-5}}
	long := llama
	long.Scaling = device.RopeScaling{Kind: device.RopeLong, Context: 9, Factors: []float64{1, 1, 1, 1, 1, 1, 1, 1}, Beyond: []float64{1, 2, 3, 4, 5, 6, 7, 8}}
	for _, m := range []hf.Model{llama, gpt2, long} {
		folder := spectest.ModelFolder(t, m)
		for _, dtype := range []device.DType{device.F32, device.BF16} {
			rng := rand.New(rand.NewPCG(1, uint64(dtype)))
			all, one := opened(t, folder, m, dtype, texts), opened(t, folder, m, dtype, 1)
			now := make([][]int32, texts)
			for step := range 60 {
				for i, ids := range now {
					switch {
					case ids == nil || rng.IntN(20) == 0: // a new text, with a prefix of another
						ids = slices.Clone(now[rng.IntN(texts)])
						ids = append(ids[:rng.IntN(len(ids)+1)], []int32("to be, or not")[:1+rng.IntN(12)]...)
					case rng.IntN(30) == 0:
						ids = nil
					default:
						ids = append(ids, int32(rng.IntN(256)))
					}
					now[i] = ids
				}
				for i, got := range next(t, all, now...) {
					if (got == nil) != (now[i] == nil) {
						t.Fatalf("text %d of %d tokens has %d logits", i, len(now[i]), len(got))
					}
					if got != nil && !slices.Equal(got, next(t, one, now[i])[0]) {
						t.Fatalf("%s %v: step %d, text %d of %d tokens: other logits than alone", m.Family, dtype, step, i, len(now[i]))
					}
				}
			}
		}
		g := opened(t, folder, m, device.F32, 3)
		same := []int32("what they have in common")[:20]
		next(t, g, append(same[:20:20], 1), append(same[:20:20], 2), append(same[:20:20], 3, 4))
		if g.computed != 21+1+2 {
			t.Errorf("%s: %d positions were computed", m.Family, g.computed)
		}
	}
}

func next(t *testing.T, g *Generator, texts ...[]int32) [][]float32 {
	t.Helper()
	logits, err := g.Next(texts)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// TestGeneratorMemoryLimit checks that more texts than fit into memory are rejected
// before any memory is allocated.
func TestGeneratorMemoryLimit(t *testing.T) {
	m := hf.Model{Family: "llama", Shape: nn.Shape{Layers: 2, Heads: 4, Width: 64, Context: 24, Vocab: 256, Eps: 1e-5}, Llama: nn.Llama{KV: 2, FFN: 96, Theta: 1e4}}
	folder := spectest.ModelFolder(t, m)
	m.Context = hf.Most // 1 GiB per text
	_, err := newGenerator(&Source{Folder: folder}, m, setup.CPU{}, device.F32, 1024)
	if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "1024 texts of up to 1048576 tokens another 1.0 TiB, but only ") {
		t.Errorf("%v", err)
	}
}

// TestSampleRefusesNonNumbers checks that a parameter that is not finite is named, and that
// nothing is written.
func TestSampleRefusesNonNumbers(t *testing.T) {
	m := hf.Model{Family: "gpt2", Shape: nn.Shape{Layers: 1, Heads: 2, Width: 16, Context: 24, Vocab: 256, Eps: 1e-5}}
	folder := spectest.ModelFolder(t, m)
	path := filepath.Join(folder, "model.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(raw[len(raw)-4:], "\x00\x00\xc0\x7f")
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = Sample(t.Context(), Options{Run: folder, Tokenizer: "bytes", Prompt: "a", Tokens: 2}, &out)
	if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), " is NaN: a model with such a parameter gives no usable output") || out.Len() > 0 {
		t.Errorf("%v, written %q", err, out.String())
	}
}
