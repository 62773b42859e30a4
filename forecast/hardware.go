package forecast

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"zeroth/config"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
	"zeroth/internal/setup"
	"zeroth/internal/show"
)

// Hardware contains the speeds of the simulated machines. Rates are those that large kernels
// reach, not those of a data sheet.
type Hardware struct {
	Name       string             `json:"name"`                  // for display
	Source     string             `json:"source,omitempty"`      // where the figures come from
	Flops      map[string]float64 `json:"flops"`                 // by precision: operations per second of matrix products
	Attention  float64            `json:"attention,omitempty"`   // the same for attention; 0: as products
	Peak       map[string]float64 `json:"peak,omitempty"`        // by precision: the peak for utilisation; default: flops
	Memory     float64            `json:"memory"`                // bytes per second that a device's kernels read and write
	Launch     float64            `json:"launch"`                // minimum seconds of a kernel
	Links      []Link             `json:"links"`                 // from the nearest ranks to the farthest
	GPU        bool               `json:"gpu,omitempty"`         // ranks have GPUs, on each host as many as the first link joins
	HostLink   float64            `json:"host_link,omitempty"`   // bytes per second between a device and its host, in each direction
	HostMemory float64            `json:"host_memory,omitempty"` // bytes per second that a rank's share of the host's processors reads and writes
	Disk       float64            `json:"disk,omitempty"`        // bytes per second that a rank's share of the disks reads, or writes

	DeviceMemory int64 `json:"device_memory,omitempty"` // bytes of a rank's device; 0: unknown
}

// Link joins ranks. Ranks within a distance of Ranks use it, or a nearer one.
type Link struct {
	Ranks     int     `json:"ranks"`     // 0 for the last link: any number
	Bandwidth float64 `json:"bandwidth"` // bytes per second that a rank sends, while receiving as many
	Latency   float64 `json:"latency"`   // seconds from one rank to the next
}

// Limits of a machine file.
const (
	hardwareBytes = 64 << 10
	hardwareLinks = 16
	leastRate     = 1e6 // operations or bytes per second: less is meant in other units
	mostRate      = 1e24
	mostDelay     = 1000 // seconds
)

// OpenHardware returns a preset by name, or reads a machine from a JSON file.
func OpenHardware(name string) (*Hardware, error) {
	for _, h := range presets {
		if strings.EqualFold(h.Name, name) {
			return &h, nil
		}
	}
	text, err := input.Read(name, hardwareBytes)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: no such file or directory", name)
		for _, h := range presets {
			if strings.Contains(strings.ToLower(name), h.Name) {
				err = fmt.Errorf("%w; did you mean %s?", err, h.Name)
			}
		}
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("--machine %w; want here, one of %s, or a file that describes another machine in JSON, like examples/machine.json", err, strings.Join(HardwareNames(), ", ")))
	}
	h := &Hardware{Name: name}
	if err = jsonread.Into(text, h); err == nil {
		err = h.check()
	} else {
		err = fmt.Errorf("%w; rates are numbers of operations or bytes per second, device_memory is a number of bytes", err)
	}
	if err != nil {
		return nil, input.BadInput(fmt.Errorf("%s: %w", name, err))
	}
	return h, nil
}

