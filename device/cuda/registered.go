//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
)

// Registered memory. NCCL sends and receives registered memory directly, without copies through its
// own buffers. A plan's memory lives as long as the job, so it is registered once: everything that
// collectives move is one piece, allocated by NCCL, which each communicator registers as a whole.
// One piece, because NCCL rounds allocations up to the GPU's mapping granularity, 512 MiB with
// multicast.

// moved lists the categories that collectives read or write.
var moved = [...]device.Use{device.Params, device.Gathered, device.Grads, device.UnitGrads, device.Updates, device.Bounce}

// knownPage divides the size of registered memory.
const knownPage = 2 << 20

// ReserveKnown is ReservePlan, with everything that collectives move in memory that NCCL can
// register, if the library supports that.
func (d *Device) ReserveKnown(plan device.Bytes, allocs int) error {
	var size int64
	for _, use := range moved {
		if plan[use] > 0 {
			size += (reserved(plan[use], allocs) + memoryAlign - 1) / memoryAlign * memoryAlign
		}
	}
	if size == 0 || driver.NCCLRegisters() == driver.RegistersNothing {
		return d.ReservePlan(plan, allocs)
	}
	size = (size + knownPage - 1) / knownPage * knownPage
	at, err := d.gpu.AllocNCCL(size)
	if err != nil {
		return fmt.Errorf("memory for collectives, %d bytes: %w; set ZEROTH_NCCL_REGISTER=0 to avoid it", size, err)
	}
	d.known = &reservation{at: at, size: size}
	for _, use := range moved {
		if plan[use] > 0 {
			mine := reserved(plan[use], allocs)
			d.plan[use] = &reservation{at: unsafe.Add(at, d.known.used), size: mine, known: true}
			d.known.used += (mine + memoryAlign - 1) / memoryAlign * memoryAlign
			plan[use] = 0
		}
	}
	return d.ReservePlan(plan, allocs)
}

// Register registers the device's memory with the communicator, on all ranks at the same time. It
// gives up with stop's error. If the ranks' memory is not alike in size, it is registered only as
// buffers: NCCL maps the windows of all ranks of a host with the size of its own (2.28.3,
// symMemoryMapLsaTeam).
func (c *Communicator) Register(alike bool, stop func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dev.known == nil || !alike && driver.NCCLRegisters() == driver.RegistersWindows {
		return nil
	}
	if c.comm == nil {
		return errEnded
	}
	r, err := c.comm.Register(c.dev.known.at, c.dev.known.size)
	if err == nil {
		c.known = append(c.known, r)
		err = c.settled(stop)
	}
	if err != nil {
		return fmt.Errorf("%w; set ZEROTH_NCCL_REGISTER=0 to avoid it", err)
	}
	return nil
}

// Registered describes the memory registered with the communicator; empty if there is none.
func (c *Communicator) Registered() string {
	if len(c.known) == 0 {
		return ""
	}
	return fmt.Sprintf("%d bytes as %v", c.dev.known.size, driver.NCCLRegisters())
}

// forget deregisters all memory. If that fails, for example after an error, the communicator's end
// does so.
func (c *Communicator) forget() {
	for _, r := range c.known {
		_ = r.Deregister()
	}
	c.known = nil
}
