package generate

import (
	"math"
	"math/rand/v2"
)

// chooser draws tokens. It applies its rules in the order of transformers: the temperature, then
// the k most likely tokens, then the most likely of these with total probability p.
type chooser struct {
	temperature float64 // 0 always chooses the most likely token
	topK        int     // 0 is all
	topP        float64 // 0 and 1 are all
	rng         *rand.Rand

	heap    []scored  // tokens not taken yet, the most likely first
	taken   []int32   // the most likely tokens, in order
	weights []float64 // of the tokens taken: exp((logit - largest) / temperature)
}

// scored is a token and its logit.
type scored struct {
	logit float32
	id    int32
}

// before reports whether a is more likely than b. Ties go to the lower id.
func (a scored) before(b scored) bool { return a.logit > b.logit || a.logit == b.logit && a.id < b.id }

// choose draws a token from softmax(logits/temperature) over the tokens that the rules allow. With
// temperature 0 it draws no random number.
func (c *chooser) choose(logits []float32) int32 {
	if c.temperature == 0 {
		return likeliest(logits)
	}
	c.order(logits)
	top := c.heap[0].logit
	weight := func(x float32) float64 { return math.Exp(float64(x-top) / c.temperature) }
	sum, most := 0.0, len(logits)
	if c.topK > 0 && c.topK < most { // sum only over the top k
		most = c.topK
		for range most {
			sum += weight(c.heap[0].logit)
			c.take(weight(c.heap[0].logit))
		}
	} else {
		for _, s := range c.heap {
			sum += weight(s.logit)
		}
	}
	if c.topP > 0 && c.topP < 1 {
		sum = c.nucleus(sum, most, weight)
		most = len(c.taken)
	}
	x := c.rng.Float64() * sum
	for i := range most {
		if i == len(c.taken) {
			c.take(weight(c.heap[0].logit))
		}
		if x -= c.weights[i]; x < 0 {
			return c.taken[i]
		}
	}
	return c.taken[most-1]
}

// nucleus reduces the most likely tokens to the shortest prefix with at least the fraction topP of
// sum, and returns its weight. The prefix has at least one token.
func (c *chooser) nucleus(sum float64, most int, weight func(float32) float64) (kept float64) {
	n := 0
	for ; n < most && (n == 0 || kept < c.topP*sum); n++ {
		if n == len(c.taken) {
			c.take(weight(c.heap[0].logit))
		}
		kept += c.weights[n]
	}
	c.taken = c.taken[:n]
	return kept
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
}

// take moves the most likely token from the heap to taken.
func (c *chooser) take(weight float64) {
	c.taken, c.weights = append(c.taken, c.heap[0].id), append(c.weights, weight)
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
