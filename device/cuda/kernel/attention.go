package kernel

import (
	"encoding/binary"
	"fmt"
	"math"

	"zeroth/device"
)

// attnSize is the kernels for heads up to width wide, and their tiles of positions:
// forward of queries and keys; backward the larger of what a block owns, the smaller
// of what it goes through.
type attnSize struct {
	width, q, k, big, small int
	forward, dq, dkv        string
}

// attnSizes are as attention.cu instantiates them.
var attnSizes = [...]attnSize{
	{64, 64, 32, 64, 32, "attention_64", "attention_dq_64", "attention_dkv_64"},
	{128, 64, 32, 32, 32, "attention_128", "attention_dq_128", "attention_dkv_128"},
	{256, 32, 16, 16, 16, "attention_256", "attention_dq_256", "attention_dkv_256"},
}

// MaxAttn is the widest head that attends.
const MaxAttn = 256

// shared is the bytes of tiles of heads, so many positions in all, and of scores.
func (s *attnSize) shared(positions, scores int) uint32 {
	return uint32(4 * (positions*(s.width+4) + scores))
}

func (s *attnSize) sharedForward() uint32 { return s.shared(s.q+2*s.k, s.q*(s.k+4)) }
func (s *attnSize) sharedDQ() uint32      { return s.shared(2*s.big+2*s.small, s.big*(s.small+4)) }
func (s *attnSize) sharedDKV() uint32     { return s.shared(2*s.big+2*s.small, 2*s.small*(s.big+4)) }

// Shared is the most dynamic shared memory, in bytes, that each kernel is launched
// with, for those that have any. Above 48 KiB a driver wants it announced.
func Shared() map[*Kernel]uint32 {
	most := map[*Kernel]uint32{}
	for i := range attnSizes {
		s := &attnSizes[i]
		most[byName(s.forward)], most[byName(s.dq)], most[byName(s.dkv)] = s.sharedForward(), s.sharedDQ(), s.sharedDKV()
	}
	return most
}

func sizeFor(a *device.Attn) *attnSize {
	for i := range attnSizes {
		if a.D <= attnSizes[i].width {
			return &attnSizes[i]
		}
	}
	panic(fmt.Sprintf("cuda: attention with heads of width %d; kernels have up to %d", a.D, MaxAttn))
}

func wantAttn(op string, a *device.Attn, stats ...device.Buffer) {
	if a.B < 0 || a.T < 0 || a.Past < 0 || a.Window < 0 || a.KV < 1 || a.H%a.KV != 0 || a.D < 1 {
		panic(fmt.Sprintf("cuda: %s of B %d, T %d after %d, H %d, KV %d, D %d", op, a.B, a.T, a.Past, a.H, a.KV, a.D))
	}
	wantLen(op, device.F32, a.B*a.H*a.T, stats...)
	device.Starts(op, a.Start, a.B*a.T, a.Past)
}

// head is a matrix of heads: their elements lie in words of four if D allows it.
func (c *Call) head(m device.Mat, a *device.Attn) *Call { return c.matIf(m, a.D%4 == 0) }

// attn is attention.cu's Attn.
func (c *Call) attn(a *device.Attn) *Call {
	to := c.next(40)
	putPtr(to, a.Start)
	for i, x := range [...]int{a.T, a.Keys(), a.H, a.KV, a.D, a.Past, a.Window} {
		binary.LittleEndian.PutUint32(to[8+4*i:], uint32(x))
	}
	binary.LittleEndian.PutUint32(to[36:], math.Float32bits(a.Scale))
	return c
}

// seen is the pairs of a query and a key it sees, in all heads, if sequences are one
// document each: where others start is known on the device alone.
func seen(a *device.Attn) int64 {
	pairs := int64(a.T)*int64(a.Past) + int64(a.T)*int64(a.T+1)/2
	if before := a.Keys() - a.Window; a.Window > 0 && before > 0 { // the last query misses so many keys, the one before it one less
		misses := min(before, a.T)
		pairs -= int64(misses) * int64(2*before-misses+1) / 2
	}
	return int64(a.B) * int64(a.H) * pairs
}

// Attention sets o = softmax(Scale q·k)·v, each position seeing itself and those
// before it, as far as the window goes and its document; lse (B, H, T) float32 receives the log-sum-exp of its scores. Values
// that a query does not see must be finite.
func (o *Ops) Attention(out device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	wantAttn("attention", &a, lse)
	wantMat("attention", a.B*a.T, a.H*a.D, out, q)
	wantMat("attention", a.B*a.Keys(), a.KV*a.D, k, v)
	s := sizeFor(&a)
	c := o.begin(s.forward).head(out, &a).ptr(lse).head(q, &a).head(k, &a).head(v, &a).attn(&a)
	c.Shared = s.sharedForward()
	cost := over(0, out, q, k, v).plus(lse)
	cost.Flops = seen(&a) * int64(4*a.D+20)
	o.run(ceil(a.T, s.q), a.H, a.B, cost)
}

// AttentionGrad overwrites dq, dk and dv with the gradients of Attention; delta (B,
// H, T) float32 is work space.
func (o *Ops) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, out device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	const op = "attention gradient"
	wantAttn(op, &a, lse, delta)
	if a.Past > 0 {
		panic(fmt.Sprintf("cuda: %s of positions after %d others", op, a.Past))
	}
	wantMat(op, a.B*a.T, a.H*a.D, dq, do, out, q)
	wantMat(op, a.B*a.T, a.KV*a.D, dk, dv, k, v)
	s, pairs := sizeFor(&a), seen(&a)

	o.begin("attention_delta").ptr(delta).head(do, &a).head(out, &a).attn(&a).i32(a.B)
	o.run(rowBlocks(delta.N), 1, 1, over(2, do, out).plus(delta))

	c := o.begin(s.dkv).head(dk, &a).head(dv, &a).head(do, &a).head(q, &a).head(k, &a).head(v, &a).ptr(lse).ptr(delta).attn(&a)
	c.Shared = s.sharedDKV()
	cost := over(0, dk, dv, do, q, k, v).plus(lse, delta)
	cost.Flops = pairs * int64(8*a.D+24)
	o.run(ceil(a.T, s.big), a.KV, a.B, cost)

	c = o.begin(s.dq).head(dq, &a).head(do, &a).head(q, &a).head(k, &a).head(v, &a).ptr(lse).ptr(delta).attn(&a)
	c.Shared = s.sharedDQ()
	cost = over(0, dq, do, q, k, v).plus(lse, delta)
	cost.Flops = pairs * int64(6*a.D+24)
	o.run(ceil(a.T, s.big), a.H, a.B, cost)
}
