package forecast

import (
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/zero"
)

// ops contains all operations that a trainer issues on any of its queues.
type ops interface {
	fsdp.Compute
	zero.Compute
	zero.Update
	optim.Ops
	optim.MatrixOps
	collective.LocalQueue
}

// Kernel identifies a piece of work by everything that its time depends on.
type Kernel struct {
	Op      string
	In, Out device.DType
	M, N, K int    // of a product; else elements, or rows and columns
	Form    uint8  // variant of a product, a collective, or attention and the loss
	Window  int    // of attention
	Past    int    // of attention: earlier positions
	Group   Group  // of a collective
	Host    bool   // of a collective: it moves host memory, wherever the rank computes
	Link    [2]int // of a broadcast over a pipeline link: the sending and the receiving world rank
}

// Group is the ranks of a collective: their number and the distance between neighbours.
type Group struct{ Size, Stride int }

// isLink reports whether k is a transfer over a link of a pipeline.
func (k Kernel) isLink() bool { return k.Link != [2]int{} }

// isStar reports whether k is between a master and the other ranks.
func (k Kernel) isStar() bool {
	return !k.isLink() && (k.Op == collective.BroadcastName || k.Op == collective.ReduceName)
}

// Work is the work of a kernel: operations of products, bytes read or written, and operations
// other than products if soft caps make them significant.
type Work struct {
	Flops, Bytes, Other float64
}

// task is an entry of a queue: a kernel, or a wait for a task of another queue.
type task struct {
	Kernel int32 // index in Recording.Kernels; -1: a wait
	on     int32 // of a wait: the queue to wait for; of a kernel: the junction of an operation between places, or 0
	until  int32 // of a wait: number of that queue's tasks to wait for
	host   int32 // index of the last of Recording.waits when it was issued; -1 if none
	label  int32 // index in Recording.labels
}

// Recording is the work that a rank issues, by queue.
type Recording struct {
	Operations            // so far,
	before     Operations // and before the last step

	Queues   []*recordedQueue
	Kernels  []Kernel
	Work     []Work
	index    map[Kernel]int32
	after    []int32 // by kernel: its last successor
	newest   int32
	labels   []string
	waits    []hostWait
	ends     []int         // by step: index of the last wait
	last     []int         // tasks of each queue before the last step
	rounds   []round       // of the last step: what shorter leaves out
	bounce   map[Group]int // planned bytes of bounce memory of a rank's groups
	again    bool          // activations are being recomputed
	rank     int           // world rank, the first one at its place in a pipeline,
	pipeline int           // with this many places
}

// hostWait is a wait of the host until a queue has done some number of tasks. Work issued later
// begins later.
type hostWait struct{ queue, until int32 }

func newRecording() *Recording {
	return &Recording{index: map[Kernel]int32{}, labels: []string{""}, after: []int32{-1}}
}

// tasks returns the total number of tasks of all queues.
func (l *Recording) tasks() (n int) {
	for _, q := range l.Queues {
		n += len(q.Tasks)
	}
	return n
}

// recordedQueue records the work issued on it and passes it on.
type recordedQueue struct {
	ops   // destination of the work
	to    *Recording
	Role  setup.QueueRole
	at    int32
	label int32
	Tasks []task
	Spans [][2]uint64 // range of marks of each task on the destination queue, if Keep
	Keep  bool

	experts, groups int // of the last Route, and of the last Sort
}

// queue returns a recorder in front of a queue. All of a rank's work must go through recorders,
// from one goroutine.
func (l *Recording) queue(role setup.QueueRole, to ops) *recordedQueue {
	r := &recordedQueue{ops: to, to: l, Role: role, at: int32(len(l.Queues))}
	l.Queues = append(l.Queues, r)
	return r
}

func (r *recordedQueue) add(t task) {
	t.host, t.label = int32(len(r.to.waits))-1, r.label
	r.Tasks = append(r.Tasks, t)
}

// begin marks the beginning of a step; left is the number of steps to come, including this one.
func (l *Recording) begin(left int) {
	l.last, l.before = make([]int, len(l.Queues)), l.Operations
	for i, q := range l.Queues {
		l.last[i] = len(q.Tasks)
		if len(l.ends) > 0 { // assume steps of equal length
			q.Tasks = slices.Grow(q.Tasks, left*len(q.Tasks)/len(l.ends))
		}
	}
}

