//go:build cuda

package machine

import "testing"

func TestKernelCache(t *testing.T) {
	const kept = "compiled once by the driver, and cached in "
	for want, env := range map[string]map[string]string{
		kept + `"/home/me/.nv/ComputeCache" (CUDA_CACHE_PATH), up to 1 GiB by default`:         {"HOME": "/home/me", "CUDA_CACHE_DISABLE": "0"},
		kept + `"/scratch/\n" (CUDA_CACHE_PATH), up to "268435456" bytes (CUDA_CACHE_MAXSIZE)`: {"HOME": "/home/me", "CUDA_CACHE_PATH": "/scratch/\n", "CUDA_CACHE_MAXSIZE": "268435456"},
		`compiled again in every run: CUDA_CACHE_DISABLE="1"; unset it`:                        {"CUDA_CACHE_DISABLE": "1", "CUDA_CACHE_PATH": "/scratch"},
	} {
		if got := kernelCache(func(name string) string { return env[name] }); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
