//go:build cuda

package setup

import (
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
)

// Open opens a rank's share of its GPU.
func (b CUDA) Open(rank, _ int, s device.Sizes, budget int64) (Device, error) {
	on, err := b.ordinals()
	if err != nil {
		return nil, err
	}
	d, err := cuda.Open(b.gpuOf(rank, on))
	if err != nil {
		return nil, err
	}
	d.Budget(budget)
	d.ChooseAttention(b.attention)
	if b.algorithms != nil {
		d.Choose(b.algorithms.Table())
	}
	if !b.at.Staged && !b.at.NCCL {
		err = d.ReachAll(on)
	}
	if err == nil {
		err = d.ReserveWork(s)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return gpu{d, b.at.Staged, b.at.NCCL}, nil
}

// OpenHost opens host memory pinned for the rank's GPU, with the CPU's kernels.
func (b CUDA) OpenHost(rank, workers int) (Device, error) {
	on, err := b.ordinals()
	if err != nil {
		return nil, err
	}
	mem, err := cuda.OpenPinned(b.gpuOf(rank, on))
	if err != nil {
		return nil, err
	}
	d := cpu.NewHostFrom(workers, mem)
	if err := d.Reserve(device.Sizes{}); err != nil {
		d.Close()
		mem.Close()
		return nil, err
	}
	return pinned{processors{d}, mem}, nil
}

// gpu is a cuda.Device that implements Device.
type gpu struct {
	*cuda.Device
	staged bool // collectives go through the host
	nccl   bool // collectives use NCCL
}

// ReservePlan implements planned.
func (g gpu) ReservePlan(plan device.Bytes, allocs int) error {
	if g.nccl {
		return g.Device.ReserveKnown(plan, allocs)
	}
	return g.Device.ReservePlan(plan, allocs)
}

// CommunicatorID implements joins.
func (g gpu) CommunicatorID() ([]byte, error) { return cuda.NewCommunicatorID() }

// Join implements joins.
func (g gpu) Join(id []byte, ranks, rank int, stop func() error) (end, error) {
	c, err := g.Device.Join(id, ranks, rank, stop)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// NewQueue opens a stream. A queue that waits for the host, for offloading or for collectives
// through the host, has a goroutine for that.
func (g gpu) NewQueue(role QueueRole) Queue {
	switch {
	case role.Offloads(), role == Comm && g.staged:
		return g.Device.NewTransfer(role.String())
	case role == Comm, role.IsLink(): // other ranks wait for its results
		return g.Device.NewUrgentQueue(role.String())
	}
	return g.Device.NewQueue(role.String())
}

// pinned is host memory that also closes its pinned allocation.
type pinned struct {
	processors
	mem cuda.Pinned
}

func (p pinned) Close() {
	p.processors.Close()
	p.mem.Close()
}
