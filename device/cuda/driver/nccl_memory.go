//go:build cuda

package driver

// #include "nccl.h"
import "C"

import (
	"os"
	"unsafe"
)

// Registering is how memory can be made known to NCCL, so that it needs no copies of its
// own.
type Registering int

// What there is: of libraries since 2.19 buffers, since 2.27 windows.
const (
	RegistersNothing Registering = C.Z_NCCL_NOTHING
	RegistersBuffers Registering = C.Z_NCCL_BUFFERS
	RegistersWindows Registering = C.Z_NCCL_WINDOWS
)

func (r Registering) String() string {
	return [...]string{"nothing", "buffers", "windows"}[r]
}

// NCCLRegisters is what the library that OpenNCCL has found can register; nothing with
// ZEROTH_NCCL_REGISTER=0 in the environment.
func NCCLRegisters() Registering {
	if os.Getenv("ZEROTH_NCCL_REGISTER") == "0" {
		return RegistersNothing
	}
	return Registering(C.z_nccl_registers())
}

// AllocNCCL is memory of the GPU that NCCL can register, which may take more than n bytes
// of it: NCCL rounds to what the GPU maps at once. FreeNCCL gives it back.
func (g *GPU) AllocNCCL(n int64) (unsafe.Pointer, error) {
	var at C.uintptr_t
	if err := (*Comm)(nil).refused(C.z_nccl_alloc(g.ctx, &at, C.size_t(n)), "allocate %d bytes on %v", n, g); err != nil {
		return nil, err
	}
	return pointer(at), nil
}

// FreeNCCL gives memory back, which no communicator knows any more.
func (g *GPU) FreeNCCL(at unsafe.Pointer) error {
	return (*Comm)(nil).refused(C.z_nccl_free(g.ctx, address(at)), "free memory of %v", g)
}

// Registration is memory that a communicator knows.
type Registration struct {
	comm *Comm
	h    C.uintptr_t
}

// Register makes n bytes known, all that AllocNCCL gave. All ranks do so at once, with as
// many; State tells when it is done, and the error is not ErrInProgress.
func (c *Comm) Register(at unsafe.Pointer, n int64) (Registration, error) {
	r := Registration{comm: c}
	err := c.refused(C.z_nccl_register(c.gpu.ctx, c.h, address(at), C.size_t(n), &r.h), "register %d bytes", n)
	if err == ErrInProgress {
		err = nil
	}
	return r, err
}

// Deregister ends it, before the communicator and the memory do.
func (r Registration) Deregister() error {
	return r.comm.refused(C.z_nccl_deregister(r.comm.gpu.ctx, r.comm.h, r.h), "deregister memory")
}