// known returns the index of a kernel. Layers are alike, so it first tries the last successor of
// the previous kernel.
func (l *Recording) known(k Kernel, w Work) int32 {
	i, ok := int32(0), false
	if after := &l.after[l.newest]; *after >= 0 && l.Kernels[*after] == k {
		i = *after
	} else if i, ok = l.index[k]; !ok {
		i = int32(len(l.Kernels))
		l.index[k] = i
		l.Kernels, l.Work, l.after = append(l.Kernels, k), append(l.Work, w), append(l.after, -1)
	}
	l.after[l.newest], l.newest = i, i
	return i
}

// kernel records a kernel, which pass issues.
func (r *recordedQueue) kernel(k Kernel, w Work, pass func()) { r.meet(alone, k, w, pass) }

// meet records a kernel that is an operation of a junction.
func (r *recordedQueue) meet(junction int32, k Kernel, w Work, pass func()) {
	r.add(task{Kernel: r.to.known(k, w), on: junction})
	if r.at == 0 {
		r.to.count(k, w)
	}
	if k.isLink() && k.Link[0] == r.to.rank {
		r.to.Sent += int64(k.N * k.In.Size())
	}
	if !r.Keep {
		pass()
		return
	}
	from := r.ops.Mark().Seq
	pass()
	r.Spans = append(r.Spans, [2]uint64{from, r.ops.Mark().Seq})
}

// recordedEvent is an event of a recordedQueue together with the destination's own.
type recordedEvent struct {
	of   *recordedQueue
	real device.Event
}

// Await implements device.Fence. It records that the host waits for the queue's first seq tasks.
func (e recordedEvent) Await(seq uint64) error {
	l := e.of.to
	l.waits = append(l.waits, hostWait{e.of.at, int32(seq)})
	return e.real.Await()
}

// Mark implements device.Queue.
func (r *recordedQueue) Mark() device.Event {
	return device.Event{On: recordedEvent{r, r.ops.Mark()}, Seq: uint64(len(r.Tasks))}
}

// After implements device.Queue.
func (r *recordedQueue) After(e device.Event) {
	if x, ok := e.On.(recordedEvent); ok {
		if r.add(task{Kernel: -1, on: x.of.at, until: int32(e.Seq)}); r.Keep {
			r.Spans = append(r.Spans, [2]uint64{})
		}
		e = x.real
	}
	r.ops.After(e)
}

// Wait implements device.Queue.
func (r *recordedQueue) Wait() error {
	r.to.waits = append(r.to.waits, hostWait{r.at, int32(len(r.Tasks))})
	return r.ops.Wait()
}

// Offloaded implements offload.Listener. The last task issued is a read or write of the disk.
func (l *Recording) Offloaded(e offload.Event) {
	q, bytes := e.Queue.(*recordedQueue), float64(e.Bytes)
	q.Tasks[len(q.Tasks)-1].Kernel = l.known(Kernel{Op: e.Kind.String(), N: int(e.Bytes)}, Work{Bytes: bytes})
}

// Label implements device.Queue.
func (r *recordedQueue) Label(what string) {
	if l := r.to; l.labels[r.label] != what {
		r.label, l.labels = int32(len(l.labels)), append(l.labels, what)
	}
	r.ops.Label(what)
}

// Do implements device.Queue.
func (r *recordedQueue) Do(f func() error) { r.Call("do", f) }

// Call records named work of the host.
func (r *recordedQueue) Call(name string, f func() error) {
	r.kernel(Kernel{Op: name}, Work{}, func() { r.ops.Call(name, f) })
}

// pass records a kernel bound by memory. It reads or writes each operand in once, and reads and
// writes each operand in twice.
func (r *recordedQueue) pass(op string, rows, cols int, out device.Buffer, twice, once []device.Buffer, issue func()) {
	k, w := passOver(op, rows, cols, out, twice, once)
	r.kernel(k, w, issue)
}

func passOver(op string, rows, cols int, out device.Buffer, twice, once []device.Buffer) (Kernel, Work) {
	w := Work{Bytes: float64(out.Bytes())}
	k := Kernel{Op: op, M: rows, N: cols, Out: out.Type, In: out.Type}
	for i, b := range once {
		w.Bytes += float64(b.Bytes())
		if i == 0 {
			k.In = b.Type
		}
	}
	for _, b := range twice {
		w.Bytes += 2 * float64(b.Bytes())
	}
	return k, w
}

type bufs = []device.Buffer

// Kernels identified by name.
const (
	attention     = "attention"
	attentionGrad = "attention gradient"
	sumOfSquares  = "sum of squares"

	weightGradient = "weight gradient"
)

