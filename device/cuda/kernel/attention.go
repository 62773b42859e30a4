package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

var (
	attentionDeltaKernel = entryOf("attention_delta")
)

// Choice says which kernels attention may use. Each value includes those before it.
type Choice int

const (
	Auto  Choice = iota // those that hardware has compared with what they replaced
	MMA                 // and those on tensor cores for heads wider than 128 and for soft caps
	WGMMA               // and those for compute capability 9.0, see RunsOn
)

// RunsOn reports whether a GPU of a compute capability has the instructions of all kernels of the
// choice.
func (c Choice) RunsOn(major, minor int) bool { return c < WGMMA || hopper(major, minor) }

func hopper(major, minor int) bool { return major == 9 && minor == 0 }

// attnKernels contains the kernels for heads up to width wide. Kernels with dropout take a
// Dropping as parameter instead of an Attn.
type attnKernels struct {
	width            int
	drop, caps       bool
	least            Choice // the first that includes them
	forward, dq, dkv attnKernel
}

// attnKernel is a kernel with the number of positions that a block owns and the block's shared
// memory in bytes.
type attnKernel struct {
	entry  *entry
	owns   int
	shared uint32
}

// Kernels by head width, as instantiated: attention.cu's use ordinary cores and support every
// shape; flash.cu's and wgmma.cu's use tensor cores, for bf16 and for fp16, and the first that may be
// used are. Only GPT-2's widths have kernels with dropout, since no other family is trained with it.
var (
	onCores       = [...]attnKernels{coreKernels(64, 64, 32, 64, 32), coreKernels(128, 64, 32, 32, 32), coreKernels(256, 32, 16, 16, 16)}
	onTensorCores = [...][2]attnKernels{
		wgmmaKernels(64, 2, 3, 2), flashKernels("", 64, 2, 2, 64), flashKernels("", 96, 1, 1, 32), wgmmaKernels(128, 3, 2, 2),
		flashKernels("", 128, 1, 1, 32), flashKernels("_drop", 64, 2, 2, 64),
		flashKernels("_cap", 128, 1, 1, 32), wideKernels(256),
	}
)

// allAttention returns the kernels of each width and type.
func allAttention() []attnKernels {
	sets := onCores[:]
	for _, both := range onTensorCores {
		sets = append(sets, both[:]...)
	}
	return sets
}

// MaxAttn is the maximum width of a head.
const MaxAttn = 256

// coreKernels returns kernels whose forward tiles have q queries and k keys. In the backward pass
// a block owns big positions and iterates over small ones. Tiles and scores are float32.
func coreKernels(width, q, k, big, small int) attnKernels {
	of := func(name string, owns, positions, scores int) attnKernel {
		return attnKernel{entryOf(fmt.Sprintf("attention%s_%d", name, width)), owns, uint32(4 * (positions*(width+4) + scores))}
	}
	return attnKernels{width, true, true, Auto, of("", q, q+2*k, q*(k+4)), of("_dq", big, 2*big+2*small, big*(small+4)),
		of("_dkv", big, 2*big+2*small, 2*small*(big+4))}
}

// flashKernels returns kernels whose blocks own 128 positions forward, and 64 times dq or dkv, and iterate
// over tiles of tile positions. Two tiles are in memory, with two float32 for each query.
func flashKernels(more string, width, dq, dkv, tile int) (both [2]attnKernels) {
	drop, caps, least := more == "_drop", more == "_cap", Auto
	if caps {
		least = MMA
	}
	for i, typ := range [...]string{"bf16", "f16"} {
		of := func(name string, owns, own, stats int) attnKernel {
			return attnKernel{entryOf(fmt.Sprintf("flash%s%s_%s_%d", more, name, typ, width)), owns, uint32(2*(own*owns+4*tile)*(width+8) + stats)}
		}
		both[i] = attnKernels{width, drop, caps, least, of("", 128, 1, 0), of("_dq", 64*dq, 2, 0), of("_dkv", 64*dkv, 2, 16*tile)}
	}
	return both
}

// wideKernels returns kernels whose tiles of 32 positions take the place of what a block owns in
// memory. In the backward pass 8 or 4 warps give others 16 float32 a thread.
func wideKernels(width int) (both [2]attnKernels) {
	for i, typ := range [...]string{"bf16", "f16"} {
		of := func(name string, owns, given, stats int) attnKernel {
			return attnKernel{entryOf(fmt.Sprintf("flash%s_%s_%d", name, typ, width)), owns, uint32(2*128*(width+8) + 2048*given + stats)}
		}
		both[i] = attnKernels{width, false, true, MMA, of("", 128, 0, 0), of("_dq", 64, 8, 0), of("_dkv", 64, 4, 512)}
	}
	return both
}

