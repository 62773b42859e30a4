package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/device"
	"zeroth/device/cpu"
)

// TestAlloc checks that allocated memory, whether new or reused, is zero, aligned to 64 bytes and
// addressable by the host, and that it is accounted for to the byte until it is freed.
func TestAlloc(t *testing.T) {
	d := cpu.NewHost(1)
	defer d.Close()
	var want device.Usage
	for round := range 3 {
		var held []device.Buffer
		for i, dt := range []device.DType{device.F32, device.BF16, device.F16, device.I32, device.F64} {
			for _, n := range []int{0, 1, 7, 64, 5000} {
				use := device.Use((i + n) % int(device.Uses))
				b, err := d.Alloc(dt, n, use)
				if err != nil {
					t.Fatal(err)
				}
				if b.Type != dt || b.N != n || !b.Host || b.Use != use || uintptr(b.Ptr)%64 != 0 || n > 0 && b.Ptr == nil {
					t.Errorf("round %d: %d %v for %v: %+v", round, n, dt, use, b)
				}
				want.Add(use, int64(n*dt.Size()))
				if slices.ContainsFunc(b.Raw(), func(x byte) bool { return x != 0 }) {
					t.Errorf("round %d: %d %v are not zero", round, n, dt)
				}
				for j := range b.Raw() {
					b.Raw()[j] = 0xaa
				}
				held = append(held, b)
				if got := d.Usage(); got != want {
					t.Fatalf("round %d: usage %v, want %v", round, got, want)
				}
			}
		}
		for _, b := range held {
			if slices.ContainsFunc(b.Raw(), func(x byte) bool { return x != 0xaa }) {
				t.Errorf("round %d: %d %v share memory with others", round, b.N, b.Type)
			}
			d.Free(b)
			want.Add(b.Use, -int64(b.Bytes()))
			if got := d.Usage(); got != want {
				t.Fatalf("round %d: usage %v after a free, want %v", round, got, want)
			}
		}
	}
	if live := d.Usage().Live; live != (device.Bytes{}) {
		t.Errorf("%v held at the end", live)
	}
}

// TestFreeRefuses checks that Free accepts only memory from Alloc, once.
func TestFreeRefuses(t *testing.T) {
	d, other := cpu.NewHost(1), cpu.NewHost(1)
	defer d.Close()
	defer other.Close()
	b, err := d.Alloc(device.F32, 100, device.Grads)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Alloc(device.F32, 100, device.Grads)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b device.Buffer) {
		defer func() {
			if r := recover(); !strings.Contains(fmt.Sprint(r), fmt.Sprintf("%d bytes of grads that Alloc did not return", b.Bytes())) {
				t.Errorf("free of %s: %v", what, r)
			}
		}()
		d.Free(b)
	}
	refused("a part", b.Slice(0, 50))
	refused("another device's buffer", foreign)
	other.Free(foreign)
	d.Free(b)
	refused("a buffer that is free", b)
	d.Free(device.Buffer{}) // no elements: nothing to do
	if live := d.Usage().Live.Total(); live != 0 {
		t.Errorf("%d bytes held at the end", live)
	}
}

// TestAllocConcurrently allocates from several goroutines.
func TestAllocConcurrently(t *testing.T) {
	d := cpu.NewHost(1)
	defer d.Close()
	const hosts, each = 8, 50
	var wg sync.WaitGroup
	for h := range hosts {
		wg.Go(func() {
			for i := range each {
				b, err := d.Alloc(device.F32, 1+i, device.Use(h))
				if err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					d.Free(b)
				}
			}
		})
	}
	wg.Wait()
	var want device.Bytes
	for h := range hosts {
		want[h] = 4 * each / 2 * (each + 2) / 2 // 2 + 4 + … + each elements
	}
	if got := d.Usage().Live; got != want {
		t.Errorf("usage %v, want %v", got, want)
	}
}

// TestQueuesShareWorkers uses the workers of a device from several queues concurrently: the results
// must not change, and no goroutine may remain after closing.
func TestQueuesShareWorkers(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, workers := range []int{1, 2, 3, 2 * runtime.GOMAXPROCS(0)} {
		d := cpu.NewHost(workers)
		const queues, rounds, n = 3, 20, 100000
		var qs []*cpu.Queue
		var sums [queues][]float32
		for i := range queues {
			qs = append(qs, d.NewQueue(fmt.Sprint(i)))
			sums[i] = make([]float32, n)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		terms := make([]float32, n)
		for i := range terms {
			terms[i] = rng.Float32()
		}
		var hosts sync.WaitGroup
		for i, q := range qs {
			hosts.Go(func() {
				for range rounds {
					q.AddTo(device.OfF32(sums[i]), device.OfF32(sums[i]), device.OfF32(terms))
				}
				if err := q.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
		hosts.Wait()
		for i := range n {
			var want float32
			for range rounds {
				want += terms[i]
			}
			for j := range queues {
				if sums[j][i] != want {
					t.Fatalf("%d workers, queue %d: element %d is %g, want %g", workers, j, i, sums[j][i], want)
				}
			}
		}
		for _, q := range qs {
			q.Close()
		}
		d.Close()
	}
}

// TestMemoryOutlivesCollection checks that the garbage collector does not free device memory, which
// only the account references.
func TestMemoryOutlivesCollection(t *testing.T) {
	d := cpu.NewHost(1)
	defer d.Close()
	b, err := d.Alloc(device.F64, 1000, device.States)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.F64() {
		b.F64()[i] = float64(i)
	}
	for range 3 {
		runtime.GC()
		_ = make([]float64, 1000)
	}
	for i, x := range b.F64() {
		if x != float64(i) {
			t.Fatalf("element %d is %g", i, x)
		}
	}
	d.Free(b)
}
