//go:build cuda

package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpus are the machine's GPUs in words. It stops at the first error: after a
// failed Init, NVML's other functions are missing symbols that end the process.
func gpus() (lines []string) {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return []string{"none: the NVIDIA driver's management library does not answer: " + nvml.ErrorString(r)}
	}
	defer nvml.Shutdown()
	n, r := nvml.DeviceGetCount()
	if r != nvml.SUCCESS {
		return []string{"the driver does not count its devices: " + nvml.ErrorString(r)}
	}
	for i := range n {
		line, r := gpu(i)
		if r != nvml.SUCCESS {
			return append(lines, fmt.Sprintf("%d: %s", i, nvml.ErrorString(r)))
		}
		lines = append(lines, line)
	}
	if n == 0 {
		return []string{"none"}
	}
	return lines
}

func gpu(i int) (string, nvml.Return) {
	d, r := nvml.DeviceGetHandleByIndex(i)
	if r != nvml.SUCCESS {
		return "", r
	}
	name, r := d.GetName()
	if r != nvml.SUCCESS {
		return "", r
	}
	mem, r := d.GetMemoryInfo()
	if r != nvml.SUCCESS {
		return "", r
	}
	return fmt.Sprintf("%d: %s, %.1f GiB, of which %.1f GiB in use", i, name, float64(mem.Total)/(1<<30), float64(mem.Used)/(1<<30)), r
}
