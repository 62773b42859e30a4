package kernel

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"zeroth/device"
)

var (
	fillKernel         = entryOf("fill")
	addKernel          = entryOf("add")
	scaleKernel        = entryOf("scale")
	addRowKernel       = entryOf("add_row")
	mulKernel          = entryOf("mul")
	addScalarKernel    = entryOf("add_scalar")
	dropoutKernel      = entryOf("dropout")
	activateKernel     = entryOf("activate")
	activateGradKernel = entryOf("activate_grad")
	gateKernel         = entryOf("gate")
	gateGradKernel     = entryOf("gate_grad")
	castKernel         = entryOf("cast")
	cast64Kernel       = entryOf("cast64")
	decodeNF4Kernel    = entryOf("decode_nf4")
	decodeInt8Kernel   = entryOf("decode_int8")
	sumManyKernel      = entryOf("sum_many")
	sumMany64Kernel    = entryOf("sum_many64")
	sumPeersKernel     = entryOf("sum_peers")
)

// Zero sets every element of b, of any type, to 0.
func (o *Ops) Zero(b device.Buffer) {
	if b.Type.Size() > 2 { // zero has the same bits in every type
		b = device.Buffer{Type: device.F32, N: b.Bytes() / 4, Ptr: b.Ptr}
	}
	l := o.begin(fillKernel).vec(&b).i64(b.N).f32(0)
	o.run(l, blocks(b.N, 8), 1, 1, o.passes(0, &b))
}

// Cast sets dst[i] = src[i], any float type to any, rounded once to nearest even.
func (o *Ops) Cast(dst, src device.Buffer) {
	if dst.N != src.N || dst.Type == device.I32 || dst.Type == device.I64 || src.Type == device.I32 || src.Type == device.I64 {
		panic(fmt.Sprintf("cuda: cast of %d %v to %d %v", src.N, src.Type, dst.N, dst.Type))
	}
	k, each := castKernel, 8
	if dst.Type == device.F64 || src.Type == device.F64 {
		k, each = cast64Kernel, 1
	}
	l := o.begin(k).vec(&dst).vec(&src).i64(dst.N)
	o.run(l, blocks(dst.N, each), 1, 1, o.passes(1, &dst, &src))
}

// nf4 contains the values of the codes of elements, and of magnitudes.
var nf4 = sync.OnceValue(func() []float32 {
	elements, magnitudes := device.NF4Values()
	return slices.Concat(elements[:], magnitudes[:])
})

// Decode sets dst, a matrix of any float type without gaps, to the elements of a coded one; see
// device.Code.
func (o *Ops) Decode(dst device.Mat, codes device.Buffer, code device.Code) {
	wantVec("decode", dst.Rows*dst.Cols, &dst.Buf)
	wantLen("decode", device.I32, code.Words(dst.Rows, dst.Cols), &codes)
	if code == device.Int8 {
		l := o.begin(decodeInt8Kernel).mat(&dst).ptr(&codes).i32(dst.Rows).i32(dst.Cols)
		o.run(l, rowBlocks(dst.Rows), 1, 1, o.passes(2, &dst.Buf, &codes))
		return
	}
	l := o.begin(decodeNF4Kernel).vec(&dst.Buf).ptr(&codes).i64(dst.Buf.N).floats(nf4()...)
	o.run(l, blocks(dst.Buf.N, 8), 1, 1, o.passes(2, &dst.Buf, &codes))
}

// AddTo sets y = a + b, added in float32; y may be a or b.
func (o *Ops) AddTo(y, a, b device.Buffer) {
	wantVec("add", y.N, &y, &a, &b)
	l := o.begin(addKernel).vec(&y).vec(&a).vec(&b).i64(y.N)
	o.run(l, blocks(y.N, 8), 1, 1, o.passes(1, &y, &a, &b))
}

// Scale multiplies x by s.
func (o *Ops) Scale(x device.Buffer, s float32) {
	wantVec("scale", x.N, &x)
	l := o.begin(scaleKernel).vec(&x).f32(s).i64(x.N)
	o.run(l, blocks(x.N, 8), 1, 1, o.passes(1, &x, &x))
}

// MaxSources is the maximum number of buffers that SumInto adds.
const MaxSources = 128

// SumInto sets dst to the sum of the sources, all of dst's type and length, element by element
// and in order, in float32 rounded once, or in float64 for F64. dst may be one of the sources;
// otherwise it must not overlap them. The result is bit-identical to package cpu's AddUp.
func (o *Ops) SumInto(dst device.Buffer, src []device.Buffer) { o.sum(dst, src, false) }

// SumPeers is SumInto for sources in memory of other GPUs: its few blocks leave the multiprocessors
// to products.
func (o *Ops) SumPeers(dst device.Buffer, src []device.Buffer) { o.sum(dst, src, true) }

// peerBlocks is the number of blocks of SumPeers; NCCL has as many.
const peerBlocks = 32

