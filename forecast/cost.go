package forecast

import "zeroth/fsdp"

// Operations counts the work of a rank.
type Operations struct {
	Flops float64 // of matrix products and attention on the compute queue, counted as a model's: two products forward, four backward
	Again float64 // the part of Flops that recomputes activations
	Sent  int64   // bytes to other ranks
}

// count adds a kernel of the compute queue. Attention's gradient recomputes the scores, one of its
// five products, which does not count as the model's arithmetic.
func (l *Recording) count(k Kernel, w Work) {
	flops := w.Flops
	if k.Op == attentionGrad {
		flops *= 4. / 5
	}
	if l.Flops += flops; l.again {
		l.Again += flops
	}
}

// Event implements fsdp.Listener. It distinguishes recomputation from other passes.
func (l *Recording) Event(e fsdp.Event) {
	l.Sent += e.Sent
	if e.Op == fsdp.Recompute {
		l.again = !e.Done
	}
	l.cutAt(e)
}

// Arena implements fsdp.Listener.
func (l *Recording) Arena(int, string, int) {}
