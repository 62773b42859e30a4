package forecast

import (
	"math"
	"regexp"
)

// presets contains GPUs with the rates that training steps reached on an H200 at its limit of 700 W:
// products at 627 to 764 TFLOP/s by shape, attention at 207 to 255 forward and 155 to 183 backward of 5
// products (docs/lab/kernels.md). An H100 is as fast, but products are no faster than published. With
// these rates Llamas take 0.98 to 1.02 of their measured times, and GPT-2 124M, whose products are
// narrow, 0.85 (BENCHMARKS.md). Copies and NVLink are published; kernels bound by memory reach 0.8 of a
// copy. The rest is assumed: links between machines at 0.9 of the line rate, and for each GPU an eighth
// of 200 GB/s of host memory and of 12 GB/s of disk.
var presets = append([]Hardware{
	{
		Name: "h100", GPU: true, DeviceMemory: 81559 << 20,
		Source: "8 H100 SXM per machine: products at 650 TFLOP/s, copies at 2.8 TB/s and NVLink at 370 of 450 GB/s as published; attention at 180 TFLOP/s as measured on an H200; kernels at 0.8 of copies, 400 Gb/s of network per GPU, host and disks assumed",
		Flops:  map[string]float64{"bf16": 650e12, "fp16": 650e12, "fp32": 50e12}, Attention: 180e12,
		Peak:   map[string]float64{"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
		Memory: 0.8 * 2.8e12, Launch: 4e-6,
		Links:    []Link{{8, 370e9, 5e-6}, {0, 45e9, 15e-6}},
		HostLink: 50e9, HostMemory: 25e9, Disk: 1.5e9,
	},
	{
		Name: "h200", GPU: true, DeviceMemory: 143771 << 20,
		Source: "8 H200 SXM per machine: products at 700 TFLOP/s and attention at 180 as measured, copies at 4.3 TB/s as published, the rest as h100",
		Flops:  map[string]float64{"bf16": 700e12, "fp16": 680e12, "fp32": 50e12}, Attention: 180e12,
		Peak:   map[string]float64{"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
		Memory: 0.8 * 4.3e12, Launch: 4e-6,
		Links:    []Link{{8, 370e9, 5e-6}, {0, 45e9, 15e-6}},
		HostLink: 50e9, HostMemory: 25e9, Disk: 1.5e9,
	},
}, unmeasured()...)

// unmeasured returns 8 GPUs per machine on which nothing was measured: their rates are shares of published ones, those
// that the preset h100 has of an H100's. Rates of fp16 and bf16 are dense, with float32 sums.
func unmeasured() (all []Hardware) {
	for _, x := range []struct {
		name, about                    string
		memory                         int64   // MiB, as the driver reports it
		peak, fp32                     float64 // operations per second
		bandwidth, near, host, network float64 // bytes per second, links in one direction
	}{
		{"a100", "A100 SXM 80 GB (data sheet nvidia-1758950; DGX A100: 200 Gb/s of network per GPU)", 81920, 312e12, 19.5e12, 2.039e12, 300e9, 32e9, 25e9},
		{"b200", "HGX B200 at 1000 W (Blackwell architecture brief; 400 Gb/s of network per GPU)", 183359, 2250e12, 80e12, 8e12, 900e9, 64e9, 50e9},
		{"l40s", "L40S on PCIe 4 without NVLink (data sheet; 100 Gb/s of network per GPU assumed)", 46068, 362e12, 91.6e12, 864e9, 32e9, 32e9, 12.5e9},
		{"rtx4090", "RTX 4090 (Ada GPU architecture whitepaper; GPUs reach each other through host memory at half of PCIe 4, 100 Gb/s of network per machine assumed)",
			24564, 165.2e12, 82.6e12, 1008e9, 16e9, 32e9, 1.5625e9},
	} {
		all = append(all, Hardware{
			Name: x.name, GPU: true, DeviceMemory: x.memory << 20,
			Source: "published, not measured: 8 " + x.about + ", at the shares of these rates that an H100 reaches",
			Flops:  map[string]float64{"bf16": 0.66 * x.peak, "fp16": 0.66 * x.peak, "fp32": 0.75 * x.fp32}, Attention: 0.18 * x.peak,
			Peak:   map[string]float64{"bf16": x.peak, "fp16": x.peak, "fp32": x.fp32},
			Memory: 0.67 * x.bandwidth, Launch: 4e-6,
			Links:    []Link{{8, 0.82 * x.near, 5e-6}, {0, 0.9 * x.network, 15e-6}},
			HostLink: 0.78 * x.host, HostMemory: 25e9, Disk: 1.5e9,
		})
	}
	return all
}

// HardwareNames returns the names that OpenHardware knows without a file.
func HardwareNames() (names []string) {
	for _, h := range presets {
		names = append(names, h.Name)
	}
	return names
}

// MachineWith returns the name of the preset whose GPUs have about the given memory, empty if none has.
func MachineWith(bytes int64) string {
	for _, h := range presets {
		if math.Abs(float64(bytes)/float64(h.DeviceMemory)-1) < 0.1 {
			return h.Name
		}
	}
	return ""
}

// drivers has the driver's names of the GPUs of presets. Other H100s than SXM are slower.
var drivers = map[string]*regexp.Regexp{
	"h100": regexp.MustCompile(`H100.*HBM3`), "h200": regexp.MustCompile(`H200`), "a100": regexp.MustCompile(`A100`),
	"b200": regexp.MustCompile(`\bB200`), "l40s": regexp.MustCompile(`\bL40S`), "rtx4090": regexp.MustCompile(`RTX 4090(\)|$)`),
}

// PresetOf returns the preset of a GPU by its driver's name, or nil.
func PresetOf(gpu string) *Hardware {
	for _, h := range presets {
		if drivers[h.Name].MatchString(gpu) {
			return &h
		}
	}
	return nil
}
