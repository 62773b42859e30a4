package setup

import (
	"fmt"
	"slices"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda/kernel"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/zero"
)

// Backend is a kind of device for ranks to compute on. Its properties are also valid on machines
// without such a device, so that they can plan for it.
type Backend interface {
	Name() string
	// HostApart reports whether the host cannot address the device's memory.
	HostApart() bool
	// Workspace returns the bytes that a device allocates for kernels of the given sizes on
	// workers and queues.
	Workspace(workers, queues int, s device.Sizes) int64
	// Open opens a rank's device and allocates its work space. The budget bounds the bytes it
	// allocates; 0 is no bound.
	Open(rank, workers int, s device.Sizes, budget int64) (Device, error)
	// OpenHost opens a rank's host memory if it is accounted separately from the device's. Its
	// queues run updates on the given number of workers.
	OpenHost(rank, workers int) (Device, error)
	// DeviceCopies reports whether the queues that copy between device and host belong to the
	// device, not to the host.
	DeviceCopies() bool
}

// Device is the memory and queues of a rank. Close queues first.
type Device interface {
	device.Device
	NewQueue(role QueueRole) Queue
	Close()
}

// Queue is a queue with all operations that training issues.
type Queue interface {
	zero.Compute
	zero.Update
	AddTo(y, a, b device.Buffer)
	// Trace calls f after each later task, from any goroutine but never concurrently. A nil f
	// stops it. The queue must be idle.
	Trace(f func(device.Span))
	// Close waits for the issued work and closes the queue.
	Close()
}

// kind returns the backend that the job asks for, only to query its properties.
func kind(c *spec.Job) Backend {
	if c.On() == "cuda" {
		return CUDA{}
	}
	return CPU{}
}

// of returns the backend that opens the job's ranks.
func of(c *Job) Backend {
	switch {
	case c.backend != nil:
		return c.backend
	case c.On() == "cuda":
		return newCUDA(c)
	}
	return CPU{}
}

// For returns the backend for one rank of a model, given values of the job's keys device and
// parallel.attention; empty is auto.
func For(device, attention string, m hf.Model) (Backend, error) {
	b := CUDA{at: collective.Placement{Local: []int{0}, HostRanks: 1}, model: m, attention: kernel.Choice(config.AttentionLevel(attention))}
	err := b.Available()
	switch onCPU := device == "cpu" || device != "cuda" && err != nil; {
	case onCPU && b.attention > 0:
		return nil, input.BadInput(fmt.Errorf("attention %s: its kernels are for GPUs, but the model computes on the CPU; want auto, or device cuda", attention))
	case onCPU:
		return CPU{}, nil
	case err != nil:
		return nil, input.BadInput(fmt.Errorf("device cuda: %w", err))
	}
	return b, nil
}

// Ready returns an error that names what is missing if the job's ranks cannot be opened here.
func Ready(c *Job) error {
	if c.On() != "cuda" {
		if c.Shadow {
			return input.BadInput(fmt.Errorf("--shadow compares a GPU's operations with the CPU's, but this job computes on the CPU (%v: device: %s); omit --shadow, or use --set device=cuda", c.Position("device"), c.Device))
		}
		return nil
	}
	b := newCUDA(c)
	err := b.Available()
	if err == nil && c.At.NCCL && c.alone() {
		err = b.canNCCL()
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("%v: device: cuda: %w; or train on the processors with --set device=cpu", c.Position("device"), err))
	}
	return nil
}

// CPU is the Backend for this machine's processors.
type CPU struct{}

// Name returns the value of the job's key device.
func (CPU) Name() string { return "cpu" }

// HostApart returns false, except under the build tag separate.
func (CPU) HostApart() bool { return cpu.Separate }

// Workspace returns cpu.Workspace.
func (CPU) Workspace(workers, queues int, s device.Sizes) int64 {
	return cpu.Workspace(workers, queues, s)
}

// Open opens a cpu.Device.
func (CPU) Open(_, workers int, s device.Sizes, budget int64) (Device, error) {
	d := cpu.New(workers)
	d.Budget(budget)
	return reserved(d, s)
}

// OpenHost opens a cpu.Device with host memory under every build tag.
func (CPU) OpenHost(_, workers int) (Device, error) {
	return reserved(cpu.NewHost(workers), device.Sizes{})
}

// DeviceCopies returns false, so that a rank computes while its host copies.
func (CPU) DeviceCopies() bool { return false }

func reserved(d *cpu.Device, s device.Sizes) (Device, error) {
	if err := d.Reserve(s); err != nil {
		d.Close()
		return nil, err
	}
	return processors{d}, nil
}

// processors is a cpu.Device that implements Device.
type processors struct{ *cpu.Device }

func (p processors) NewQueue(role QueueRole) Queue { return p.Device.NewQueue(role.String()) }

// sizes returns the largest operands of the job's kernels.
func sizes(c *spec.Job) device.Sizes {
	s := Sizes(c.Model, spec.Network(c), c.Train.MicroBatch*c.Model.Context)
	s.Type, s.Whole = c.Precision, c.Optimizer.Type == "muon"
	return s
}

// Sizes returns the largest operands of kernels in passes of some rows through a model's network.
func Sizes(m hf.Model, network *nn.Model, rows int) device.Sizes {
	s := device.Sizes{
		Rows: rows, Width: max(m.Width, m.Heads*m.Head()), Vocab: m.Vocab,
		Attn: device.Attn{T: m.Context, D: m.Head(), Cap: float32(m.CapScores)}, Rope: network.Rotated,
	}
	for _, m := range network.Modules {
		for _, p := range m.Params() {
			s.Widest = max(s.Widest, slices.Max(p.Shape))
		}
	}
	if x := m.Experts; x.Count > 0 { // an expert's gate and up are one matrix
		s.Groups, s.Widest = true, max(s.Widest, 2*x.FFN)
	}
	return s
}
