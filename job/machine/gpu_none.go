//go:build !cuda

package machine

import "errors"

// BuiltForGPUs says whether this program has the driver's binding.
const BuiltForGPUs = false

// gpus needs the driver's binding.
func gpus() ([]GPU, error) {
	return nil, errors.New("this zeroth is built without -tags cuda: scripts/build-cuda builds one for GPUs")
}

// NCCL needs it, too.
func NCCL() (Library, error) {
	_, err := gpus()
	return Library{}, err
}

// OnGPUs is nothing: there are none.
func OnGPUs([]int) []int64 { return nil }

// GPUReport says that nobody has looked.
func GPUReport() [][2]string {
	_, err := gpus()
	return [][2]string{{"gpus", "not looked for: " + err.Error()}}
}
