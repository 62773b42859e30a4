package setup

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/kernel"
	"zeroth/internal/machine"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// CUDA is the Backend for NVIDIA GPUs.
type CUDA struct {
	gpus  []int // of the job; empty: all available ones
	at    collective.Placement
	model hf.Model // of the job

	algorithms *Algorithms // of the job; may be nil
	attention  kernel.Choice
}

// Name returns the value of the job's key device.
func (CUDA) Name() string { return "cuda" }

// HostApart returns true: host memory of a rank is pinned.
func (CUDA) HostApart() bool { return true }

// DeviceCopies returns true: copy engines run concurrently with kernels.
func (CUDA) DeviceCopies() bool { return true }

// Workspace returns cuda.Workspace, which does not depend on workers.
func (CUDA) Workspace(_, _ int, s device.Sizes) int64 { return cuda.Workspace(s) }

// Available returns an error if ranks cannot compute the job's model on its GPUs.
func (b CUDA) Available() error {
	if what := lacks(b.model); what != "" {
		return fmt.Errorf("the model has %s, for which there are no GPU kernels yet", what)
	}
	usable, err := machine.UsableGPUs()
	if err != nil {
		return err
	}
	on, err := choose(b.gpus, b.at.HostRanks, usable)
	for _, g := range usable {
		if slices.Contains(on, g.Ordinal) && !b.attention.RunsOn(g.Major, g.Minor) {
			return fmt.Errorf("attention %s is for GPUs of compute capability 9.0, but %v has %d.%d; want mma or auto", config.Attentions[b.attention], g, g.Major, g.Minor)
		}
	}
	return err
}

// lacks describes what GPUs cannot compute of a model, empty if they can compute all of it.
func lacks(m hf.Model) string {
	if d := m.Head(); d > kernel.MaxAttn {
		return fmt.Sprintf("attention with heads of %d elements (at most %d)", d, kernel.MaxAttn)
	}
	if n := max(m.Width, m.Heads*m.Head()); n > kernel.MaxNorm { // some models normalize the queries of all heads together
		return fmt.Sprintf("norms of rows of %d elements (at most %d)", n, kernel.MaxNorm)
	}
	return ""
}

// ordinals returns the GPUs used by ranks of this machine.
func (b CUDA) ordinals() ([]int, error) {
	usable, err := machine.UsableGPUs()
	if err != nil {
		return nil, err
	}
	return choose(b.gpus, b.at.HostRanks, usable)
}

// gpuOf returns the GPU of a world rank of this process.
func (b CUDA) gpuOf(rank int, on []int) int {
	return b.share(b.at.HostOffset+slices.Index(b.at.Local, rank), on)
}

// mine returns the GPUs used by ranks of this process.
func (b CUDA) mine() ([]int, error) {
	on, err := b.ordinals()
	if err != nil {
		return nil, err
	}
	var all []int
	for _, r := range b.at.Local {
		all = append(all, b.gpuOf(r, on))
	}
	return slices.Compact(all), nil
}

// newCUDA returns the backend of a job.
func newCUDA(c *Job) CUDA {
	return CUDA{c.Parallel.GPUs, c.At, c.Model, c.Algorithms, kernel.Choice(config.AttentionLevel(c.Parallel.Attention))}
}

// Spare returns the bytes available per rank on the GPU with the least free memory, and a
// description of that GPU. It returns 0 if ranks do not use a GPU of this machine.
func Spare(c *Job) (bytes int64, where string) {
	b := newCUDA(c)
	usable, _ := machine.UsableGPUs() // none when planning for another machine
	on, err := choose(b.gpus, b.at.HostRanks, usable)
	if c.On() != "cuda" || err != nil || len(on) == 0 {
		return 0, ""
	}
	for _, g := range usable {
		ranks := 0
		for r := range b.at.HostRanks {
			if b.share(r, on) == g.Ordinal {
				ranks++
			}
		}
		if ranks > 0 && (where == "" || g.Free/int64(ranks) < bytes) {
			bytes, where = g.Free/int64(ranks), fmt.Sprintf("%v has %s free for %d ranks", g, show.ByteSize(g.Free), ranks)
		}
	}
	return bytes, where
}

// Where describes what the job's ranks of this process compute on, with names of GPUs. In a
// program built for GPUs it includes why auto resolved to the CPU.
func Where(c *Job) string {
	on, err := newCUDA(c).mine()
	if c.On() != "cuda" || err != nil {
		if machine.BuiltForGPUs && c.Device == "auto" && err != nil {
			why, _, _ := strings.Cut(err.Error(), "\n")
			return "cpu: " + why
		}
		return "cpu"
	}
	usable, _ := machine.UsableGPUs() // mine has found some
	var names []string
	for _, g := range usable {
		if slices.Contains(on, g.Ordinal) {
			names = append(names, g.String())
		}
	}
	return "cuda: " + strings.Join(names, ", ")
}

// GPUs returns the GPUs used by the job's ranks of this process, none on the CPU.
func GPUs(c *Job) []int {
	if c.On() != "cuda" {
		return nil
	}
	on, _ := newCUDA(c).mine() // without GPUs nothing runs
	return on
}

// Names returns the PCI names of the GPUs that ranks of this process may use, none on the CPU.
// They are the same in every process of the machine.
func Names(c *spec.Job) (names []string) {
	usable, _ := machine.UsableGPUs() // without GPUs nothing runs
	on, err := choose(c.Parallel.GPUs, max(len(c.Parallel.GPUs), len(usable)), usable)
	if c.On() != "cuda" || err != nil {
		return nil
	}
	for _, o := range on {
		at := slices.IndexFunc(usable, func(g machine.GPU) bool { return g.Ordinal == o })
		names = append(names, usable[at].PCI)
	}
	return names[:min(len(names), mostNames)]
}

// mostNames bounds the GPUs of a machine that a process sends to others.
const mostNames = 16

// choose returns the GPUs to spread ranks over: the named ones, or all usable ones, at most one
// per rank.
func choose(named []int, ranks int, usable []machine.GPU) ([]int, error) {
	var all []int
	for _, g := range usable {
		all = append(all, g.Ordinal)
	}
	for _, g := range named {
		if !slices.Contains(all, g) {
			return nil, fmt.Errorf("parallel.gpus names GPU %d, but this machine has %s", g, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(all)), ", "), "[]"))
		}
	}
	if len(named) > 0 {
		all = named
	}
	return all[:min(ranks, len(all))], nil
}
