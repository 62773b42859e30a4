package cpu

import (
	"fmt"
	"sync"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Kernels need working space: every worker for its current pieces, and the device for the packed
// blocks of a matrix product and for rotary positions, which its workers share. It is accounted for
// as device.Workspace. Reserve allocates it before the first step; anything beyond is allocated on
// first use and kept.

// sizes are the maximum sizes of kernels' operands.
type sizes device.Sizes

// Workspace returns the bytes that a device with those workers and queues allocates for kernels of
// the given sizes.
func Workspace(workers, queues int, most device.Sizes) int64 {
	s := sizes(most)
	packed, acc := s.products()
	return 4 * int64(packed+acc+s.ropeLen()+(workers-1+queues)*s.scratch())
}

// ropeLen returns the number of floats in the table of rotary positions.
func (s sizes) ropeLen() int {
	if !s.Rope {
		return 0
	}
	return s.Attn.T * s.Attn.D
}

// scratch returns the maximum number of floats a worker needs.
func (s sizes) scratch() int {
	if s == (sizes{}) {
		return max(2*kernel.SquaresAtOnce, kernel.RuleScratch)
	}
	most := s.longest()
	gemm := min(min(kernel.GroupMax, kernel.Ceil(most, 32)*32)*(1+s.words()), kernel.GroupAll+kernel.GroupMax) + kernel.Edge + 2*32*32 + 32*min(kernel.KcF32, kernel.Ceil(most, 8)*8)
	if s.Groups {
		packed, acc := s.blocks(kernel.OwnMax, kernel.OwnMax)
		gemm += packed + acc
	}
	return max(gemm, kernel.RuleScratch, 5*s.Width, s.Vocab, attnScratch(s.Attn))
}

// attnScratch returns at least the floats that attention needs, forward or backward: five (T, D),
// some blocks of positions by D, some of positions by positions, all rounded up to whole registers.
func attnScratch(a device.Attn) int {
	T, D := kernel.Ceil(a.T, 64)*64, kernel.Ceil(a.D, 32)*32
	return 5*T*D + 8*64*D + 4*64*64
}

// products returns the number of floats in the device's blocks: a block of A, and of C if that is
// not float32 and has several blocks of k.
func (s sizes) products() (packed, acc int) {
	if s == (sizes{}) {
		return 0, 0
	}
	return s.blocks(kernel.AMax, kernel.AccMax)
}

func (s sizes) blocks(aMax, accMax int) (packed, acc int) {
	most := s.longest()
	packed = min(aMax, (most+31)*s.words()+kernel.Ceil(most, 4)*kernel.Edge)
	if (s.Type != device.F32 || s.Whole) && most > kernel.KcF32 {
		acc = min(accMax, min(kernel.NcMax, kernel.Ceil(most, 32)*32)*most)
	}
	return packed, acc
}

// longest returns the longest side of a product.
func (s sizes) longest() int { return max(s.Widest, s.Rows) }

// words returns the maximum number of words of k in a block of a product, for any instruction set,
// so that a plan does not depend on the machine.
func (s sizes) words() int {
	n := min(kernel.KcF32, kernel.Ceil(s.longest(), 8)*8)
	if s.Type == device.BF16 || s.Whole {
		n = max(n, min(kernel.KcBF16/2, kernel.Ceil(s.longest(), 32)*16))
	}
	return n
}

// Reserve allocates the working space for kernels of the given sizes. Call it before NewQueue.
func (d *Device) Reserve(most device.Sizes) error {
	s := sizes(most)
	d.scratch = s.scratch()
	packed, acc := s.products()
	err := d.products.grow(packed, acc)
	if err == nil {
		err = d.rope.grow(s.ropeLen())
	}
	for _, h := range d.pool.workers {
		if err == nil {
			err = h.w.grow(d.scratch)
		}
	}
	return err
}

// workspace is a worker with the memory of its scratch.
type workspace struct {
	kernel.Worker
	dev *Device
	mem device.Buffer
}

func newWorkspace(d *Device) *workspace {
	s := &workspace{dev: d}
	s.Rope = &d.rope.RopeTable
	s.More = func(n int) {
		if err := s.grow(n); err != nil {
			panic(fmt.Sprintf("cpu: a kernel's work space: %v", err))
		}
	}
	return s
}

func (s *workspace) grow(n int) (err error) {
	s.mem, err = s.dev.regrow(s.mem, n)
	if err == nil && n > 0 {
		s.Scratch = s.mem.F32()
	}
	return err
}

// regrow replaces a buffer by one of n floats that kernels can address.
func (d *Device) regrow(b device.Buffer, n int) (device.Buffer, error) {
	d.Free(b)
	b, err := d.Alloc(device.F32, n, device.Workspace)
	b.Host = true
	return b, err
}

// products is a device's memory for matrix products, one at a time.
type products struct {
	mu          sync.Mutex // held while a product is computed
	dev         *Device
	packed, acc device.Buffer
	blocks      uint64 // number computed so far
}

// need assigns blocks to g.
func (p *products) need(g *kernel.Gemm) {
	packed, acc := g.Needs()
	if err := p.grow(packed, acc); err != nil {
		panic(fmt.Sprintf("cpu: a product's work space: %v", err))
	}
	if packed > 0 {
		g.Packed = p.packed.F32()
	}
	if acc > 0 {
		g.Acc = p.acc.F32()
	}
}

func (p *products) grow(packed, acc int) (err error) {
	if p.packed.N < packed {
		if p.packed, err = p.dev.regrow(p.packed, packed); err != nil {
			return err
		}
	}
	if p.acc.N < acc {
		p.acc, err = p.dev.regrow(p.acc, acc)
	}
	return err
}
