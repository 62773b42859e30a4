package spec

import (
	"cmp"
	"fmt"

	"zeroth/config"
	"zeroth/nn"
)

// resolveContext rejects sequences that cannot be divided evenly.
func (r *resolver) resolveContext() {
	n, positions := r.Job.Parallel.Context, r.Job.Model.Context
	if chunks := 2 * n; n > 1 && !r.Job.awaits && positions%chunks != 0 {
		r.Refuse(fmt.Sprintf("sequences of %d tokens cannot be divided into %d equal chunks, two for each of %d ranks", positions, chunks, n),
			wantNear("model.context", positions, func(t int) bool { return t%chunks == 0 }), "parallel.context", "model.context", "model.from")
	}
}

// resolveTensor rejects matrices that cannot be divided evenly.
func (r *resolver) resolveTensor() {
	c := r.Job
	n, m := c.Parallel.Tensor, &c.Model
	if n == 1 || m.Family == config.Program || c.awaits {
		return
	}
	keys := func(of ...string) []string { return append([]string{"parallel.tensor"}, append(of, "model.from")...) }
	divides := func(what string, count int, of ...string) {
		if count%n != 0 {
			r.Refuse(fmt.Sprintf("%d %s cannot be divided over %d ranks", count, what, n),
				wantNear("tensor", n, func(t int) bool { return count%t == 0 }), keys(of...)...)
		}
	}
	divides("heads", m.Heads, "model.heads")
	if m.Family == "llama" && m.KV != m.Heads {
		divides("heads of keys and values", m.KV, "model.kv_heads")
	}
	hidden := m.FFN
	if m.Family == "gpt2" {
		hidden = cmp.Or(m.Inner, 4*m.Width)
	}
	divides("columns of the hidden layer", hidden, "model.ffn", "model.width")
	divides("columns of an expert", m.Experts.FFN, "model.experts.width")
	divides("columns of the shared expert", m.Experts.Shared)
	if m.HeadNorm == nn.AllHeads {
		r.Refuse("the model has norms over all heads, but tensor parallelism divides the heads", "want tensor: 1", keys()...)
	}
	if each := (m.Vocab + n - 1) / n; each*(n-1) >= m.Vocab {
		r.Refuse(fmt.Sprintf("a vocabulary of %d tokens leaves none for the last of %d ranks", m.Vocab, n), "want a smaller tensor", keys("model.vocab")...)
	}
	if positions := c.Train.MicroBatch * m.Context / c.Parallel.Context; positions%n != 0 {
		r.Refuse(fmt.Sprintf("%d positions of a micro-batch cannot be divided over %d ranks", positions, n),
			fmt.Sprintf("want train.micro_batch or model.context a multiple of %d", n*c.Parallel.Context), "parallel.tensor", "train.micro_batch", "train.batch", "model.context")
	}
}
