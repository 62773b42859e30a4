package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
)

const gpuGroup = "gpu"

// Asks reports whether the options name a group.
func (o Options) Asks(group string) bool { return slices.Contains(o.Groups, group) }

// CheckGPU returns an error if the options ask for a GPU and there is none.
func (o Options) CheckGPU() error {
	if !o.Asks(gpuGroup) {
		return nil
	}
	if !machine.BuiltForGPUs {
		return errors.New("gpu: this binary was built without GPU support; build one with scripts/build-cuda")
	}
	if _, err := machine.UsableGPUs(); err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	return nil
}

// gpu measures the first GPU, if there is one.
func (b *bench) gpu() error {
	all, err := machine.UsableGPUs()
	if err != nil {
		return b.CheckGPU()
	}
	b.report.Host.GPU = fmt.Sprintf("%v, %.1f GiB", all[0], float64(all[0].Memory)/(1<<30))
	return b.measureGPU(all)
}

// rate returns the rate of a line of the GPU, or 0 if there is none.
func (r *Report) rate(name string) float64 {
	for _, l := range r.Lines {
		if l.Group == gpuGroup && l.Name == name {
			return l.Rate
		}
	}
	return 0
}

// Names of the lines that describe the machine.
const (
	toDevice, toHost, bothWays, onDevice = "copy to the device", "copy to the host", "copies both ways at once", "copy on the device"
	betweenGPUs, launches                = "copy from another GPU", "launch"
	attentionOf, attentionGradOf         = "attention", "attention gradient"
)

func squareOf(t device.DType) string { return fmt.Sprintf("square product %v", t) }

// Algorithms returns the algorithms chosen for Options.Products, or nil if none were measured.
func (r *Report) Algorithms() *setup.Algorithms { return r.algorithms }

// Machine describes the measured GPU for 'zeroth plan --machine', or returns nil. There is one
// rank per GPU, and a single GPU has no link.
func (r *Report) Machine() *forecast.Hardware {
	if r.rate(onDevice) == 0 {
		return nil
	}
	h := &forecast.Hardware{Name: r.Host.GPU, GPU: true, Source: "measured by zeroth bench gpu", Flops: map[string]float64{}, Memory: r.rate(onDevice),
		Launch: 1 / r.rate(launches), HostLink: r.rate(bothWays) / 2, HostMemory: r.hostMemory}
	for _, t := range []device.DType{device.F32, device.BF16, device.F16} {
		h.Flops[t.String()] = r.rate(squareOf(t))
	}
	var flops, seconds float64
	for _, l := range r.Lines {
		if l.Group == gpuGroup && strings.HasPrefix(l.Name, attentionOf) {
			flops, seconds = flops+l.Rate*l.Seconds, seconds+l.Seconds
		}
	}
	h.Attention = flops / seconds
	if rate := r.rate(betweenGPUs); rate > 0 {
		h.Links = []forecast.Link{{Ranks: r.gpus, Bandwidth: rate, Latency: h.Launch}}
	}
	return h
}
