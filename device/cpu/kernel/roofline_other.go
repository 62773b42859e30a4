//go:build !amd64 && !arm64

package kernel

func streamFuncs() [4]func(dst, a, b []float32) { return StreamsGo }