// wgmmaKernels returns kernels whose blocks own 64 positions for each group of four warps, and iterate
// over tiles of 64: three of keys and values are in memory, or two of queries, with two float32 for each.
func wgmmaKernels(width, forward, dq, dkv int) (both [2]attnKernels) {
	for i, typ := range [...]string{"bf16", "f16"} {
		of := func(name string, groups, own, tiles, stats int) attnKernel {
			return attnKernel{entryOf(fmt.Sprintf("wgmma%s_%s_%d", name, typ, width)), 64 * groups, uint32(128*width*(groups*own+tiles) + stats)}
		}
		both[i] = attnKernels{width, false, false, WGMMA, of("", forward, 1, 6, 0), of("_dq", dq, 2, 6, 0), of("_dkv", dkv, 2, 4, 1024)}
	}
	return both
}

// Shared returns the maximum dynamic shared memory, in bytes, of the kernels that use any. Above 48
// KiB it must be announced to the driver.
func Shared() map[*Kernel]uint32 {
	most := map[*Kernel]uint32{}
	for _, s := range allAttention() {
		for _, k := range [...]attnKernel{s.forward, s.dq, s.dkv} {
			most[k.entry.kernel()] = k.shared
		}
	}
	for _, s := range onGroups {
		for _, e := range [...]*entry{s.nt, s.nn, s.tn} {
			most[e.kernel()] = groupShared
		}
	}
	return most
}

// kernelsFor returns the kernels for these operands: tensor cores multiply one 16-bit type in rows
// aligned to 16 bytes, and their kernels do not scale scores by 0 or less.
func kernelsFor(c Choice, a *device.Attn, operands ...*device.Mat) *attnKernels {
	if a.D > MaxAttn {
		panic(fmt.Sprintf("cuda: attention with heads of width %d; kernels have up to %d", a.D, MaxAttn))
	}
	typ := operands[0].Buf.Type
	return kernelsOf(c, typ, a, a.Scale > 0 && lie(typ, operands...))
}

// lie reports whether matrices have type typ and the layout that tensor cores require.
func lie(typ device.DType, ms ...*device.Mat) bool {
	for _, m := range ms {
		if m.Buf.Type != typ || m.Ld%8 != 0 || uintptr(m.Buf.Ptr)%16 != 0 {
			return false
		}
	}
	return true
}

// ForHeads returns the family used for attention of a type, assuming the operand layout of our
// models.
func ForHeads(c Choice, typ device.DType, a *device.Attn) *Family {
	return kernelsOf(c, typ, a, true).forward.entry.kernel().Family
}

// kernelsOf returns the kernels for heads of a type. fits reports whether the operands suit
// tensor cores.
func kernelsOf(c Choice, typ device.DType, a *device.Attn, fits bool) *attnKernels {
	fits = fits && a.D%8 == 0 && (typ == device.BF16 || typ == device.F16)
	for i := range onTensorCores {
		s := &onTensorCores[i]
		if fits && c >= s[0].least && a.D <= s[0].width && s[0].drop == (a.Drop.Drop > 0) && (s[0].caps || a.Cap == 0) {
			if typ == device.F16 {
				return &s[1]
			}
			return &s[0]
		}
	}
	i := 0
	for a.D > onCores[i].width {
		i++
	}
	return &onCores[i]
}

func wantAttn(op string, a *device.Attn, stats ...*device.Buffer) {
	if a.B < 0 || a.T < 0 || a.Past < 0 || a.Window < 0 || a.KV < 1 || a.KV != a.H && a.H%a.KV != 0 || a.D < 1 || a.B*a.H*a.T > math.MaxInt32 {
		panic(fmt.Sprintf("cuda: %s of B %d, T %d after %d, H %d, KV %d, D %d", op, a.B, a.T, a.Past, a.H, a.KV, a.D))
	}
	wantLen(op, device.F32, a.B*a.H*a.T, stats...)
	if a.Start.N > 0 { // copying it would take as long as half the rest
		device.Starts(op, a.Start, a.B*a.T, 0)
	}
}

// head passes a matrix of heads. Elements are accessed in words if D allows it.
func (l list) head(m *device.Mat, a *device.Attn) list {
	switch {
	case a.D%8 == 0:
		return l.matUpTo(m, 2)
	case a.D%4 == 0:
		return l.matUpTo(m, 1)
	}
	return l.matUpTo(m, 0)
}

// attn passes attention.cu's Attn, or with drop its Dropping.
func (l list) attn(a *device.Attn, drop bool) list {
	two := func(low, high int) uint64 { return uint64(uint32(low)) | uint64(high)<<32 }
	bytes := 48
	if drop {
		bytes += dropBytes
	}
	to := l.slot(bytes)
	put64(to, begins(&a.Start))
	put64(unsafe.Add(to, 8), two(a.T, a.Past+a.T))
	put64(unsafe.Add(to, 16), two(a.H, a.KV))
	put64(unsafe.Add(to, 24), two(a.D, a.Past))
	put64(unsafe.Add(to, 32), two(reach(a), int(math.Float32bits(a.Scale))))
	put32(unsafe.Add(to, 40), math.Float32bits(a.Cap))
	if drop {
		putDrop(unsafe.Add(to, 48), a.Drop)
	}
	return l.then()
}