func (r *recordedQueue) Copy(dst, src device.Buffer) {
	r.pass("copy", dst.N, 1, dst, nil, bufs{src}, func() { r.ops.Copy(dst, src) })
}

func (r *recordedQueue) Zero(b device.Buffer) {
	r.pass("zero", b.N, 1, b, nil, nil, func() { r.ops.Zero(b) })
}

func (r *recordedQueue) Cast(dst, src device.Buffer) {
	r.pass("cast", dst.N, 1, dst, nil, bufs{src}, func() { r.ops.Cast(dst, src) })
}

func (r *recordedQueue) Decode(dst device.Mat, codes device.Buffer, code device.Code) {
	r.pass("decode "+code.String(), dst.Buf.N, 1, dst.Buf, nil, bufs{codes}, func() { r.ops.Decode(dst, codes, code) })
}

func (r *recordedQueue) AddTo(y, a, b device.Buffer) {
	r.pass("add", y.N, 1, y, nil, bufs{a, b}, func() { r.ops.AddTo(y, a, b) })
}

func (r *recordedQueue) Activate(y, x device.Buffer, f device.Activation) {
	name := "activation"
	if f == device.GeluTanh {
		name = "gelu" // has a kernel of its own
	}
	r.pass(name, y.N, 1, y, nil, bufs{x}, func() { r.ops.Activate(y, x, f) })
}

func (r *recordedQueue) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	name := "activation gradient"
	if f == device.GeluTanh {
		name = "gelu gradient"
	}
	r.pass(name, dx.N, 1, dx, nil, bufs{x, dy}, func() { r.ops.ActivateGrad(dx, x, dy, f) })
}

func (r *recordedQueue) Mul(y, a, b device.Buffer) {
	r.pass("multiply", y.N, 1, y, nil, bufs{a, b}, func() { r.ops.Mul(y, a, b) })
}

func (r *recordedQueue) AddScalar(y, x device.Buffer, s float32) {
	r.pass("add scalar", y.N, 1, y, nil, bufs{x}, func() { r.ops.AddScalar(y, x, s) })
}

func (r *recordedQueue) Scale(x device.Buffer, s float32) {
	r.pass("scale", x.N, 1, x, nil, bufs{x}, func() { r.ops.Scale(x, s) })
}

func (r *recordedQueue) Dropout(y, x, add device.Buffer, d device.Dropout) {
	r.pass("dropout", y.N/d.Cols, d.Cols, y, nil, bufs{x, add}, func() { r.ops.Dropout(y, x, add, d) })
}

func (r *recordedQueue) Gate(y, gate, up device.Mat, f device.Activation) {
	r.pass("gate", y.Rows, y.Cols, dense(y), nil, bufs{dense(gate), dense(up)}, func() { r.ops.Gate(y, gate, up, f) })
}

func (r *recordedQueue) GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation) {
	r.pass("gate gradient", dy.Rows, dy.Cols, dense(dgate), nil, bufs{dense(dup), dense(dy), dense(gate), dense(up)}, func() { r.ops.GateGrad(dgate, dup, dy, gate, up, f) })
}

func (r *recordedQueue) Rope(x device.Mat, p device.Rope, inverse bool) {
	r.pass("rope", x.Rows, x.Cols, device.Buffer{Type: x.Buf.Type}, bufs{dense(x)}, nil, func() { r.ops.Rope(x, p, inverse) })
}

func (r *recordedQueue) SumRows(db device.Buffer, dy device.Mat) {
	r.pass("sum of rows", dy.Rows, dy.Cols, db, nil, bufs{dense(dy)}, func() { r.ops.SumRows(db, dy) })
}

func (r *recordedQueue) Sum(sum, x device.Buffer) {
	r.pass("sum", x.N, 1, sum, nil, bufs{x}, func() { r.ops.Sum(sum, x) })
}

func (r *recordedQueue) SumSquares(acc, x device.Buffer) {
	r.pass(sumOfSquares, x.N, 1, device.Buffer{}, nil, bufs{x}, func() { r.ops.SumSquares(acc, x) })
}

func (r *recordedQueue) Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer) {
	r.pass("embedding", y.Rows, y.Cols, dense(y), nil, bufs{dense(y), ids}, func() { r.ops.Embed(y, wte, wpe, part, ids, T, start) })
}

