//go:build cuda

package machine

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NVML is the driver's management library: it reports on a GPU without opening it, and on all
// of its memory that this process uses, including context and libraries.

// managed calls f with NVML's handle of a GPU and then shuts NVML down. After a failed Init
// NVML's other functions must not be called: they are missing symbols, which would end the
// process.
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

// freeMemory returns the free bytes of a GPU, given its PCI address.
func freeMemory(pci string) (free int64, err error) {
	err = managed(pci, func(d nvml.Device) nvml.Return {
		m, r := d.GetMemoryInfo()
		free = int64(m.Free)
		return r
	})
	return free, err
}

// gpuMemory returns the bytes of a GPU used by this process.
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