// reach returns the first key in the window of query 0; see attention.cu's Attn.
func reach(a *device.Attn) int {
	if a.Window == 0 {
		return -1 << 30
	}
	return a.Past - a.Window + 1
}

// capFlops is the number of operations per score or logit for a soft cap, slopeFlops for its
// derivative; see capped and cap_slope in rt.cuh. dropFlops is the number per weight for dropout:
// an eighth of Philox and of its comparisons.
const (
	capFlops   = 26
	slopeFlops = 4
	dropFlops  = 13
)

// extraFlops returns the operations per score for a cap and dropout, including slope operations
// for the derivative of the cap.
func extraFlops(a *device.Attn, slope int) (flops int) {
	if a.Cap > 0 {
		flops += capFlops + slope
	}
	if a.Drop.Drop > 0 {
		flops += dropFlops
	}
	return flops
}

// pairs returns the number of visible pairs of a query and a key, for costs.
func (o *Ops) pairs(a *device.Attn) int64 {
	if !o.Weigh {
		return 0
	}
	return a.Pairs()
}

// Attention sets o = softmax(Scale q·k)·v, where each position attends to itself and the previous
// ones within the window and its document. lse (B, H, T) float32 receives the log-sum-exp of each
// position's scores. Values at invisible positions must be finite.
func (o *Ops) Attention(out device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	wantAttn("attention", &a, &lse)
	wantMat("attention", a.B*a.T, a.H*a.D, &out, &q)
	wantMat("attention", a.B*a.Keys(), a.KV*a.D, &k, &v)
	ks := kernelsFor(o.Choice, &a, &out, &q, &k, &v)
	s := &ks.forward
	l := o.begin(s.entry).head(&out, &a).ptr(&lse).head(&q, &a).head(&k, &a).head(&v, &a).attn(&a, ks.drop)
	o.call.Shared = s.shared
	cost := o.plus(o.over(0, &out, &q, &k, &v), &lse)
	cost.Flops = o.pairs(&a) * int64(4*a.D+20+extraFlops(&a, 0))
	o.run(l, ceil(a.T, s.owns), a.H, a.B, cost)
}

// deltaRows returns the rows of heads that a warp of attention_delta processes at once.
func deltaRows(width int) int {
	switch {
	case width > 128:
		return 1
	case width > 64:
		return 2
	}
	return 4
}

// AttentionGrad overwrites dq, dk and dv with the gradients of Attention. The gradients of keys
// that no query attends to are 0. delta (B, H, T) float32 is working space.
func (o *Ops) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, out device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	const op = "attention gradient"
	wantAttn(op, &a, &lse, &delta)
	wantMat(op, a.B*a.T, a.H*a.D, &dq, &do, &out, &q)
	wantMat(op, a.B*a.Keys(), a.KV*a.D, &dk, &dv, &k, &v)
	s, pairs, more := kernelsFor(o.Choice, &a, &dq, &do, &q, &k, &v), o.pairs(&a), extraFlops(&a, slopeFlops)
	if !lie(q.Buf.Type, &dk, &dv) && !lie(device.F32, &dk, &dv) {
		s = kernelsOf(o.Choice, q.Buf.Type, &a, false)
	}
	l := o.begin(attentionDeltaKernel).ptr(&delta).head(&do, &a).head(&out, &a).attn(&a, false).i32(a.B)
	o.run(l, rowBlocks(ceil(delta.N, deltaRows(a.D))), 1, 1, o.plus(o.over(2, &do, &out), &delta))

	l = o.begin(s.dkv.entry).head(&dk, &a).head(&dv, &a).head(&do, &a).head(&q, &a).head(&k, &a).head(&v, &a).ptr(&lse).ptr(&delta).attn(&a, s.drop)
	o.call.Shared = s.dkv.shared
	cost := o.plus(o.over(0, &dk, &dv, &do, &q, &k, &v), &lse, &delta)
	cost.Flops = pairs * int64(8*a.D+24+more)
	o.run(l, ceil(a.Keys(), s.dkv.owns), a.KV, a.B, cost)

	l = o.begin(s.dq.entry).head(&dq, &a).head(&do, &a).head(&q, &a).head(&k, &a).head(&v, &a).ptr(&lse).ptr(&delta).attn(&a, s.drop)
	o.call.Shared = s.dq.shared
	cost = o.plus(o.over(0, &dq, &do, &q, &k, &v), &lse, &delta)
	cost.Flops = pairs * int64(6*a.D+24+more)
	o.run(l, ceil(a.T, s.dq.owns), a.H, a.B, cost)
}
