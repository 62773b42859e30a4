//go:build cuda

package cuda_test

import (
	"os"
	"syscall"
	"testing"

	"zeroth/device"
	"zeroth/device/cuda/fake"
)

// BenchmarkLaunch is what a launch costs us: an operation of nn until the driver has
// it, on a driver that does nothing and takes no time. The driver's own part is 2 to
// 4 microseconds on hardware.
//
//	FAKECUDA_MODE=nothing go test -tags cuda ./device/cuda -run '^$' -bench Launch
func BenchmarkLaunch(b *testing.B) {
	fake.Only(b)
	if os.Getenv("FAKECUDA_MODE") != "nothing" {
		b.Skip("the fake driver runs kernels: set FAKECUDA_MODE=nothing")
	}
	on := open(b)
	x, y := on.alloc(device.F32, 4), on.alloc(device.BF16, 16*64)
	m, stat := device.Matrix(y, 16, 64), on.alloc(device.F32, 16)
	a := device.Attn{B: 1, T: 16, H: 1, KV: 1, D: 64, Scale: 1}
	for name, f := range map[string]func(){
		"scale":     func() { on.q.Scale(x, 2) },
		"add":       func() { on.q.AddTo(x, x, x) },
		"attention": func() { on.q.Attention(m, stat, m, m, m, a) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			from := processorTime(b)
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(processorTime(b)-from)/float64(b.N), "cpu-ns/op")
		})
	}
	if err := on.q.Wait(); err != nil {
		b.Fatal(err)
	}
}

// processorTime is that of the process so far, in nanoseconds: on a shared machine the
// time that passes is others'.
func processorTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
