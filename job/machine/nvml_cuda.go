//go:build cuda

package machine

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NVML is the driver's management library: it tells of a GPU without opening it,
// and of what this process has of its memory in all, context and libraries too.

// managed calls f with NVML's handle of a GPU. NVML ends after it: where its Init
// has failed its other functions are missing symbols, which end the process.
func managed(pci string, f func(d nvml.Device) nvml.Return) error {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return fmt.Errorf("NVML: %s", nvml.ErrorString(r))
	}
	defer nvml.Shutdown()
	d, r := nvml.DeviceGetHandleByPciBusId(pci)
	if r == nvml.SUCCESS {
		r = f(d)
	}
	if r != nvml.SUCCESS {
		return fmt.Errorf("NVML, GPU %s: %s", pci, nvml.ErrorString(r))
	}
	return nil
}

// freeMemory is the bytes of a GPU, by its PCI address, that nobody has.
func freeMemory(pci string) (free int64, err error) {
	err = managed(pci, func(d nvml.Device) nvml.Return {
		m, r := d.GetMemoryInfo()
		free = int64(m.Free)
		return r
	})
	return free, err
}

// gpuMemory is the bytes of a GPU, likewise, that this process has.
func gpuMemory(pci string) (bytes int64, err error) {
	err = managed(pci, func(d nvml.Device) nvml.Return {
		all, r := d.GetComputeRunningProcesses()
		for _, p := range all {
			if int(p.Pid) == os.Getpid() {
				bytes = int64(p.UsedGpuMemory)
			}
		}
		return r
	})
	return bytes, err
}
