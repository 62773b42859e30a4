//go:build !cuda

package machine

import "errors"

// BuiltForGPUs reports whether this program includes the binding to the driver.
const BuiltForGPUs = false

// gpus fails without the binding to the driver.
func gpus() ([]GPU, error) {
	return nil, errors.New("this binary was built without GPU support (-tags cuda); scripts/build-cuda builds one with it")
}

// NCCL fails without the binding to the driver.
func NCCL() (Library, error) {
	_, err := gpus()
	return Library{}, err
}

// CUBLAS returns an error: this build has no GPUs.
func CUBLAS() (string, error) {
	_, err := gpus()
	return "", err
}

// OnGPUs returns nil: there are no GPUs.
func OnGPUs([]int) []int64 { return nil }

// GPUReport reports that GPUs were not checked.
func GPUReport() [][2]string {
	_, err := gpus()
	return [][2]string{{"gpus", "not checked: " + err.Error()}}
}
