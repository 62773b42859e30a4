//go:build !cuda

package main

// gpus are the machine's GPUs in words.
func gpus() []string {
	return []string{"not looked for: this binary is built without -tags cuda"}
}
