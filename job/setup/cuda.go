package setup

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/kernel"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/machine"
	"zeroth/job/show"
)

// CUDA is the Backend of NVIDIA GPUs.
type CUDA struct {
	gpus  []int // of the job; empty: all there are
	at    collective.Placement
	model hf.Model // of the job

	algorithms *Algorithms // of the job; may be nil
}

// Name is that of the job's key device.
func (CUDA) Name() string { return "cuda" }

// HostApart is true: the host's side of everything is pinned memory.
func (CUDA) HostApart() bool { return true }

// DeviceCopies is true: copy engines work beside the kernels.
func (CUDA) DeviceCopies() bool { return true }

// Workspace is cuda.Workspace, for a GPU has no workers.
func (CUDA) Workspace(_, _ int, s device.Sizes) int64 { return cuda.Workspace(s) }

// Available is nil where ranks can compute on the GPUs the job names, all that its
// model needs.
func (b CUDA) Available() error {
	if what := lacks(b.model); what != "" {
		return fmt.Errorf("there are no kernels yet for %s, which the model has", what)
	}
	_, err := b.ordinals()
	return err
}

// lacks is what of a model GPUs do not compute yet; empty if that is nothing.
func lacks(m hf.Model) string {
	if d := m.Head(); d > kernel.MaxAttn {
		return fmt.Sprintf("attention with heads %d wide, of more than %d,", d, kernel.MaxAttn)
	}
	if n := max(m.Width, m.Heads*m.Head()); n > kernel.MaxNorm { // of all heads' queries, too, there are norms
		return fmt.Sprintf("norms of rows of %d elements, of more than %d,", n, kernel.MaxNorm)
	}
	return ""
}

// ordinals are the GPUs that ranks of this machine are on.
func (b CUDA) ordinals() ([]int, error) {
	usable, err := machine.UsableGPUs()
	if err != nil {
		return nil, err
	}
	return choose(b.gpus, b.at.HostRanks, usable)
}

// gpuOf is the GPU of a world rank of this process.
func (b CUDA) gpuOf(rank int, on []int) int {
	return b.share(b.at.HostOffset+slices.Index(b.at.Local, rank), on)
}

// mine are the GPUs that ranks of this process are on.
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

// newCUDA is the backend of a job.
func newCUDA(c *Job) CUDA {
	return CUDA{c.Parallel.GPUs, c.At, c.Model, c.Algorithms}
}

// Spare is the bytes that a rank may take of the GPU where there are fewest, and whose
// that is, in words; 0 where ranks are on no GPU, or on none of this machine.
func Spare(c *Job) (bytes int64, where string) {
	b := newCUDA(c)
	usable, _ := machine.UsableGPUs() // a plan of another machine has none
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
			bytes, where = g.Free/int64(ranks), fmt.Sprintf("%v has %s free for %d", g, show.ByteSize(g.Free), ranks)
		}
	}
	return bytes, where
}

// Where says what the job's ranks of this process compute on, in words: with names of GPUs, or why
// auto has come to the CPU in a program that is built for GPUs.
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

// GPUs are those that the job's ranks of this process are on; none where that is the CPU.
func GPUs(c *Job) []int {
	if c.On() != "cuda" {
		return nil
	}
	on, _ := newCUDA(c).mine() // without them nothing runs
	return on
}

// Names are those of the GPUs that ranks of this process may be on, the same in every
// process of the machine; none where that is the CPU.
func Names(c *config.Config) (names []string) {
	usable, _ := machine.UsableGPUs() // without them nothing runs
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

// mostNames is how many GPUs of a machine a process tells others of.
const mostNames = 16

// choose are the GPUs that ranks are spread over: those named, or all that are
// usable, and no more than there are ranks.
func choose(named []int, ranks int, usable []machine.GPU) ([]int, error) {
	var all []int
	for _, g := range usable {
		all = append(all, g.Ordinal)
	}
	for _, g := range named {
		if !slices.Contains(all, g) {
			return nil, fmt.Errorf("parallel.gpus names GPU %d, and here are %s", g, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(all)), ", "), "[]"))
		}
	}
	if len(named) > 0 {
		all = named
	}
	return all[:min(ranks, len(all))], nil
}
