//go:build cuda

package machine

import "zeroth/device/cuda/driver"

// gpus are those the driver shows, where products can be computed on them, too.
func gpus() (all []GPU, err error) {
	if err := driver.Available(); err != nil {
		return nil, err
	}
	if _, err := driver.OpenBLAS(); err != nil {
		return nil, err
	}
	n, err := driver.Count()
	if err != nil {
		return nil, err
	}
	for i := range n {
		d, err := driver.Describe(i)
		if err != nil {
			return nil, err
		}
		g := GPU{Ordinal: i, Name: d.Name, Major: d.Major, Minor: d.Minor, Memory: d.Memory, Free: d.Memory}
		if free, err := freeMemory(d.PCI); err == nil {
			g.Free = free
		}
		all = append(all, g)
	}
	return all, nil
}

// OnGPUs is the bytes that this process has of each of the GPUs, as the driver
// counts them: contexts, kernels and libraries, too. 0 is what it does not tell.
func OnGPUs(ordinals []int) []int64 {
	held := make([]int64, len(ordinals))
	for i, o := range ordinals {
		if d, err := driver.Describe(o); err == nil {
			held[i], _ = gpuMemory(d.PCI) // 0 where NVML does not answer
		}
	}
	return held
}
