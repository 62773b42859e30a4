package device

import (
	"fmt"
	"unsafe"
)

// Arena allocates memory from one buffer in last-in-first-out order. All work on its memory must be
// issued on one queue: then memory taken again after a Release is reused only by work issued later.
type Arena struct {
	base   Buffer
	size   int // bytes
	used   int // bytes
	peak   int // bytes
	notify func(what string, height int)
}

// arenaAlign is the alignment in bytes of all allocations.
const arenaAlign = 64

// NewArena allocates from base, which the caller keeps and frees.
func NewArena(base Buffer) *Arena { return &Arena{base: base, size: base.Bytes()} }

// Listen calls f after each change with the height in bytes and the purpose of the allocation.
func (a *Arena) Listen(f func(what string, height int)) { a.notify = f }

// Take returns n elements with undefined contents, valid until a Release to an earlier mark.
func (a *Arena) Take(t DType, n int) Buffer { return a.TakeFor("", t, n) }

// TakeFor takes memory like Take and names its purpose for listeners.
func (a *Arena) TakeFor(what string, t DType, n int) Buffer {
	b := Buffer{Type: t, Host: a.base.Host, Use: a.base.Use, N: n, Ptr: a.base.Ptr}
	top := a.used + (b.Bytes()+arenaAlign-1)/arenaAlign*arenaAlign
	if top > a.size {
		panic(fmt.Sprintf("device: arena of %d bytes needs %d", a.size, top))
	}
	if n > 0 && b.Ptr != nil {
		b.Ptr = unsafe.Add(b.Ptr, a.used)
	}
	a.used = top
	a.peak = max(a.peak, a.used)
	if a.notify != nil {
		a.notify(what, a.used)
	}
	return b
}

// Keep takes memory like Take; see nn.Scratch.
func (a *Arena) Keep(t DType, n int) Buffer { return a.Take(t, n) }

// Taken returns everything taken, as elements of the type of the arena's own buffer.
func (a *Arena) Taken() Buffer { return a.base.Slice(0, a.used/a.base.Type.Size()) }

// Mark returns the current height in bytes.
func (a *Arena) Mark() int { return a.used }

// Release frees everything taken since the mark.
func (a *Arena) Release(to int) {
	if to < 0 || to > a.used {
		panic(fmt.Sprintf("device: arena released to %d of %d bytes", to, a.used))
	}
	a.used = to
	if a.notify != nil {
		a.notify("", to)
	}
}

// Peak returns the maximum height so far in bytes.
func (a *Arena) Peak() int { return a.peak }
