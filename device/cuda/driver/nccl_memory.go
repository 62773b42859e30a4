//go:build cuda

package driver

// #include "nccl.h"
import "C"

import (
	"os"
	"unsafe"
)

// Registering is a way to register memory with NCCL, which then needs no copies through its own
// buffers.
type Registering int

// Libraries since 2.19 register buffers, since 2.27 windows.
const (
	RegistersNothing Registering = C.Z_NCCL_NOTHING
	RegistersBuffers Registering = C.Z_NCCL_BUFFERS
	RegistersWindows Registering = C.Z_NCCL_WINDOWS
)

func (r Registering) String() string {
	return [...]string{"nothing", "buffers", "windows"}[r]
}

// NCCLRegisters returns the kind of memory that the library found by OpenNCCL can register; none with
// ZEROTH_NCCL_REGISTER=0 in the environment.
func NCCLRegisters() Registering {
	if os.Getenv("ZEROTH_NCCL_REGISTER") == "0" {
		return RegistersNothing
	}
	return Registering(C.z_nccl_registers())
}

// AllocNCCL returns GPU memory that NCCL can register. It may allocate more than n bytes: NCCL
// rounds up to the GPU's mapping granularity. FreeNCCL frees it.
func (g *GPU) AllocNCCL(n int64) (unsafe.Pointer, error) {
	var at C.uintptr_t
	if err := (*Comm)(nil).refused(C.z_nccl_alloc(g.ctx, &at, C.size_t(n)), "allocate %d bytes on %v", n, g); err != nil {
		return nil, err
	}
	return pointer(at), nil
}

// FreeNCCL frees memory, which must not be registered anymore.
func (g *GPU) FreeNCCL(at unsafe.Pointer) error {
	return (*Comm)(nil).refused(C.z_nccl_free(g.ctx, address(at)), "free memory of %v", g)
}

// Registration is memory registered with a communicator.
type Registration struct {
	comm *Comm
	h    C.uintptr_t
}

// Register registers n bytes, all of an AllocNCCL. All ranks must do so at the same time, with the
// same size; State reports when it is done, and the error is never ErrInProgress.
func (c *Comm) Register(at unsafe.Pointer, n int64) (Registration, error) {
	r := Registration{comm: c}
	err := c.refused(C.z_nccl_register(c.gpu.ctx, c.h, address(at), C.size_t(n), &r.h), "register %d bytes", n)
	if err == ErrInProgress {
		err = nil
	}
	return r, err
}

// Deregister ends the registration, before the communicator and the memory are freed.
func (r Registration) Deregister() error {
	return r.comm.refused(C.z_nccl_deregister(r.comm.gpu.ctx, r.comm.h, r.h), "deregister memory")
}
