package device

import "time"

// Sizes contains the maximum sizes of kernels' operands. The zero Sizes are for a device that only
// copies, casts, sums squares and updates.
type Sizes struct {
	Type   DType // of activations
	Rows   int   // positions of a micro-batch
	Width  int   // of normalized rows
	Vocab  int   // logits per position
	Widest int   // largest dimension of a parameter
	Attn   Attn  // T, D and Cap
	Rope   bool  // rotary position embeddings are used
	Groups bool  // products of groups of rows, for a mixture of experts
	Whole  bool  // updates multiply whole matrices, of BF16
}

// Span is the execution of a task by a queue, from start to end:
//
//   - a kernel by its name, including waiting for workers;
//   - "wait" for an event of another queue, which takes no time if it has
//     fired;
//   - a host function by the name passed to Call, or "do": a collective's span
//     includes the time waiting for other ranks.
//
// Tasks skipped by a failed queue have no span. Between spans the queue is idle.
type Span struct {
	Queue, Label, Task string
	Start, End         time.Time
}
