package setup

import (
	"fmt"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/zero"
)

// Backend is a kind of device that ranks compute on. What it says of itself
// holds on machines without such a device, too, so that plans can be made there.
type Backend interface {
	Name() string
	// HostApart says that the host cannot address the device's memory.
	HostApart() bool
	// Workspace is the bytes that a device of so many workers and queues takes for
	// kernels of the given sizes.
	Workspace(workers, queues int, s device.Sizes) int64
	// Open opens a rank's device with its work space taken. The budget is the most
	// bytes it gives out; 0 is no bound.
	Open(rank, workers int, s device.Sizes, budget int64) (Device, error)
	// OpenHost opens a rank's host memory, where it is accounted apart from the
	// device's. The kernels of its queues are updates, on so many workers.
	OpenHost(rank, workers int) (Device, error)
	// DeviceCopies says that the queues which copy between the two are the device's,
	// not the host's.
	DeviceCopies() bool
}

// Device is memory and queues of a rank. Queues are closed before it.
type Device interface {
	device.Device
	NewQueue(name string) Queue
	Close()
}

// Queue is a queue with all that training issues on one.
type Queue interface {
	zero.Compute
	zero.Update
	AddTo(y, a, b device.Buffer)
	// Name is what NewQueue called it.
	Name() string
	// Trace calls f after each task from now on, from wherever the queue likes, one
	// call at a time, or stops if f is nil. It must be called while the queue is
	// idle.
	Trace(f func(device.Span))
	// Close waits for the issued work and ends the queue.
	Close()
}

// kind is the backend that the job asks for, of which only what it says of itself holds.
func kind(c *config.Config) Backend {
	if c.On() == "cuda" {
		return CUDA{}
	}
	return CPU{}
}

// of is the backend that the job's ranks are opened by.
func of(c *Job) Backend {
	if c.On() == "cuda" {
		return newCUDA(c)
	}
	return CPU{}
}

// For is the backend of one rank of a model, by a value of the job's key device; empty
// is auto.
func For(device string, m hf.Model) (Backend, error) {
	b := CUDA{at: collective.Placement{Local: []int{0}, HostRanks: 1}, model: m}
	err := b.Available()
	switch {
	case device == "cpu", device != "cuda" && err != nil:
		return CPU{}, nil
	case err != nil:
		return nil, input.BadInput(fmt.Errorf("device cuda: %w", err))
	}
	return b, nil
}

// Ready is nil where the job's ranks can be opened here, and what is missing else.
func Ready(c *Job) error {
	if c.On() != "cuda" {
		if c.Shadow {
			return input.BadInput(fmt.Errorf("--shadow compares a GPU's operations with the CPU's, and this job computes on the CPU (%v: device: %s); leave --shadow out, or give the job a GPU with --set device=cuda", c.Place("device"), c.Device))
		}
		return nil
	}
	b := newCUDA(c)
	err := b.Available()
	if err == nil && c.At.NCCL && c.alone() {
		err = b.canNCCL()
	}
	if err != nil {
		return input.BadInput(fmt.Errorf("%v: device: cuda: %w; or train on the processors with --set device=cpu", c.Place("device"), err))
	}
	return nil
}

// CPU is the Backend of this machine's processors.
type CPU struct{}

// Name is that of the job's key device.
func (CPU) Name() string { return "cpu" }

// HostApart is false, but under the build tag separate.
func (CPU) HostApart() bool { return cpu.Separate }

// Workspace is cpu.Workspace.
func (CPU) Workspace(workers, queues int, s device.Sizes) int64 {
	return cpu.Workspace(workers, queues, s)
}

// Open opens a cpu.Device.
func (CPU) Open(_, workers int, s device.Sizes, budget int64) (Device, error) {
	d := cpu.New(workers)
	d.Budget(budget)
	return reserved(d, s)
}

// OpenHost opens one whose memory is the host's under every build tag.
func (CPU) OpenHost(_, workers int) (Device, error) {
	return reserved(cpu.NewHost(workers), device.Sizes{})
}

// DeviceCopies is false: a rank computes while its host copies.
func (CPU) DeviceCopies() bool { return false }

func reserved(d *cpu.Device, s device.Sizes) (Device, error) {
	if err := d.Reserve(s); err != nil {
		d.Close()
		return nil, err
	}
	return processors{d}, nil
}

// processors is a cpu.Device whose queues are Queues.
type processors struct{ *cpu.Device }

func (p processors) NewQueue(name string) Queue { return p.Device.NewQueue(name) }

// sizes are the largest operands of the job's kernels.
func sizes(c *config.Config) device.Sizes {
	m := c.Model
	s := device.Sizes{
		Type: c.Precision, Rows: c.Train.MicroBatch * m.Context, Width: max(m.Width, m.Heads*m.Head()), Vocab: m.Vocab,
		Attn: device.Attn{T: m.Context, D: m.Head(), Cap: float32(m.CapScores)}, Rope: m.Family == "llama", Whole: c.Optimizer.Type == "muon",
	}
	for _, m := range config.Network(c).Modules {
		for _, p := range m.Params() {
			s.Widest = max(s.Widest, slices.Max(p.Shape))
		}
	}
	return s
}
