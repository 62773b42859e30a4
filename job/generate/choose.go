package generate

import (
	"math"
	"math/rand/v2"
)

// Rules say how the next token of a text is chosen. They are applied as in transformers: the penalty
// to all tokens in the text, then the temperature, TopK, TopP and MinP.
type Rules struct {
	Temperature float64 // 0 always chooses the most likely token
	TopK        int     // choose among the k most likely tokens, and those as likely as the last of them; 0 is all
	TopP        float64 // choose among the most likely tokens with this total probability; 0 and 1 are all
	MinP        float64 // choose among the tokens with at least this fraction of the highest probability
	Penalty     float64 // what positive logits of tokens in the text are divided by, and negative ones multiplied with; 0 is 1
}

// chooser draws tokens of one text.
type chooser struct {
	Rules
	rng  *rand.Rand
	seen []bool // by token: whether the text contains it; shorter than the vocabulary if the rest is not

	heap    []scored  // tokens not taken yet, the most likely first
	top     float32   // logit of the most likely token
	taken   []int32   // the most likely tokens, in order
	weights []float64 // of the tokens taken: exp((logit - top) / temperature)
}

// scored is a token and its logit.
type scored struct {
	logit float32
	id    int32
}

// before reports whether a is more likely than b. Ties go to the lower id.
func (a scored) before(b scored) bool { return a.logit > b.logit || a.logit == b.logit && a.id < b.id }

// read adds tokens to the text.
func (c *chooser) read(ids ...int32) {
	if c.Penalty == 0 || c.Penalty == 1 {
		return
	}
	for _, id := range ids {
		for int(id) >= len(c.seen) {
			c.seen = append(c.seen, false)
		}
		c.seen[id] = true
	}
}

// choose draws a token by the rules. With temperature 0 it draws no random number. It overwrites the
// logits.
func (c *chooser) choose(logits []float32) int32 {
	for id, seen := range c.seen[:min(len(c.seen), len(logits))] {
		switch x := logits[id]; {
		case seen && x < 0:
			logits[id] = x * float32(c.Penalty)
		case seen:
			logits[id] = x / float32(c.Penalty)
		}
	}
	if c.Temperature == 0 {
		return likeliest(logits)
	}
	c.order(logits)
	n, sum := c.likely()
	if c.TopP > 0 && c.TopP < 1 {
		all := sum
		n, sum = c.first(n, func(_, before float64) bool { return before < c.TopP*all })
	}
	if c.MinP > 0 {
		n, sum = c.first(n, func(weight, _ float64) bool { return weight >= c.MinP })
	}
	x := c.rng.Float64() * sum
	for i := range n {
		if x -= c.weight(i); x < 0 {
			return c.taken[i]
		}
	}
	return c.taken[n-1]
}

// likely returns the number of tokens that TopK allows, and their weight.
func (c *chooser) likely() (n int, sum float64) {
	if c.TopK == 0 || c.TopK >= len(c.heap) {
		for _, s := range c.heap {
			sum += c.weightOf(s)
		}
		return len(c.heap), sum
	}
	last := c.heap[0]
	for len(c.heap) > 0 && (n < c.TopK || c.heap[0].logit == last.logit) {
		last = c.heap[0]
		sum += c.weight(n)
		n++
	}
	return n, sum
}

// first counts the most likely tokens, up to n, for which in returns true, and stops at the first
// for which it does not. The most likely token always counts. It also returns their total weight.
// in gets a token's weight and the total weight before it.
func (c *chooser) first(n int, in func(weight, before float64) bool) (kept int, sum float64) {
	for ; kept < n && (kept == 0 || in(c.weight(kept), sum)); kept++ {
		sum += c.weight(kept)
	}
	return kept, sum
}

func (c *chooser) weightOf(s scored) float64 {
	return math.Exp((float64(s.logit) - float64(c.top)) / c.Temperature)
}

// weight returns the weight of the i-th most likely token. Those before it must be taken.
func (c *chooser) weight(i int) float64 {
	if i == len(c.taken) {
		c.take()
	}
	return c.weights[i]
}

func likeliest(logits []float32) int32 {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// order builds a heap of all tokens. Few of them are taken, so this is faster than sorting.
func (c *chooser) order(logits []float32) {
	c.heap, c.taken, c.weights = c.heap[:0], c.taken[:0], c.weights[:0]
	for i, x := range logits {
		c.heap = append(c.heap, scored{x, int32(i)})
	}
	for i := len(c.heap)/2 - 1; i >= 0; i-- {
		c.sink(i)
	}
	c.top = c.heap[0].logit
}

// take moves the most likely token from the heap to taken.
func (c *chooser) take() {
	c.taken, c.weights = append(c.taken, c.heap[0].id), append(c.weights, c.weightOf(c.heap[0]))
	last := len(c.heap) - 1
	c.heap[0], c.heap = c.heap[last], c.heap[:last]
	c.sink(0)
}

// sink restores the heap order below element i.
func (c *chooser) sink(i int) {
	for {
		next := 2*i + 1
		if next >= len(c.heap) {
			return
		}
		if next+1 < len(c.heap) && c.heap[next+1].before(c.heap[next]) {
			next++
		}
		if !c.heap[next].before(c.heap[i]) {
			return
		}
		c.heap[i], c.heap[next] = c.heap[next], c.heap[i]
		i = next
	}
}
