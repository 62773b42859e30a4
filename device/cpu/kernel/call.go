package kernel

import (
	"fmt"

	"zeroth/device"
)

// RunFunc computes pieces [lo, hi) of a kernel.
type RunFunc func(t *Args, w *Worker, lo, hi int)

// Args are a kernel's arguments by value; each kernel names the ones it uses:
//
//	                  B                         M                            others
//	elementwise       y, a, b                                                F: number, Each
//	update rule       w, p, g, m, v                                          K, Rule
//	axpby             y, p, a, b                                             K: alpha, beta
//	normalize         accumulator, x                                         F: eps, then the divisor
//	norm              mean, rstd, w, b          y, x                         F: eps
//	  its gradient    w, mean, rstd             dx, dy, x                    Add
//	  of its weights  dw, db, mean, rstd        dy, x
//	RMS norm          as norm without mean, b and db
//	embedding         ids, start                y, wte, wpe                  T
//	  its gradients   ids or start              dwte or dwpe, dy             T, Add
//	loss              loss, target              logits                       F: scale
//	attention         lse, start                o, q, k, v                   Attn
//	  its gradient    delta, lse, start         dq, dk, dv, do, o, q, k, v   Attn
//	rotary positions  start                     x                            Rope, F: 1, or -1 back
//	gate                                        y, gate, up                  T: the activation
//	  its gradient                              dgate, dup, dy, gate, up
//	dropout           y, x, add                                              Drop
//	sum of rows       db                        dy
//	sum, of squares   accumulator, x
//	copy, cast        dst, src
//	copy, sum of many                                                        Many: dst, src
//	product                                                                  Gemm
//	route             experts, weights, bias    logits                       Router
//	  its gradient    experts, weights, dw      dlogits, logits              Router
//	balance           target                    stats, logits                T: experts of a row
//	  its total       sums, loss                                             T: experts of a row
//	  its gradient    target, slopes            dlogits, logits              F: scale
//	sort              order, at, ends, experts                               T: the first expert
//	gather            order                     y, x
//	sum of groups     at                        y, base, x
//	gate of rows      weights, order            y, gate, up                  T: the activation
//	  its gradient    weights, order, dw        dgate, dup, dy, gate, up
//	product of groups offsets                   c, a, b                      Stride, Add, Group, Gemm
//	  its gradient    offsets                   dy, x, dw
type Args struct {
	B     [5]device.Buffer
	M     [8]device.Mat
	T     int // positions of a sequence
	F     float32
	Cap   float32 // of logits; 0: none
	Vocab device.Vocab
	Code  device.Code
	Add   bool // add to the old contents
	Attn  device.Attn
	Rope  device.Rope
	Drop  device.Dropout
	Gemm  Gemm
	Each  *[3]EachFunc
	Rule  RuleFunc
	K     [10]float32 // constants of Rule
	Many  [2][]device.Buffer

	Router device.Router
	Stride int // of a group operand
	Group  GroupGemm
}

// RunCopy copies bytes [lo, hi).
func RunCopy(t *Args, _ *Worker, lo, hi int) {
	copyBytes(t.B[0].Raw()[lo:hi], t.B[1].Raw()[lo:hi], t.B[0].Bytes() >= StreamMin)
}

// RunCopyAll copies all sources, on one worker.
func RunCopyAll(t *Args, _ *Worker, _, _ int) {
	whole := 0 // determines whether stores bypass the caches
	for _, b := range t.Many[0] {
		whole += b.Bytes()
	}
	for i, dst := range t.Many[0] {
		src := t.Many[1][i]
		if dst.Type != src.Type || dst.N != src.N {
			panic(fmt.Sprintf("cpu: copy of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
		}
		if dst.Ptr != src.Ptr {
			copyBytes(raw(dst), raw(src), whole >= StreamMin)
		}
	}
}

// RunSumAll sums all sources, on one worker.
func RunSumAll(t *Args, _ *Worker, _, _ int) {
	for _, bufs := range t.Many {
		for i := range bufs {
			bufs[i].Host = true
		}
	}
	if dst, src := t.Many[0][0], t.Many[1]; len(src) > 1 || src[0].Ptr != dst.Ptr { // a sum of itself needs no work
		AddUp(dst, src)
	}
}

// raw returns the bytes of a buffer, for a kernel.
func raw(b device.Buffer) []byte {
	b.Host = true
	return b.Raw()
}
