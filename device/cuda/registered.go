//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
)

// Registered memory. What NCCL knows of it sends and receives where it is, without
// copies by way of its own buffers. A plan's memory lives as long as the job, so it is
// registered once: what collectives move is one piece, that NCCL allocates, and each
// communicator registers it whole. In one piece, because NCCL rounds what it allocates up
// to what the GPU maps at once, 512 MiB where there are multicasts.

// moved are the categories of which collectives read or write.
var moved = [...]device.Use{device.Params, device.Gathered, device.Grads, device.UnitGrads, device.Updates, device.Bounce}

// knownPage is what the size of registered memory is a multiple of.
const knownPage = 2 << 20

// ReserveKnown is ReservePlan, with what collectives move where NCCL can register it, if
// the library can.
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
		return fmt.Errorf("what collectives move, %d bytes: %w; ZEROTH_NCCL_REGISTER=0 does without", size, err)
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

// Register makes the device's memory that can be known to the communicator, all ranks at
// once. It gives up when stop says why.
func (c *Communicator) Register(stop func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dev.known == nil {
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
		return fmt.Errorf("%w; ZEROTH_NCCL_REGISTER=0 does without", err)
	}
	return nil
}

// Registered is what the communicator knows, in words; empty if it knows nothing.
func (c *Communicator) Registered() string {
	if len(c.known) == 0 {
		return ""
	}
	return fmt.Sprintf("%d bytes as %v", c.dev.known.size, driver.NCCLRegisters())
}

// forget has the communicator know no memory any more. What it cannot be told, as after
// an error, its end makes so.
func (c *Communicator) forget() {
	for _, r := range c.known {
		_ = r.Deregister()
	}
	c.known = nil
}