func (r *recordedQueue) EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool) {
	out := dense(dwte) // zeroed unless added to
	if add {
		out = device.Buffer{Type: device.F32}
	}
	k := "embedding gradient"
	if add {
		k = "embedding gradient, added"
	}
	r.pass(k, dy.Rows, dwte.Rows, out, nil, bufs{dense(dy), ids, dense(dy)}, func() { r.ops.EmbedGrad(dwte, dwpe, dy, part, ids, T, start, add) })
}

func (r *recordedQueue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	k, w := passOver("cross entropy", logits.Rows, logits.Cols, loss, nil, bufs{dense(logits)})
	k.Form, w.Other = capping(cap, logits.Rows*logits.Cols, cappedLoss)
	r.kernel(k, w, func() { r.ops.CrossEntropy(loss, logits, target, cap) })
}

func (r *recordedQueue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	k, w := passOver("cross entropy gradient", logits.Rows, logits.Cols, loss, bufs{dense(logits)}, nil)
	k.Form, w.Other = capping(cap, logits.Rows*logits.Cols, cappedLossGrad)
	r.kernel(k, w, func() { r.ops.CrossEntropyGrad(loss, logits, target, scale, cap) })
}

func (r *recordedQueue) CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) {
	k, w := passOver("cross entropy", logits.Rows, logits.Cols, stats, nil, bufs{dense(logits)})
	k.Form, w.Other = capping(cap, logits.Rows*logits.Cols, cappedLoss)
	r.kernel(k, w, func() { r.ops.CrossEntropyPart(stats, logits, part, target, cap) })
}

func (r *recordedQueue) CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool) {
	k, w := passOver("cross entropy, merged", logits.Rows, 1, loss, nil, bufs{stats})
	if grad {
		k, w = passOver("cross entropy gradient", logits.Rows, logits.Cols, loss, bufs{dense(logits)}, nil)
		k.Form, w.Other = capping(cap, logits.Rows*logits.Cols, cappedLossGrad)
	}
	r.kernel(k, w, func() { r.ops.CrossEntropyMerge(loss, stats, logits, part, target, scale, cap, grad) })
}

func (r *recordedQueue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	r.pass("layer norm", y.Rows, y.Cols, dense(y), nil, bufs{dense(x)}, func() { r.ops.LayerNorm(y, mean, rstd, x, w, b, eps) })
}

func (r *recordedQueue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	r.pass("layer norm gradient", dx.Rows, dx.Cols, dense(dx), nil, bufs{dense(dy), dense(x), dense(dy), dense(x)}, func() { r.ops.LayerNormGrad(dx, dw, db, dy, x, w, mean, rstd, add) })
}

func (r *recordedQueue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	r.pass("rms norm", y.Rows, y.Cols, dense(y), nil, bufs{dense(x)}, func() { r.ops.RMSNorm(y, rstd, x, w, eps) })
}

func (r *recordedQueue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	r.pass("rms norm gradient", dx.Rows, dx.Cols, dense(dx), nil, bufs{dense(dy), dense(x), dense(dy), dense(x)}, func() { r.ops.RMSNormGrad(dx, dw, dy, x, w, rstd, add) })
}

func (r *recordedQueue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	r.pass("adamw", w.N, 1, p, bufs{w, m, v}, bufs{g}, func() { r.ops.AdamW(w, p, g, m, v, a) })
}

func (r *recordedQueue) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	r.pass("adamw in 8 bits", w.N, 1, p, bufs{w, m, v}, bufs{g}, func() { r.ops.AdamW8(w, p, g, m, v, a) })
}

func (r *recordedQueue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	r.pass("sgd", w.N, 1, p, bufs{w, m}, bufs{g}, func() { r.ops.SGD(w, p, g, m, a) })
}

func (r *recordedQueue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	r.pass("lion", w.N, 1, p, bufs{w, m}, bufs{g}, func() { r.ops.Lion(w, p, g, m, a) })
}

func (r *recordedQueue) CopyBlock(dst, src device.Mat) {
	r.pass("copy of a block", dst.Rows, dst.Cols, dense(dst), nil, bufs{dense(src)}, func() { r.ops.CopyBlock(dst, src) })
}

func (r *recordedQueue) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	r.pass("axpby", y.N, 1, y, nil, bufs{a, b, p}, func() { r.ops.Axpby(y, p, a, b, alpha, beta) })
}

func (r *recordedQueue) Normalize(x, acc device.Buffer, eps float32) {
	r.pass("normalize", x.N, 1, x, bufs{x}, nil, func() { r.ops.Normalize(x, acc, eps) })
}