// check reports all invalid values at once.
func (h *Hardware) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for what, text := range map[string]string{"name": h.Name, "source": h.Source} {
		if show.Printable(text) != text {
			wrong("%s: %q has characters that do not print", what, show.Cut(text, 80))
		}
	}
	if len(h.Flops) == 0 {
		wrong(`flops is missing; want operations per second by precision, such as {"bf16": 6.5e14}`)
	}
	for _, rates := range []map[string]float64{h.Flops, h.Peak} {
		for name, x := range rates {
			if !slices.Contains(precisionsNamed, name) || !rate(x) {
				wrong("%q: %v operations per second; want %s, from %v to %v", show.Cut(name, 80), x, show.Either(precisionsNamed), leastRate, mostRate)
			}
		}
	}
	if !rate(h.Memory) {
		wrong("memory: %v bytes per second; want from %v to %v", h.Memory, leastRate, mostRate)
	}
	for name, x := range map[string]float64{"attention": h.Attention, "host_link": h.HostLink, "host_memory": h.HostMemory, "disk": h.Disk} {
		if x != 0 && !rate(x) {
			wrong("%s: %v a second; want 0, or from %v to %v", name, x, leastRate, mostRate)
		}
	}
	if h.DeviceMemory < 0 || h.DeviceMemory > config.MostMemory {
		wrong("device_memory: %d bytes; want 0 to %d", h.DeviceMemory, int64(config.MostMemory))
	}
	if !delay(h.Launch) {
		wrong("launch: %v; want from 0 to %v seconds", h.Launch, mostDelay)
	}
	if n := len(h.Links); n > hardwareLinks {
		wrong("links: %d of them; want at most %d", n, hardwareLinks)
	}
	for i, l := range h.Links[:min(hardwareLinks, len(h.Links))] {
		last := i+1 == len(h.Links)
		if !rate(l.Bandwidth) || !delay(l.Latency) {
			wrong("links[%d]: %v bytes a second and %v seconds; want from %v to %v, and from 0 to %v", i, l.Bandwidth, l.Latency, leastRate, mostRate, mostDelay)
		}
		if l.Ranks < 0 || l.Ranks == 0 && !last || i > 0 && l.Ranks != 0 && l.Ranks <= h.Links[i-1].Ranks {
			wrong("links[%d]: ranks %d; want more than the previous link's, and 0 only for the last", i, l.Ranks)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if more := len(errs) - config.ProblemsShown; more > 0 {
		errs = append(errs[:config.ProblemsShown], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// rate and delay report whether a rate per second or a number of seconds is valid.
func rate(x float64) bool  { return x >= leastRate && x <= mostRate }
func delay(x float64) bool { return x >= 0 && x <= mostDelay }

var precisionsNamed = []string{"fp32", "bf16", "fp16"}

// PeakOf returns a rank's peak operations per second, the denominator of its utilisation.
func (h *Hardware) PeakOf(t device.DType) float64 {
	if x := h.Peak[t.String()]; x > 0 {
		return x
	}
	return h.Flops[t.String()]
}

// Serves returns an error if the hardware lacks a value that a simulation of the job needs. host
// and disk say where data is offloaded.
func (h *Hardware) Serves(c *setup.Job, host, disk bool) error {
	var errs []error
	if h.Flops[c.Precision.String()] == 0 {
		errs = append(errs, fmt.Errorf("%s has no rate for products in %v", h.Name, c.Precision))
	}
	if n := len(h.Links); c.Parallel.Ranks > 1 && (n == 0 || h.Links[n-1].Ranks != 0 && h.Links[n-1].Ranks < c.Parallel.Ranks) {
		errs = append(errs, fmt.Errorf("%s has no link that joins %d ranks", h.Name, c.Parallel.Ranks))
	}
	if host && (h.HostLink == 0 || h.HostMemory == 0) {
		errs = append(errs, fmt.Errorf("%s needs host_link and host_memory, because the job offloads", h.Name))
	}
	if len(errs) == 0 && h.HostLink == 0 && h.moving(c).staged() {
		errs = append(errs, fmt.Errorf("%s needs host_link, because GPUs exchange data between processes without NCCL", h.Name))
	}
	if disk && h.Disk == 0 {
		errs = append(errs, fmt.Errorf("%s needs disk, because the job offloads to the disk", h.Name))
	}
	return errors.Join(errs...)
}

// Summary describes the hardware in a line.
func (h *Hardware) Summary() string {
	var words []string
	for _, t := range precisionsNamed {
		if x := h.Flops[t]; x > 0 {
			words = append(words, fmt.Sprintf("%.4g TFLOP/s of %s", x/1e12, t))
		}
	}
	words = append(words, show.DecimalSize(int64(h.Memory))+"/s of memory")
	for _, l := range h.Links {
		to := "to all"
		if l.Ranks > 0 {
			to = fmt.Sprintf("to %d", l.Ranks)
		}
		words = append(words, fmt.Sprintf("%s/s %s", show.DecimalSize(int64(l.Bandwidth)), to))
	}
	return strings.Join(words, ", ")
}
