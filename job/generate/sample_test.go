package generate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job/spec"
)

func TestChooseLikeliest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		logits []float32
		want   int32
	}{{[]float32{1, 3, 2}, 1}, {[]float32{-5}, 0}, {[]float32{2, 7, 7, 1}, 1}, {[]float32{-1e30, -3e38, -1e29}, 2}} {
		if got := (&chooser{rng: rng}).choose(c.logits); got != c.want {
			t.Errorf("%v: %d, want %d", c.logits, got, c.want)
		}
		if got := (&chooser{Rules: Rules{Temperature: 2, TopK: 1}, rng: rand.New(rand.NewPCG(3, 4))}).choose(c.logits); got != c.want {
			t.Errorf("%v of the top 1: %d, want %d", c.logits, got, c.want)
		}
	}
	if rng.Uint64() != rand.NewPCG(1, 2).Uint64() {
		t.Error("without temperature a random number is drawn")
	}
}

// TestChooseDraws checks that the frequencies of tokens follow softmax(logits/temperature) over
// the tokens that the rules allow, and that equal seeds draw equal tokens.
func TestChooseDraws(t *testing.T) {
	logits := []float32{0.5, 2, -1, 1.5, 2.5}
	for _, c := range []struct {
		temperature float64
		k           int
		p           float64
	}{{1, 0, 0}, {0.5, 0, 1}, {2, 3, 1}, {1, 5, 0}, {1, 9, 1}, {0.01, 0, 0}, {1, 0, 0.5}, {2, 0, 0.6}, {1, 0, 0.01}, {1, 3, 0.7}, {2, 3, 0.95}, {1, 0, 0.99}} {
		const n = 20000
		var counts [5]int
		one := &chooser{Rules: Rules{Temperature: c.temperature, TopK: c.k, TopP: c.p}, rng: rand.New(rand.NewPCG(7, 0))}
		again := &chooser{Rules: Rules{Temperature: c.temperature, TopK: c.k, TopP: c.p}, rng: rand.New(rand.NewPCG(7, 0))}
		for range n {
			id := one.choose(logits)
			if id != again.choose(logits) {
				t.Fatal("the same seed draws differently")
			}
			counts[id]++
		}
		want := left(logits, c.temperature, c.k, c.p)
		for id, p := range want {
			if got := float64(counts[id]) / n; math.Abs(got-p) > 4*math.Sqrt(p*(1-p)/n)+1e-9 { // 4 standard deviations
				t.Errorf("temperature %v, top %d, top %v: token %d at %.4f, want %.4f", c.temperature, c.k, c.p, id, got, p)
			}
		}
	}
}

// left returns the probabilities that remain after transformers' TemperatureLogitsWarper,
// TopKLogitsWarper and TopPLogitsWarper, in this order. The last one removes the least likely
// tokens with a total probability of at most 1 - p.
func left(logits []float32, temperature float64, k int, p float64) []float64 {
	probs := make([]float64, len(logits))
	order := make([]int, len(logits)) // least likely first
	for i, x := range logits {
		probs[i], order[i] = math.Exp(float64(x)/temperature), i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(probs[a], probs[b]) })
	normalize := func() {
		sum := 0.0
		for _, x := range probs {
			sum += x
		}
		for i := range probs {
			probs[i] /= sum
		}
	}
	if k > 0 {
		for _, id := range order[:max(0, len(order)-k)] {
			probs[id] = 0
		}
	}
	normalize()
	if p > 0 && p < 1 {
		together := 0.0
		for _, id := range order[:len(order)-1] {
			if together += probs[id]; together <= 1-p {
				probs[id] = 0
			}
		}
		normalize()
	}
	return probs
}

// TestChooserOrder checks that tokens are taken in the order of their logits, then of their
// ids.
func TestChooserOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		logits := make([]float32, 1+rng.IntN(200))
		want := make([]int32, len(logits))
		for i := range logits {
			logits[i], want[i] = float32(rng.IntN(20)), int32(i)
		}
		slices.SortStableFunc(want, func(a, b int32) int { return cmp.Compare(logits[b], logits[a]) })
		c := &chooser{}
		c.order(logits)
		for range logits {
			c.take()
		}
		if !slices.Equal(c.taken, want) {
			t.Fatalf("%v: %v, want %v", logits, c.taken, want)
		}
	}
}

// TestCutter checks that the output does not depend on how a text is split, that each write has
// whole characters if the text has, and that the text ends before the first complete stop string.
func TestCutter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	stops := [][]string{nil, {"b"}, {"ab", "b"}, {"abc", "b"}, {"aab", "ba"}, {"é"}, {"\n\n", "€a"}, {"zzz"}, {"a€", "😀"}}
	letters := []string{"a", "b", "c", "\n", "é", "€", "😀"}
	for i := range 3000 {
		stop, text := stops[i%len(stops)], ""
		for range rng.IntN(12) {
			text += letters[rng.IntN(len(letters))]
		}
		broken := i%5 == 0
		if broken && text != "" {
			at := rng.IntN(len(text))
			text = text[:at] + "\x9f" + text[at:]
		}
		want, stopped := upTo(text, stop)
		var got strings.Builder
		c := &cutter{w: &got, stops: stop}
		for rest := text; rest != ""; {
			n := 1 + rng.IntN(min(len(rest), 5))
			before := got.Len()
			if _, err := c.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			if part := got.String()[before:]; !broken && !utf8.ValidString(part) {
				t.Fatalf("of %q a part %q was written", text, part)
			}
			if rest = rest[n:]; !strings.HasPrefix(want, got.String()) {
				t.Fatalf("of %q before %q: %q was written too early", text, stop, got.String())
			}
		}
		if err := c.Close(); err != nil || got.String() != want || c.done != stopped {
			t.Fatalf("%q before %q: %q %v %v, want %q %v", text, stop, got.String(), c.done, err, want, stopped)
		}
	}
}

// upTo is a reference implementation that scans a text byte by byte.
func upTo(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		at := end + 1
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) {
				at = min(at, end-len(s))
			}
		}
		if at <= end {
			return text[:at], true
		}
	}
	return text, false
}

// TestCutterHoldsNoMoreThanItMust checks that a text that could end in a stop string is written as
// soon as it cannot.
func TestCutterHoldsNoMoreThanItMust(t *testing.T) {
	var got strings.Builder
	c := &cutter{w: &got, stops: []string{"\n\nUser:"}}
	for i, step := range []struct{ part, want string }{{"hello", "hello"}, {"\n", "hello"}, {"\nUs", "hello"}, {"e", "hello"}, {"d", "hello\n\nUsed"}, {"\xc3", "hello\n\nUsed"}, {"\xa9", "hello\n\nUsedé"}} {
		if _, err := c.Write([]byte(step.part)); err != nil || got.String() != step.want {
			t.Errorf("%d: %q %v, want %q", i, got.String(), err, step.want)
		}
	}
}

func TestEncodePrompt(t *testing.T) {
	if ids, err := spec.Encode(data.Bytes{}, "az", 123); err != nil || len(ids) != 2 || ids[1] != 'z' {
		t.Errorf("%v %v", ids, err)
	}
	for prompt, want := range map[string]string{
		"":    "an empty prompt; want at least one token to continue",
		"a{b": `the prompt has the token "{", number 123, but the model knows only the first 123`,
	} {
		if _, err := spec.Encode(data.Bytes{}, prompt, 123); err == nil || err.Error() != want || !input.IsInput(err) {
			t.Errorf("%q: %v, want %s", prompt, err, want)
		}
	}
}
