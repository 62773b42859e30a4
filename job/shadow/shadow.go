// Package shadow repeats every operation of a GPU's queue on the CPU's kernels, with the operands
// of the GPU, and stops at the first result that differs by more than the kernel's tests allow. It
// finds the one wrong kernel of a run: an earlier wrong result does not affect later comparisons,
// because both sides start from the GPU's data.
//
// An operation is a function of the kernels that compute it and of a view of its operands. A first
// call, on kernels that do nothing, records the memory it uses, which is then fetched. The second
// call runs on the GPU, and the third on the CPU with the fetched memory. Operands that overlap on
// the GPU overlap on the host, too.
//
// Copies, collectives and queues that wait for the host are not shadowed.
package shadow

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/dry"
	"zeroth/zero"
)

// Kernels contains all operations that training issues on a queue.
type Kernels interface {
	zero.Compute
	zero.Update
}

// Inner is a GPU queue.
type Inner interface {
	Kernels
	collective.StreamQueue
	Name() string
	Trace(f func(device.Span))
	Close()
}

// CPU is the host queue whose results are the reference.
type CPU interface {
	Kernels
	Close()
}

// Queue implements Kernels. It runs each operation on Inner and compares the result with the
// CPU's. It belongs to one goroutine, which waits for each operation.
type Queue struct {
	Inner
	cpu  CPU
	host device.Device
	mem  [2]device.Buffer
	over error // the first difference, or error of the CPU's queue
}

// New wraps a GPU queue. host provides memory for the CPU's queue and for copies. Close closes
// both queues.
func New(gpu Inner, cpu CPU, host device.Device) *Queue {
	return &Queue{Inner: gpu, cpu: cpu, host: host}
}

// Unwrap returns the GPU's queue for communicators.
func (q *Queue) Unwrap() device.Queue { return q.Inner }

// Close closes both queues and frees the memory for copies.
func (q *Queue) Close() {
	q.Inner.Close()
	q.cpu.Close()
	for _, m := range q.mem {
		q.host.Free(m)
	}
}

// view maps operands to memory: the GPU's, while blocks are recorded and afterwards, or the
// host's.
type view struct {
	noting bool
	host   bool
	blocks []block
	shapes []string
}

// block is GPU memory that contains operands, and its copies on the host.
type block struct {
	begin, end uintptr // of the GPU
	host       bool    // already host memory
	at         [2]unsafe.Pointer
}

// buf returns the view of a buffer.
func (v *view) buf(b device.Buffer) device.Buffer {
	v.note(b, fmt.Sprintf("(%d) %v", b.N, b.Type))
	return v.moved(b)
}

// mat returns the view of a matrix.
func (v *view) mat(m device.Mat) device.Mat {
	v.note(m.Buf, fmt.Sprintf("(%d,%d) %v", m.Rows, m.Cols, m.Buf.Type))
	m.Buf = v.moved(m.Buf)
	return m
}

func (v *view) note(b device.Buffer, shape string) {
	if !v.noting || b.N == 0 {
		return
	}
	begin := uintptr(b.Ptr)
	v.blocks = append(v.blocks, block{begin: begin, end: begin + uintptr(b.Bytes()), host: b.Host})
	v.shapes = append(v.shapes, shape)
}

func (v *view) moved(b device.Buffer) device.Buffer {
	if v.host && b.N > 0 {
		b = v.in(0, b)
	}
	return b
}

// in returns a buffer's copy: the CPU's (0) or the GPU's result (1).
func (v *view) in(side int, b device.Buffer) device.Buffer {
	i := slices.IndexFunc(v.blocks, func(k block) bool { return k.begin <= uintptr(b.Ptr) && uintptr(b.Ptr) < k.end })
	k := &v.blocks[i]
	b.Ptr, b.Host = unsafe.Add(k.at[side], uintptr(b.Ptr)-k.begin), true
	return b
}

// merge sorts blocks by address and merges those that touch.
func (v *view) merge() (bytes uintptr) {
	slices.SortFunc(v.blocks, func(a, b block) int {
		if a.begin < b.begin {
			return -1
		}
		return 1
	})
	all := v.blocks[:0]
	for _, b := range v.blocks {
		if last := len(all) - 1; last >= 0 && b.begin <= all[last].end {
			all[last].end = max(all[last].end, b.end)
		} else {
			all = append(all, b)
		}
	}
	v.blocks = all
	for _, b := range all {
		bytes += room(b)
	}
	return bytes
}