func (o *Ops) sum(dst device.Buffer, src []device.Buffer, peers bool) {
	if len(src) < 1 || len(src) > MaxSources {
		panic(fmt.Sprintf("cuda: sum of %d buffers, want 1 to %d", len(src), MaxSources))
	}
	k, grid, words := sumManyKernel, blocks(dst.N, 8), 2
	if dst.Type == device.F64 {
		k, grid = sumMany64Kernel, blocks(dst.N, 1)
	} else {
		wantFloat("sum of buffers", &dst)
		if peers {
			k, grid = sumPeersKernel, min(blocks(dst.N, 32), peerBlocks)
		}
	}
	cost := o.passes(len(src)-1, &dst)
	for i := range src {
		b := &src[i]
		wantLen("sum of buffers", dst.Type, dst.N, b)
		words = min(words, aligned(b, 0))
		cost = o.plus(cost, b)
	}
	l := o.begin(k)
	if dst.Type == device.F64 {
		l = l.ptr(&dst)
	} else {
		l = l.matUpTo(&device.Mat{Buf: dst}, words)
	}
	to := l.slot(8 * MaxSources)
	for i := range src {
		put64(unsafe.Add(to, 8*i), begins(&src[i]))
	}
	l = l.then().i32(len(src)).i64(dst.N)
	o.run(l, grid, 1, 1, cost)
}

// AddRow adds v to every row of y or, with set, sets every row to v: a bias for a matrix product
// that does not add it itself.
func (o *Ops) AddRow(y device.Mat, v device.Buffer, set bool) {
	wantMat("add of a row", y.Rows, y.Cols, &y)
	wantVec("add of a row", y.Cols, &v)
	l := o.begin(addRowKernel).mat(&y).vec(&v).i32(y.Rows).i32(y.Cols).flag(set)
	cost := o.over(1, &y)
	if !set {
		cost = o.over(1, &y, &y)
	}
	o.run(l, rowBlocks(y.Rows), 1, 1, o.plus(cost, &v))
}

// Mul sets y = a * b; y may be a or b.
func (o *Ops) Mul(y, a, b device.Buffer) {
	wantVec("multiply", y.N, &y, &a, &b)
	l := o.begin(mulKernel).vec(&y).vec(&a).vec(&b).i64(y.N)
	o.run(l, blocks(y.N, 8), 1, 1, o.passes(1, &y, &a, &b))
}

// AddScalar sets y = x + s; y may be x.
func (o *Ops) AddScalar(y, x device.Buffer, s float32) {
	wantVec("add scalar", y.N, &y, &x)
	l := o.begin(addScalarKernel).vec(&y).vec(&x).f32(s).i64(y.N)
	o.run(l, blocks(y.N, 8), 1, 1, o.passes(1, &y, &x))
}

// Dropout sets y to the kept elements of x, scaled, plus add if that is not empty; y may be x or
// add. The result is bit-identical to package cpu's.
func (o *Ops) Dropout(y, x, add device.Buffer, d device.Dropout) {
	wantVec("dropout", y.N, &y, &x)
	if add.N > 0 {
		wantVec("dropout", y.N, &add)
	}
	d.Rows(y.N)
	l := o.begin(dropoutKernel).vec(&y).vec(&x).vec(&add).i64(y.N)
	putDrop(l.slot(dropBytes), d)
	o.run(l.then().i32(d.First), blocks(y.N, 8), 1, 1, o.plus(o.passes(3, &y, &x), &add))
}

// dropBytes is the size of dropout.cu's Drop, which putDrop writes.
const dropBytes = 32

func putDrop(to unsafe.Pointer, d device.Dropout) {
	key := d.Key()
	for i, word := range [...]uint32{key[0], key[1], d.Site, d.Drop, uint32(d.Row), uint32(d.Row >> 32), uint32(d.Cols), math.Float32bits(d.Scale())} {
		put32(unsafe.Add(to, 4*i), word)
	}
}

// Activate sets y = f(x); y may be x.
func (o *Ops) Activate(y, x device.Buffer, f device.Activation) {
	wantVec("activation", y.N, &y, &x)
	l := o.begin(activateKernel).vec(&y).vec(&x).i64(y.N).i32(int(f))
	o.run(l, blocks(y.N, 8), 1, 1, o.passes(25, &y, &x))
}

// ActivateGrad sets dx = dy * f'(x); dx may be dy.
func (o *Ops) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	wantVec("activation gradient", dx.N, &dx, &x, &dy)
	l := o.begin(activateGradKernel).vec(&dx).vec(&x).vec(&dy).i64(dx.N).i32(int(f))
	o.run(l, blocks(dx.N, 8), 1, 1, o.passes(36, &dx, &x, &dy))
}

// Gate sets y = f(gate) * up; y may be gate or up.
func (o *Ops) Gate(y, gate, up device.Mat, f device.Activation) {
	wantMat("gate", y.Rows, y.Cols, &y, &gate, &up)
	l := o.begin(gateKernel).mat(&y).mat(&gate).mat(&up).i32(y.Rows).i32(y.Cols).i32(int(f))
	o.run(l, rowBlocks(y.Rows), 1, 1, o.over(20, &y, &gate, &up))
}

// GateGrad sets dgate = dy * up * f'(gate) and dup = dy * f(gate). Each may be any one of dy, gate
// and up.
func (o *Ops) GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation) {
	wantMat("gate gradient", dy.Rows, dy.Cols, &dgate, &dup, &dy, &gate, &up)
	wantApart("gate gradient", &dgate, &dup)
	l := o.begin(gateGradKernel).mat(&dgate).mat(&dup).mat(&dy).mat(&gate).mat(&up).i32(dy.Rows).i32(dy.Cols).i32(int(f))
	o.run(l, rowBlocks(dy.Rows), 1, 1, o.over(28, &dgate, &dup, &dy, &gate, &up))
}

// wantApart panics if two results begin at the same element.
func wantApart(op string, x, y *device.Mat) {
	if x.Buf.Ptr == y.Buf.Ptr && x.Buf.N > 0 && x.Buf.Ptr != nil {
		panic(fmt.Sprintf("cuda: both results of a %s of %d elements into one buffer", op, x.Buf.N))
	}
}
