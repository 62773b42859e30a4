package job

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"zeroth/data"
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
	if ids, err := encode(data.Bytes{}, "az", 123); err != nil || len(ids) != 2 || ids[1] != 'z' {
		t.Errorf("%v %v", ids, err)
	}
	for prompt, want := range map[string]string{
		"":    "an empty prompt: give at least one token to go on from",
		"a{b": `the prompt has the token "{", number 123, but the model knows only the first 123`,
	} {
		if _, err := encode(data.Bytes{}, prompt, 123); err == nil || err.Error() != want || !IsInput(err) {
			t.Errorf("%q: %v, want %s", prompt, err, want)
		}
	}
}

// trained makes a run of a few steps in the folder "run".
func trained(t *testing.T, sets ...string) {
	t.Helper()
	inTinyFolder(t)
	if err := Train(t.Context(), mustLoad(t, append([]string{"train.steps=3"}, sets...)...), "run", &heard{}); err != nil {
		t.Fatal(err)
	}
}

func sampled(t *testing.T, o SampleOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := Sample(t.Context(), o, &b); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return b.String()
}

// A sample is a function of the model, the prompt and the seed. A prompt beyond
// the context counts with its end, and text goes on beyond the context.
func TestSample(t *testing.T) {
	defer goleak.VerifyNone(t)
	trained(t)
	o := SampleOptions{Run: "run", Prompt: "line 1", Tokens: 30, Temperature: 1, Seed: 5}
	want := sampled(t, o)
	if !strings.HasPrefix(want, "line 1") || len(want) != len("line 1")+30 {
		t.Errorf("%d bytes: %q", len(want), want)
	}
	if got := sampled(t, o); got != want {
		t.Errorf("again: %q, first %q", got, want)
	}
	o.Run = "run/model"
	if got := sampled(t, o); got != want {
		t.Errorf("from the model's folder: %q, from the run's %q", got, want)
	}
	o.Seed = 6
	if sampled(t, o) == want {
		t.Error("another seed writes the same")
	}
	long, short := o, o
	long.Prompt, short.Prompt = "many bytes before line 1 of 2", "e 1 of 2" // a context is 8
	if got, want := strings.TrimPrefix(sampled(t, long), long.Prompt), strings.TrimPrefix(sampled(t, short), short.Prompt); got != want {
		t.Errorf("after a long prompt %q, after its last 8 bytes %q", got, want)
	}
}

// What is kept of the tokens before gives the same logits, to the bit, as
// computing all of them: over a text that grows, by one and by more, that
// changes, and that no longer fits into the context.
func TestGeneratorKeepsWhatItKnows(t *testing.T) {
	for _, set := range [][]string{nil, {"model.family=llama", "model.heads=4", "model.width=32", "model.kv_heads=2"}} {
		trained(t, append(set, "model.context=24")...)
		m, err := ReadModelConfig("run/model")
		if err != nil {
			t.Fatal(err)
		}
		open := func() *generator {
			g, err := newGenerator("run/model", m)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(g.close)
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
			want, err := open().next(c.ids)
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.next(c.ids)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) || g.batch.T != c.news {
				t.Fatalf("%v: after %d tokens: computed %d, not %d; logits %v, computed whole %v", set, len(c.ids), g.batch.T, c.news, got[:4], want[:4])
			}
		}
	}
}

// A vocabulary that is larger than the tokenizer's has tokens that mean nothing.
func TestSampleOnlyTokens(t *testing.T) {
	trained(t, "model.vocab=5000")
	for seed := range uint64(3) {
		text := sampled(t, SampleOptions{Run: "run", Prompt: "\n", Tokens: 20, Temperature: 100, Seed: seed})
		if len(text) != 21 {
			t.Errorf("20 tokens are %d bytes: %q", len(text)-1, text)
		}
	}
}

func TestSampleStops(t *testing.T) {
	trained(t)
	ctx, stop := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	w := writerFunc(func(b []byte) (int, error) {
		if string(b) != "line" {
			stop(reason) // at the first token
		}
		return len(b), nil
	})
	if err := Sample(ctx, SampleOptions{Run: "run", Prompt: "line", Tokens: 1 << 40}, w); err != reason {
		t.Errorf("got %v, want %v", err, reason)
	}
	full := errors.New("full")
	for after := range 2 {
		w := writerFunc(func(b []byte) (int, error) {
			if after--; after < 0 {
				return 0, full
			}
			return len(b), nil
		})
		if err := Sample(t.Context(), SampleOptions{Run: "run", Prompt: "line", Tokens: 3}, w); err != full {
			t.Errorf("got %v, want %v", err, full)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestSampleOfNothing(t *testing.T) {
	trained(t)
	if err := os.Remove("run/model/model.safetensors"); err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]string{
		"gone": "--run gone: gone/config.json cannot be read: no such file or directory; want the folder of a run that has written its model, or a Hugging Face folder",
		"run":  "safetensors: run/model: has neither model.safetensors nor model.safetensors.index.json",
	} {
		err := Sample(t.Context(), SampleOptions{Run: run, Prompt: "a", Tokens: 1}, io.Discard)
		if err == nil || err.Error() != want || !IsInput(err) {
			t.Errorf("%s: %v\nwant %s", run, err, want)
		}
	}
}
