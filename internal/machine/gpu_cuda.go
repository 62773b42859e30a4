//go:build cuda

package machine

import (
	"fmt"
	"os"
	"path/filepath"

	"zeroth/device/cuda/driver"
)

// BuiltForGPUs reports whether this program includes the binding to the driver.
const BuiltForGPUs = true

// gpus returns the GPUs visible to the driver, if cuBLAS is available, too.
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
		g := GPU{Ordinal: i, Name: d.Name, Major: d.Major, Minor: d.Minor, Memory: d.Memory, Free: d.Memory, PCI: d.PCI}
		if free, err := freeMemory(d.PCI); err == nil {
			g.Free = free
		}
		for other := range n {
			if other != i && !driver.Reaches(i, other) {
				g.Apart = append(g.Apart, other)
			}
		}
		all = append(all, g)
	}
	return all, nil
}

// NCCL returns the library for sums between GPUs, or the reason why there is none.
func NCCL() (Library, error) {
	l, err := driver.OpenNCCL()
	if err != nil {
		return Library{}, err
	}
	return Library{Path: l.Path, Version: l.Version, Registers: driver.NCCLRegisters().String()}, nil
}

// CUBLAS returns the version of cuBLAS.
func CUBLAS() (string, error) {
	l, err := driver.OpenBLAS()
	return l.Version, err
}

// OnGPUs returns the bytes that this process uses on each GPU, as counted by the driver,
// including contexts, kernels and libraries; 0 if the driver does not report it.
func OnGPUs(ordinals []int) []int64 {
	held := make([]int64, len(ordinals))
	for i, o := range ordinals {
		if d, err := driver.Describe(o); err == nil {
			held[i], _ = gpuMemory(d.PCI) // 0 if NVML fails
		}
	}
	return held
}

// GPUReport describes what is available for computing on GPUs, what is missing, and how to get
// it, as rows of name and text.
func GPUReport() (rows [][2]string) {
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if err := driver.Available(); err != nil {
		add("gpus", "none: %v", err)
	} else {
		v := driver.Version()
		add("driver", "%s, supports CUDA up to %d.%d", driver.Path(), v/1000, v%1000/10)
		add("kernels", "compiled for compute capability 8.x and 9.0; for others %s", kernelCache(os.Getenv))
		n, _ := driver.Count() // Available has checked it
		for i := range n {
			add("gpus", "%s", gpuLine(i))
		}
	}
	blas, blasErr := driver.OpenBLAS()
	if blasErr != nil {
		add("cublas", "%v", blasErr)
	} else {
		add("cublas", "%s, version %s", blas.Path, blas.Version)
	}
	nccl, ncclErr := driver.OpenNCCL()
	if ncclErr != nil {
		add("nccl", "%v; without it, processes sum through the host", ncclErr)
	} else {
		add("nccl", "%s, version %s", nccl.Path, nccl.Version)
	}
	rows = append(rows, searchedPlaces(blasErr != nil, ncclErr != nil)...)
	if _, err := UsableGPUs(); err != nil {
		return rows
	}
	add("device", "auto is cuda here")
	return rows
}

// kernelCache describes where the driver caches compiled kernels, according to the
// environment: NVIDIA's CUDA programming guide, "CUDA environment variables".
func kernelCache(env func(string) string) string {
	if off := env("CUDA_CACHE_DISABLE"); off != "" && off != "0" {
		return fmt.Sprintf("compiled again in every run: CUDA_CACHE_DISABLE=%q; unset it", off)
	}
	at, size := env("CUDA_CACHE_PATH"), env("CUDA_CACHE_MAXSIZE")
	if at == "" {
		at = filepath.Join(env("HOME"), ".nv", "ComputeCache")
	}
	line := fmt.Sprintf("compiled once by the driver, and cached in %q (CUDA_CACHE_PATH)", at)
	if size != "" {
		return line + fmt.Sprintf(", up to %q bytes (CUDA_CACHE_MAXSIZE)", size)
	}
	return line + ", up to 1 GiB by default"
}

func gpuLine(i int) string {
	d, err := driver.Describe(i)
	if err != nil {
		return err.Error()
	}
	gib := func(n int64) float64 { return float64(n) / (1 << 30) }
	line := fmt.Sprintf("%d: %s, compute capability %d.%d, %d multiprocessors, %.1f GiB", i, d.Name, d.Major, d.Minor, d.Processors, gib(d.Memory))
	if free, err := freeMemory(d.PCI); err == nil {
		line += fmt.Sprintf(", of which %.1f GiB are free", gib(free))
	}
	if d.Major < driver.LeastMajor {
		line += fmt.Sprintf("; too old: the kernels need %d.0", driver.LeastMajor)
	}
	return line
}