// dense returns a matrix's elements without gaps between rows.
func dense(m device.Mat) device.Buffer { return device.Buffer{Type: m.Buf.Type, N: m.Rows * m.Cols} }

func (r *recordedQueue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	form := bit(a.Trans, 1) | bit(b.Trans, 2) | bit(add, 4) | bit(bias.N > 0, 8)
	var old bufs
	if add {
		old = bufs{dense(c)}
	}
	r.product("matmul", form, c, a, b, old, func() { r.ops.MatMul(c, a, b, bias, add) })
}

func (r *recordedQueue) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	form := bit(b.Trans, 2) | bit(bias.N > 0, 8)
	r.product("matmul onto", form, y, a, b, bufs{dense(x)}, func() { r.ops.MatMulOnto(y, x, a, b, bias) })
}

func (r *recordedQueue) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	form := bit(b.Trans, 2) | bit(bias.N > 0, 8) | bit(f == device.GeluTanh, 16)
	r.product("matmul, activation", form, y, a, b, bufs{dense(x)}, func() { r.ops.MatMulActivate(y, x, a, b, bias, f) })
}

func (r *recordedQueue) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	form := bit(b.Trans, 2) | bit(f == device.GeluTanh, 16)
	r.product("matmul, activation gradient", form, dx, a, b, bufs{dense(x)}, func() { r.ops.MatMulActivateGrad(dx, a, b, x, f) })
}

func (r *recordedQueue) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	c, a, b := device.GradOperands(dw, dy, x)
	form := bit(a.Trans, 1) | bit(b.Trans, 2) | bit(db.N > 0, 8)
	r.product(weightGradient, form, c, a, b, bufs{db}, func() { r.ops.WeightGrad(dw, db, dy, x) })
}

// product records a product c = a·b that also reads or writes the buffers in other.
func (r *recordedQueue) product(op string, form uint8, c, a, b device.Mat, other bufs, issue func()) {
	m, n := c.Dims()
	_, k := a.Dims()
	w := Work{Flops: 2 * float64(m) * float64(n) * float64(k), Bytes: float64(dense(c).Bytes() + dense(a).Bytes() + dense(b).Bytes())}
	for _, x := range other {
		w.Bytes += float64(x.Bytes())
	}
	r.kernel(Kernel{Op: op, In: a.Buf.Type, Out: c.Buf.Type, M: m, N: n, K: k, Form: form}, w, issue)
}

func bit(is bool, b uint8) uint8 {
	if is {
		return b
	}
	return 0
}

// Forms of attention and the loss: soft cap on scores or logits, and dropout of weights.
const (
	Capped  = 1
	Dropped = 2
)

// Operations other than products per capped score or logit, counted in a GPU's kernel. More than
// half of them are tanh.
const (
	cappedScore     = 46
	cappedScoreGrad = 108
	cappedLoss      = 48
	cappedLossGrad  = 95
)

// capping returns the form of a kernel with an optional soft cap, and its operations on n elements
// if it has one.
func capping(cap float32, n int, each float64) (form uint8, operations float64) {
	if cap == 0 {
		return 0, 0
	}
	return Capped, each * float64(n)
}

// attend returns an attention kernel and its work. Each product takes 2 operations per element of
// the visible pairs. A capped score takes other operations in addition.
func attend(op string, t device.DType, a device.Attn, products, passes, other float64) (Kernel, Work) {
	pairs := a.Pairs()
	form, operations := capping(a.Cap, int(pairs), other)
	form |= bit(a.Drop.Drop > 0, Dropped)
	all := float64(a.B*a.D) * float64(2*a.H*a.T+2*a.KV*a.Keys()) * float64(t.Size())
	return Kernel{Op: op, In: t, Out: t, M: a.B * a.H, N: a.T, K: a.D, Form: form, Window: a.Window, Past: a.Past},
		Work{2 * products * float64(pairs) * float64(a.D), passes * all, operations}
}

func (r *recordedQueue) Attention(o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	what, w := attend(attention, o.Buf.Type, a, 2, 1, cappedScore)
	r.kernel(what, w, func() { r.ops.Attention(o, lse, q, k, v, a) })
}

func (r *recordedQueue) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	what, w := attend(attentionGrad, o.Buf.Type, a, 5, 2, cappedScoreGrad)
	r.kernel(what, w, func() { r.ops.AttentionGrad(dq, dk, dv, delta, do, o, lse, q, k, v, a) })
}
