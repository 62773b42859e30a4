package device

import "time"

// Sizes is what kernels will be asked to do: the largest of each. The zero
// Sizes are those of a device that only copies, casts, sums squares and
// updates.
type Sizes struct {
	Type   DType // of activations
	Rows   int   // positions of a micro-batch
	Width  int   // of what is normalised
	Vocab  int   // logits of a position
	Widest int   // dimension of a parameter
	Attn   Attn  // T, D and Cap
	Rope   bool  // heads are turned by their positions
	Whole  bool  // updates multiply whole matrices, of BF16
}

// Span is a task that a queue has run, from its first moment to its last:
//
//   - a kernel by its name, waiting for workers included;
//   - "wait" for an event of another queue, which takes no time if it has
//     happened;
//   - a host function by the name Call was given, or "do": a collective's span
//     includes the time it waits for other ranks.
//
// What a queue skips because it has failed is not seen. Between spans the queue
// has nothing to do.
type Span struct {
	Queue, Label, Task string
	Start, End         time.Time
}
