//go:build cuda

package cuda_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

func TestMain(m *testing.M) { os.Exit(fake.Main(m)) }

// bench is a device with queues, and host memory.
type bench struct {
	t    testing.TB
	dev  *cuda.Device
	host *cpu.Device
	q, r *cuda.Queue
}

func open(t testing.TB) *bench {
	t.Helper()
	fake.Need(t)
	b := &bench{t: t, host: cpu.NewHost(1)}
	var err error
	if b.dev, err = cuda.Open(0); err != nil {
		t.Fatal(err)
	}
	if err := b.dev.ReserveWork(device.Sizes{Rows: 512, Width: 64}); err != nil {
		t.Fatal(err)
	}
	b.q, b.r = b.dev.NewQueue("q"), b.dev.NewQueue("r")
	t.Cleanup(func() {
		b.q.Close()
		b.r.Close()
		b.dev.Close()
		b.host.Close()
	})
	return b
}

// alloc returns n elements on the device.
func (b *bench) alloc(t device.DType, n int) device.Buffer {
	b.t.Helper()
	x, err := b.dev.Alloc(t, n, device.Params)
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

// send returns a device copy of host memory.
func (b *bench) send(h device.Buffer) device.Buffer {
	d := b.alloc(h.Type, h.N)
	b.q.Copy(d, h)
	return d
}

// fetch returns a host copy of device memory, after all issued work.
func (b *bench) fetch(d device.Buffer) device.Buffer {
	b.t.Helper()
	b.q.After(b.r.Mark())
	h, err := b.host.Alloc(d.Type, d.N, device.Params)
	if err != nil {
		b.t.Fatal(err)
	}
	b.q.Copy(h, d)
	if err := b.q.Wait(); err != nil {
		b.t.Fatal(err)
	}
	return h
}

// say fails unless the error contains all strings.
func say(t testing.TB, err error, all ...string) {
	t.Helper()
	for _, s := range all {
		if !strings.Contains(fmt.Sprint(err), s) {
			t.Errorf("%v\nwant %q in it", err, s)
		}
	}
}

func seeds(n int) (modes []string) {
	for i := range n {
		modes = append(modes, fmt.Sprintf("FAKECUDA_MODE=lazy:%d", i+1))
	}
	return append(modes, "FAKECUDA_MODE=threads:200")
}
