package offload_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/offload"
)

// benchUnits are shards of 48 tiles: with AdamW's states 576 MiB.
var benchUnits = []offload.Unit{{Name: "a", Len: 24 << 20}, {Name: "b", Len: 24 << 20}}

// mixed is the disk's own limit: bytes read and written, past the page cache, by
// so many readers and as many writers of blocks at once.
func mixed(b *testing.B, name string, lanes, block, bytes int) time.Duration {
	f, err := offload.OS{}.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(name)
	defer f.Close()
	if err := f.Reserve(int64(2 * bytes)); err != nil {
		b.Fatal(err)
	}
	f.Direct(true)
	dev := cpu.New(1)
	defer dev.Close()
	var run [2]time.Duration
	for pass := range run { // the first one makes what the second reads
		var wg sync.WaitGroup
		start := time.Now()
		for lane := range 2 * lanes {
			mem, err := dev.Alloc(device.F32, block/4, device.Staging)
			if err != nil {
				b.Fatal(err)
			}
			wg.Go(func() {
				for at := lane / 2 * block; at < bytes; at += lanes * block {
					half := int64(bytes * ((lane + pass) % 2))
					if lane%2 == 0 || pass == 0 {
						_, err = f.WriteAt(mem.Raw(), half+int64(at))
					} else {
						_, err = f.ReadAt(mem.Raw(), half+int64(at))
					}
					if err != nil {
						b.Error(err)
					}
				}
				dev.Free(mem)
			})
		}
		wg.Wait()
		run[pass] = time.Since(start)
	}
	return run[1]
}

// BenchmarkDisk is passes of updates that compute nothing over state on disk,
// against the disk's own mixed limit, in turns. Its folder is ZEROTH_BENCH_DIR,
// or a temporary one.
func BenchmarkDisk(b *testing.B) {
	dir := os.Getenv("ZEROTH_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	cfg := onDisk(dir, "bench", 0)
	cfg.Tile, cfg.Buffers = 0, 4
	r, err := newRig(b, cfg, benchUnits)
	if err != nil {
		b.Fatal(err)
	}
	pass := func() {
		for u := range benchUnits {
			for i := range r.Tiles(u) {
				st := r.Acquire(u, i)
				r.work.After(st.Ready[0])
				r.work.After(st.Ready[1])
				r.Release(u, i, r.work.Mark(), true)
			}
		}
		for _, q := range r.queues {
			if err := q.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	}
	pass() // writes what later ones read
	const bytes = 12 * 48 << 20
	limit, ours := time.Duration(1<<62), time.Duration(1<<62)
	for b.Loop() {
		limit = min(limit, mixed(b, filepath.Join(dir, "limit"), 2, 4<<20, bytes))
		start := time.Now()
		pass()
		ours = min(ours, time.Since(start))
	}
	b.ReportMetric(2*bytes/limit.Seconds()/1e6, "disk-MB/s")
	b.ReportMetric(2*bytes/ours.Seconds()/1e6, "ours-MB/s")
	b.ReportMetric(limit.Seconds()/ours.Seconds(), "ours/disk")
}

// BenchmarkHost is passes of AdamW over state in host memory, parameters going
// back to the device tile by tile, against the machine's own change of memory in
// place, in turns. Its bytes are those the update must move: 28 of float32 an
// element and 2 of the parameter; the copy back is on top.
func BenchmarkHost(b *testing.B) {
	cfg := offload.Config{Optimizer: offload.Host, Ratio: 1, Buffers: 4, DType: device.BF16, Vecs: 2}
	r, err := newRig(b, cfg, benchUnits)
	if err != nil {
		b.Fatal(err)
	}
	workers := runtime.GOMAXPROCS(0)
	dev := cpu.New(workers)
	defer dev.Close()
	q := dev.NewQueue("host")
	defer q.Close()
	grads, elems := make([]device.Buffer, len(benchUnits)), 0
	for i, u := range benchUnits {
		grads[i] = device.OfF32(slices.Repeat([]float32{1}, u.Len)) // else all its pages are one
		elems += u.Len
		r.Bind(i, r.params[i], grads[i])
	}
	rule := device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-6, RootC2: 1}
	pass := func() {
		for u := range benchUnits {
			for i := range r.Tiles(u) {
				st := r.Acquire(u, i)
				q.After(st.Ready[0])
				q.AdamW(st.Master, st.Param, st.Grad, st.Vec[0], st.Vec[1], rule)
				r.Release(u, i, q.Mark(), true)
			}
		}
		for _, q := range append(r.queues, q) {
			if err := q.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	}
	streams := cpu.Streams()
	limit := streams[slices.IndexFunc(streams, func(s cpu.Stream) bool { return s.Name == "in place" })]
	x, y, z := make([]float32, cpu.StreamLen), make([]float32, cpu.StreamLen), make([]float32, cpu.StreamLen)
	best := func(have float64, bytes int, f func()) float64 {
		start := time.Now()
		f()
		return max(have, float64(bytes)/time.Since(start).Seconds())
	}
	var memory, ours float64
	for b.Loop() {
		memory = best(memory, limit.Bytes*cpu.StreamLen, func() { limit.Pass(workers, x, y, z) })
		ours = best(ours, 30*elems, pass)
	}
	b.ReportMetric(memory/1e9, "memory-GB/s")
	b.ReportMetric(ours/1e9, "ours-GB/s")
	b.ReportMetric(ours/memory, "ours/memory")
}
