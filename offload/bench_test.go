package offload_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cpu/kernel"
	"zeroth/offload"
)

// benchUnits have shards of 24 tiles each; with AdamW's state they take 576 MiB.
var benchUnits = []offload.Unit{{Name: "a", Len: 24 << 20}, {Name: "b", Len: 24 << 20}}

// limits measures the disk's own limit with a file, bypassing the page cache: two readers
// read blocks of its first half while two writers write blocks of its second.
type limits struct {
	file vfs.ScratchFile
	mem  [4]device.Buffer // one block each
}

const limitBlock = 4 << 20 // bytes

// newLimits creates a file of twice the given bytes and writes all of it once.
func newLimits(b *testing.B, name string, bytes int) *limits {
	l := &limits{}
	var err error
	if l.file, err = (vfs.OS{}).CreateLocked(name); err != nil {
		b.Fatal(err)
	}
	dev := cpu.NewHost(1)
	for i := range l.mem {
		if l.mem[i], err = dev.Alloc(device.F32, limitBlock/4, device.Staging); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		l.file.Close()
		os.Remove(name)
		for _, m := range l.mem {
			dev.Free(m)
		}
		dev.Close()
	})
	if err := l.file.Reserve(int64(2 * bytes)); err != nil {
		b.Fatal(err)
	}
	l.file.Direct(true)
	for at := 0; at < 2*bytes; at += limitBlock {
		if _, err := l.file.WriteAt(l.mem[0].Raw(), int64(at)); err != nil {
			b.Fatal(err)
		}
	}
	return l
}

// pass reads and writes the given bytes each, and returns the time it took.
func (l *limits) pass(b *testing.B, bytes int) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for lane, mem := range l.mem {
		wg.Go(func() {
			for at := lane / 2 * limitBlock; at < bytes; at += len(l.mem) / 2 * limitBlock {
				var err error
				if lane%2 == 0 {
					_, err = l.file.WriteAt(mem.Raw(), int64(bytes+at))
				} else {
					_, err = l.file.ReadAt(mem.Raw(), int64(at))
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// median returns the median of x, which it sorts.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// BenchmarkDisk alternates passes of updates that compute nothing over state on disk with
// passes at the disk's own limit for mixed reads and writes. It reports medians; the ratio
// is the median of the ratios of adjacent passes. The folder is ZEROTH_BENCH_DIR, or a
// temporary one.
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
				st := r.Acquire(u, i, offload.All)
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
	pass() // write once, so that later passes read
	const bytes = 12 * 48 << 20
	disk := newLimits(b, filepath.Join(dir, "limit"), bytes)
	var limit, ours, ratio []float64 // bytes per second
	for b.Loop() {
		before := disk.pass(b, bytes)
		start := time.Now()
		pass()
		mine := time.Since(start)
		both := (before + disk.pass(b, bytes)) / 2
		limit, ours = append(limit, 2*bytes/both.Seconds()), append(ours, 2*bytes/mine.Seconds())
		ratio = append(ratio, both.Seconds()/mine.Seconds())
	}
	b.ReportMetric(median(limit)/1e6, "disk-MB/s")
	b.ReportMetric(median(ours)/1e6, "ours-MB/s")
	b.ReportMetric(median(ratio), "ours/disk")
}

// BenchmarkHost alternates passes of AdamW over state in host memory, which copy parameters
// back to the device tile by tile, with modifying memory in place at the machine's own
// limit. It counts the bytes the update must move, 28 of float32 and 2 of the parameter per
// element, without the copies.
func BenchmarkHost(b *testing.B) {
	cfg := offload.Config{Optimizer: offload.Host, Ratio: 1, Buffers: 4, DType: device.BF16, Vecs: [][]device.DType{{device.F32, device.F32}}}
	workers := runtime.GOMAXPROCS(0)
	dev := cpu.NewHost(workers)
	defer dev.Close()
	q := dev.NewQueue("host")
	defer q.Close()
	grads, elems := make([]device.Buffer, len(benchUnits)), 0
	for i, u := range benchUnits {
		grads[i] = device.OfF32(slices.Repeat([]float32{1}, u.Len)) // untouched pages would all be the zero page
		elems += u.Len
	}
	r, err := newRigOf(b, cfg, benchUnits, grads, nil)
	if err != nil {
		b.Fatal(err)
	}
	rule := device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-6, RootC2: 1}
	pass := func() {
		for u := range benchUnits {
			for i := range r.Tiles(u) {
				st := r.Acquire(u, i, offload.All)
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
	streams := kernel.Streams()
	limit := streams[slices.IndexFunc(streams, func(s kernel.Stream) bool { return s.Name == "in place" })]
	x, y, z := make([]float32, kernel.StreamLen), make([]float32, kernel.StreamLen), make([]float32, kernel.StreamLen)
	best := func(have float64, bytes int, f func()) float64 {
		start := time.Now()
		f()
		return max(have, float64(bytes)/time.Since(start).Seconds())
	}
	var memory, ours float64
	for b.Loop() {
		memory = best(memory, limit.Bytes*kernel.StreamLen, func() { limit.Pass(workers, x, y, z) })
		ours = best(ours, 30*elems, pass)
	}
	b.ReportMetric(memory/1e9, "memory-GB/s")
	b.ReportMetric(ours/1e9, "ours-GB/s")
	b.ReportMetric(ours/memory, "ours/memory")
}