// align is the alignment that kernels may depend on. Copies have the same offset from a multiple
// of it as on the GPU.
const align = 64

func room(b block) uintptr { return (b.end - b.begin + 2*align - 1) / align * align }

// run issues an operation on both sides and compares the results. It does nothing once the queue
// has failed or a result was wrong.
func (q *Queue) run(o operation) {
	v := &view{noting: true}
	o.issue(dry.Queue{}, v)
	v.noting = false
	if q.over != nil || len(v.blocks) == 0 || q.Inner.Wait() != nil {
		return
	}
	if q.over = q.both(o, v); q.over != nil {
		q.Inner.Do(func() error { return q.over })
	}
}

func (q *Queue) both(o operation, v *view) error {
	if err := q.allocate(v); err != nil {
		return err
	}
	q.fetch(v, 0)
	o.issue(q.Inner, v)
	q.fetch(v, 1)
	if q.Inner.Wait() != nil {
		return nil // the queue reports the error
	}
	v.host = true
	o.issue(q.cpu, v)
	if err := q.cpu.Wait(); err != nil {
		return fmt.Errorf("shadow: %s, on the CPU: %w", o.name, err)
	}
	if err := q.compare(o, v); err != nil {
		return fmt.Errorf("shadow: %s of %s: %w", o.name, strings.Join(v.shapes, ", "), err)
	}
	return nil
}

// allocate assigns host memory to each block on both sides.
func (q *Queue) allocate(v *view) error {
	need := int(v.merge() + align)
	for side := range q.mem {
		m := &q.mem[side]
		if m.Bytes() < need {
			q.host.Free(*m)
			*m = device.Buffer{}
			b, err := q.host.Alloc(device.BF16, need/2+1, device.Workspace)
			if err != nil {
				return fmt.Errorf("shadow: host memory for operands: %w", err)
			}
			*m = b
		}
		at := m.Ptr
		for i := range v.blocks {
			b := &v.blocks[i]
			b.at[side] = unsafe.Add(at, (b.begin-uintptr(at))%align)
			at = unsafe.Add(at, room(*b))
		}
	}
	return nil
}

// fetch copies all blocks to a side. Elements have at least two bytes.
func (q *Queue) fetch(v *view, side int) {
	for _, b := range v.blocks {
		q.Inner.Copy(b.buffer(b.at[side], true), b.buffer(gpuPointer(b.begin), b.host))
	}
}

func (b block) buffer(at unsafe.Pointer, host bool) device.Buffer {
	return device.Buffer{Type: device.BF16, Host: host, N: int(b.end-b.begin) / 2, Ptr: at}
}

// gpuPointer converts a GPU address, which the garbage collector never manages.
func gpuPointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// compare checks results against their bounds, and requires all other memory of the operands to be
// equal.
func (q *Queue) compare(o operation, v *view) error {
	for _, r := range o.results {
		if r.mat.Buf.N == 0 {
			continue
		}
		got, want := r.mat, r.mat
		got.Buf, want.Buf = v.in(1, r.mat.Buf), v.in(0, r.mat.Buf)
		if err := boundOf(o.name, r).compare(r.what, got, want); err != nil {
			return err
		}
		settle(got, want)
	}
	for _, b := range v.blocks {
		want, got := b.buffer(b.at[0], true).Raw(), b.buffer(b.at[1], true).Raw()
		if !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			return fmt.Errorf("the GPU changed memory of an operand that is not a result: byte %d of a piece of %d", i, len(got))
		}
	}
	return nil
}

// settle overwrites got's elements by want's.
func settle(got, want device.Mat) {
	if got.Buf.Type.Coded() || got.Rows == 1 {
		copy(got.Buf.Raw(), want.Buf.Raw())
		return
	}
	for i := range got.Rows {
		copy(got.Buf.Slice(i*got.Ld, i*got.Ld+got.Cols).Raw(), want.Buf.Slice(i*want.Ld, i*want.Ld+want.Cols).Raw())
	}
}
