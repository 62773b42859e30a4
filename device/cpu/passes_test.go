package cpu

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// loopBytes is the total size of a pass's arrays.
const loopBytes = 768 << 20

// inC is testdata/loops.c, compiled and running in a separate process, so that neither cgo nor its
// scheduler affects the measurement.
type inC struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

// startC compiles and starts the loops, or returns nil if there is no gcc.
func startC(b *testing.B) *inC {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil
	}
	exe := filepath.Join(b.TempDir(), "loops")
	build := exec.Command(gcc, "-O3", "-march=native", "-fno-math-errno", "-pthread", "-o", exe, "testdata/loops.c", "-lm")
	if text, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, text)
	}
	run := exec.Command(exe, fmt.Sprint(loopBytes))
	in, err := run.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := run.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := run.Start(); err != nil {
		b.Fatal(err)
	}
	c := &inC{in, bufio.NewScanner(out)}
	b.Cleanup(func() {
		in.Close()
		if err := run.Wait(); err != nil {
			b.Error(err)
		}
	})
	return c
}

// seconds returns the time of one run.
func (c *inC) seconds(b *testing.B, name string, threads int) float64 {
	fmt.Fprintln(c.in, name, threads)
	if !c.out.Scan() {
		b.Fatalf("%s in C: %v", name, c.out.Err())
	}
	s, err := strconv.ParseFloat(c.out.Text(), 64)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// pass is a memory-bound kernel to measure.
type pass struct {
	name   string // also the name of the loop in C
	floats int    // arrays of float32
	halves int    // arrays of bf16, stored after them
	bytes  int    // read and written per element
	limit  string
	alone  bool // C has no such loop
	run    func(q *Queue, x []device.Buffer)
}

func (k *pass) elements() int { return loopBytes / (4*k.floats + 2*k.halves) / 4096 * 4096 }

// addUpOn performs AddUp in as many parts as the device has workers.
func addUpOn(q *Queue, x []device.Buffer) {
	q.Do(func() error {
		workers := len(q.pool.workers) + 1
		kernel.Together(workers, func(i int) {
			n := x[0].N / 4096
			var part []device.Buffer
			for _, b := range x {
				part = append(part, b.Slice(i*n/workers*4096, (i+1)*n/workers*4096))
			}
			kernel.AddUp(part[0], part[1:])
		})
		return nil
	})
}

var passes = []pass{
	{"adamw", 4, 0, 28, "in place", false, func(q *Queue, x []device.Buffer) {
		q.AdamW(x[0], device.Buffer{}, x[1], x[2], x[3], device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-6, RootC2: 1})
	}},
	{"adamw-bf16", 4, 1, 30, "in place", true, func(q *Queue, x []device.Buffer) {
		q.AdamW(x[0], x[4], x[1], x[2], x[3], device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-6, RootC2: 1})
	}},
	{"momentum", 3, 0, 20, "in place", false, func(q *Queue, x []device.Buffer) {
		q.SGD(x[0], device.Buffer{}, x[1], x[2], device.SGD{GradScale: 1, Momentum: 0.5, LR: 1e-9})
	}},
	{"sgd", 2, 0, 12, "update", false, func(q *Queue, x []device.Buffer) {
		q.SGD(x[0], device.Buffer{}, x[1], device.Buffer{}, device.SGD{GradScale: 1, LR: 1e-9})
	}},
	{"lion", 3, 0, 20, "in place", false, func(q *Queue, x []device.Buffer) {
		q.Lion(x[0], device.Buffer{}, x[1], x[2], device.Lion{GradScale: 1, Beta1: 0.9, Beta2: 0.99, Shrink: 1, LR: 1e-9})
	}},
	{"sumsquares", 1, 0, 4, "read", true, func(q *Queue, x []device.Buffer) {
		q.SumSquares(ofI64(make([]int64, device.ExactLen)), x[0])
	}},
	{"add", 3, 0, 12, "triad", true, func(q *Queue, x []device.Buffer) { q.AddTo(x[0], x[1], x[2]) }},
	{"narrow", 1, 1, 6, "triad", false, func(q *Queue, x []device.Buffer) { q.Cast(x[1], x[0]) }},
	{"widen", 1, 1, 6, "copy", false, func(q *Queue, x []device.Buffer) { q.Cast(x[0], x[1]) }},
	{"sum2", 3, 0, 12, "triad", false, addUpOn},
	{"sum4", 5, 0, 20, "triad", false, addUpOn},
	{"sum8", 9, 0, 36, "triad", false, addUpOn},
	{"copy", 2, 0, 8, "copy", false, func(q *Queue, x []device.Buffer) { q.Copy(x[0], x[1]) }},
}

