package kernel

import (
	"encoding/binary"
	"fmt"
	"math"

	"zeroth/device"
)

// attnSize is the kernels for heads up to width wide, and their tiles of positions:
// the larger of what a block owns, the smaller of what it goes through.
type attnSize struct {
	width, big, small   int
	forward, dq, dkv    *Kernel
	sharedForward       uint32 // bytes
	sharedDQ, sharedDKV uint32
}

var kDelta = entry("attention_delta")

// attnSizes are as attention.cu instantiates them.
var attnSizes = [...]attnSize{newAttnSize(64, 64, 32), newAttnSize(128, 64, 32), newAttnSize(256, 32, 32)}

// MaxAttn is the widest head that attends.
const MaxAttn = 256

func newAttnSize(width, big, small int) attnSize {
	tile := func(rows int) int { return rows * (width + 4) } // floats
	kernel := func(name string) *Kernel { return entry(fmt.Sprintf("%s_%d", name, width)) }
	return attnSize{width: width, big: big, small: small,
		forward: kernel("attention"), dq: kernel("attention_dq"), dkv: kernel("attention_dkv"),
		sharedForward: uint32(4 * (tile(big) + 2*tile(small) + big*(small+4))),
		sharedDQ:      uint32(4 * (2*tile(big) + 2*tile(small) + big*(small+4))),
		sharedDKV:     uint32(4 * (2*tile(big) + 2*tile(small) + 2*small*(big+4))),
	}
}

// Shared is the most dynamic shared memory, in bytes, that each kernel is launched
// with, for those that have any. Above 48 KiB a driver wants it announced.
func Shared() map[*Kernel]uint32 {
	most := map[*Kernel]uint32{}
	for _, s := range attnSizes {
		most[s.forward], most[s.dq], most[s.dkv] = s.sharedForward, s.sharedDQ, s.sharedDKV
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
	if a.Window > 0 {
		lacks(op + " in a window")
	}
	if a.B < 0 || a.T < 0 || a.Past < 0 || a.KV < 1 || a.H%a.KV != 0 || a.D < 1 {
		panic(fmt.Sprintf("cuda: %s of B %d, T %d after %d, H %d, KV %d, D %d", op, a.B, a.T, a.Past, a.H, a.KV, a.D))
	}
	wantLen(op, device.F32, a.B*a.H*a.T, stats...)
}

// head is a matrix of heads: their elements lie in words of four if D allows it.
func (c *Call) head(m device.Mat, a *device.Attn) *Call { return c.matIf(m, a.D%4 == 0) }

// attn is attention.cu's Attn.
func (c *Call) attn(a *device.Attn) *Call {
	to := c.next(28)
	for i, x := range [...]int{a.T, a.Keys(), a.H, a.KV, a.D, a.Past} {
		binary.LittleEndian.PutUint32(to[4*i:], uint32(x))
	}
	binary.LittleEndian.PutUint32(to[24:], math.Float32bits(a.Scale))
	return c
}

// seen is the pairs of a query and a key it sees, in all heads.
func seen(a *device.Attn) int64 {
	T := int64(a.T)
	return int64(a.B) * int64(a.H) * (T*int64(a.Past) + T*(T+1)/2)
}

// Attention sets o = softmax(Scale q·k)·v, each position seeing itself and those
// before it; lse (B, H, T) float32 receives the log-sum-exp of its scores. Values
// that a query does not see must be finite.
func (o *Ops) Attention(out device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	wantAttn("attention", &a, lse)
	wantMat("attention", a.B*a.T, a.H*a.D, out, q)
	wantMat("attention", a.B*a.Keys(), a.KV*a.D, k, v)
	s := sizeFor(&a)
	c := o.begin(s.forward).head(out, &a).ptr(lse).head(q, &a).head(k, &a).head(v, &a).attn(&a)
	c.Shared = s.sharedForward
	cost := over(0, out, q, k, v).plus(lse)
	cost.Flops = seen(&a) * int64(4*a.D+20)
	o.run(ceil(a.T, s.big), a.H, a.B, cost)
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

	o.begin(kDelta).ptr(delta).head(do, &a).head(out, &a).attn(&a).i32(a.B)
	o.run(rowBlocks(delta.N), 1, 1, over(2, do, out).plus(delta))

	c := o.begin(s.dkv).head(dk, &a).head(dv, &a).head(do, &a).head(q, &a).head(k, &a).head(v, &a).ptr(lse).ptr(delta).attn(&a)
	c.Shared = s.sharedDKV
	cost := over(0, dk, dv, do, q, k, v).plus(lse, delta)
	cost.Flops = pairs * int64(8*a.D+24)
	o.run(ceil(a.T, s.big), a.KV, a.B, cost)

	c = o.begin(s.dq).head(dq, &a).head(do, &a).head(q, &a).head(k, &a).head(v, &a).ptr(lse).ptr(delta).attn(&a)
	c.Shared = s.sharedDQ
	cost = over(0, dq, do, q, k, v).plus(lse, delta)
	cost.Flops = pairs * int64(6*a.D+24)
	o.run(ceil(a.T, s.big), a.H, a.B, cost)
}
