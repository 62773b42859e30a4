package kernel

import (
	"fmt"

	"zeroth/device"
)

// Ops implements the operations of nn.Ops except MatMul, those of optim.Ops and of zero's queues,
// and those of collectives between ranks that share memory. They behave as described in package
// nn and panic where package cpu panics, except that an id or a target outside the vocabulary
// ends the GPU's context. Sizes must be below 2^31.
//
// Ops must be used from one goroutine. It allocates nothing.
type Ops struct {
	To     Launcher
	Work   device.Buffer // (WorkLen) float32, for sums over columns
	Weigh  bool          // calls include their Cost, which makes a launch a sixth slower
	Choice               // of attention's kernels

	call  Call
	joins bool   // AdamW waits for its neighbours
	adam  joined // what has waited
}

// begin starts a call of a kernel; its parameters follow.
func (o *Ops) begin(e *entry) list {
	if o.adam.runs > 0 {
		o.launchJoined()
	}
	k := e.kernel()
	o.call.Kernel, o.call.Shared = k, 0
	return list{&o.call, &k.Params[0]}
}

// run launches the call, whose parameters must be complete, with x, y and z blocks.
func (o *Ops) run(l list, x, y, z int, cost Cost) {
	if l.p.Bytes != 0 {
		panic(fmt.Sprintf("kernel: parameters of %s are missing, from that of %d bytes at %d on", o.call.Kernel.Name, l.p.Bytes, l.p.Offset))
	}
	if x < 1 || y < 1 || z < 1 {
		return
	}
	if x > 1<<31-1 || y > 65535 || z > 65535 {
		panic(fmt.Sprintf("kernel: %s on %d×%d×%d blocks; a GPU has 2147483647×65535×65535", o.call.Kernel.Name, x, y, z))
	}
	o.call.Grid = [3]uint32{uint32(x), uint32(y), uint32(z)}
	if o.Weigh {
		o.call.Cost = cost
	}
	o.To.Launch(&o.call)
}

// mostBlocks is enough for every GPU. Blocks loop over any further work.
const mostBlocks = 1 << 14

// blocks returns the number of blocks for n elements, with each elements per thread and
// iteration.
func blocks(n, each int) int { return min(ceil(n, each*threads), mostBlocks) }

// rowBlocks returns the number of blocks for rows, one per warp.
func rowBlocks(rows int) int { return min(ceil(rows, threads/32), mostBlocks) }

func ceil(a, b int) int { return (a + b - 1) / b }

// passes returns the cost of reading or writing each buffer once, with flops operations per
// element of the first.
func (o *Ops) passes(flops int, bs ...*device.Buffer) (c Cost) {
	if !o.Weigh {
		return c
	}
	c.Flops = int64(flops) * int64(bs[0].N)
	return o.plus(c, bs...)
}

// over returns the cost of reading or writing each matrix once, with flops operations per element
// of the first.
func (o *Ops) over(flops int, ms ...*device.Mat) (c Cost) {
	if !o.Weigh {
		return c
	}
	for _, m := range ms {
		c.Bytes += int64(m.Rows) * int64(m.Cols) * int64(m.Buf.Type.Size())
	}
	c.Flops = int64(flops) * int64(ms[0].Rows) * int64(ms[0].Cols)
	return c
}

// plus adds the bytes of buffers to a cost.
func (o *Ops) plus(c Cost, bs ...*device.Buffer) Cost {
	if !o.Weigh {
		return c
	}
	for _, b := range bs {
		c.Bytes += int64(b.Bytes())
	}
	return c
}

// wantMat panics unless the matrices are (rows, cols), of a float type, not transposed, and within
// their buffers.
func wantMat(op string, rows, cols int, ms ...*device.Mat) {
	for _, m := range ms {
		wantFloat(op, &m.Buf)
		if m.Trans || m.Rows != rows || m.Cols != cols || m.Ld < cols || rows > 0 && (rows-1)*m.Ld+cols > m.Buf.N {
			panic(fmt.Sprintf("cuda: %s: matrix (%d, %d), rows %d apart in %d elements, transposed: %v, want (%d, %d)",
				op, m.Rows, m.Cols, m.Ld, m.Buf.N, m.Trans, rows, cols))
		}
	}
}

// wantVec panics unless the buffers have n elements of a float type.
func wantVec(op string, n int, bs ...*device.Buffer) {
	for _, b := range bs {
		wantFloat(op, b)
		if b.N != n {
			panic(fmt.Sprintf("cuda: %s: %d elements, want %d", op, b.N, n))
		}
	}
}

// wantLen panics unless the buffers have n elements of type t.
func wantLen(op string, t device.DType, n int, bs ...*device.Buffer) {
	for _, b := range bs {
		if b.Type != t || b.N != n {
			panic(fmt.Sprintf("cuda: %s: %d elements of %v, want %d of %v", op, b.N, b.Type, n, t))
		}
	}
}

func wantFloat(op string, b *device.Buffer) {
	if b.Type > device.F16 {
		panic(fmt.Sprintf("cuda: %s: %v elements, want fp32, bf16 or fp16", op, b.Type))
	}
}