// BenchmarkPasses compares memory-bound kernels with the machine's limit and, if there is a gcc,
// with loops in C. Every round runs all three and, before and after them, the multiply-add peak.
// It reports medians of the ratios within rounds, over the rounds with the best peak, or over all
// if there are none:
//
//	go test ./device/cpu -run '^$' -bench Passes -benchtime 9x
func BenchmarkPasses(b *testing.B) {
	c, peak := startC(b), kernel.PeakF32()
	for _, workers := range benchWorkers() {
		d := NewHost(workers)
		b.Cleanup(d.Close)
		q := d.NewQueue("loops")
		b.Cleanup(q.Close)
		mem, err := d.Alloc(device.F32, loopBytes/4, device.States)
		if err != nil {
			b.Fatal(err)
		}
		for i := range mem.F32() {
			mem.F32()[i] = 1e-3 * float32(i%1000)
		}
		for _, k := range passes {
			b.Run(fmt.Sprintf("%s/workers=%d", k.name, workers), func(b *testing.B) { k.compare(b, c, q, workers, mem, peak) })
		}
		d.Free(mem)
	}
}

// compare runs the rounds.
func (k *pass) compare(b *testing.B, c *inC, q *Queue, workers int, mem device.Buffer, peak kernel.Peak) {
	n := k.elements()
	var x []device.Buffer
	for i := range k.floats {
		x = append(x, mem.Slice(i*n, (i+1)*n))
	}
	for range k.halves {
		x = append(x, kernel.RawBuffer(device.BF16, mem.Slice(k.floats*n, mem.N).Ptr, n))
	}
	streams := kernel.Streams()
	limit := streams[slices.IndexFunc(streams, func(s kernel.Stream) bool { return s.Name == k.limit })]
	third := loopBytes / 12 / kernel.StreamUnit * kernel.StreamUnit
	measure := func(f func()) float64 {
		start := time.Now()
		f()
		return time.Since(start).Seconds()
	}
	type round struct{ c, ours, limit, peak float64 } // GB/s, and operations per second
	var rounds []round
	best, loops := 0.0, c != nil && !k.alone
	for b.Loop() {
		r := round{peak: peak.Rate(workers)}
		if loops {
			r.c = float64(k.bytes*n) / 1e9 / c.seconds(b, k.name, workers)
		}
		r.ours = float64(k.bytes*n) / 1e9 / measure(func() {
			k.run(q, x)
			if err := q.Wait(); err != nil {
				b.Fatal(err)
			}
		})
		r.limit = float64(limit.Bytes*third) / 1e9 / measure(func() {
			limit.Pass(workers, mem.F32()[:third], mem.F32()[third:2*third], mem.F32()[2*third:3*third])
		})
		r.peak = min(r.peak, peak.Rate(workers))
		best = max(best, r.peak)
		rounds = append(rounds, r)
	}
	good := slices.DeleteFunc(slices.Clone(rounds), func(r round) bool { return r.peak < 0.93*best })
	if len(good) == 0 {
		good = rounds
	}
	median := func(f func(round) float64) float64 {
		var all []float64
		for _, r := range good {
			all = append(all, f(r))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	b.ReportMetric(median(func(r round) float64 { return r.ours }), "GB/s")
	if loops {
		b.ReportMetric(median(func(r round) float64 { return r.ours / r.c }), "of-C")
	}
	b.ReportMetric(median(func(r round) float64 { return r.ours / r.limit }), "of-limit")
	b.ReportMetric(float64(len(good)), "rounds")
	b.ReportMetric(0, "ns/op")
}
