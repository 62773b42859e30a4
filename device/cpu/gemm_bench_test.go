package cpu

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// peakRate returns the rate of a register-only multiply-add loop of about a millisecond on the
// given number of goroutines, in operations per second.
func peakRate(workers int) float64 { return fp32Peak().Rate(workers) }

var fp32Peak = sync.OnceValue(kernel.PeakF32)

// gated is a measurement with the multiply-add peak during it.
type gated struct {
	seconds  float64
	possible float64 // operations that the machine could have performed in that time
	quiet    int     // number of undisturbed samples
}

// gate runs f until seven samples are undisturbed, or 24 have been taken. It returns the median
// of the undisturbed samples or, if there are none, the fastest of all. A sample is undisturbed
// if our threads waited for a processor at most 0.04 of the time and the peak loops before and
// after it reached 0.93 of the best.
func gate(workers int, f func()) gated {
	var all, quiet []gated
	best := 0.0
	for range 5 {
		best = max(best, peakRate(workers))
	}
	f()
	for try := 0; try < 24 && len(quiet) < 7; try++ {
		before := peakRate(workers)
		waited, start := queued(), time.Now()
		f()
		t := time.Since(start).Seconds()
		waited = queued() - waited
		after := peakRate(workers)
		best = max(best, before, after)
		g := gated{seconds: t, possible: t * (before + after) / 2}
		all = append(all, g)
		if waited.Seconds() <= 0.04*t*float64(workers) && min(before, after) >= 0.93*best {
			quiet = append(quiet, g)
		}
	}
	slower := func(x, y gated) int { return cmp.Compare(x.seconds, y.seconds) }
	if len(quiet) == 0 {
		return slices.MinFunc(all, slower)
	}
	slices.SortFunc(quiet, slower)
	g := quiet[len(quiet)/2]
	g.quiet = len(quiet)
	return g
}

// report reports the rate of ops operations and its ratio to the peak.
func (g gated) report(b *testing.B, ops float64) {
	b.ReportMetric(ops/g.seconds/1e9, "GF/s")
	b.ReportMetric(ops/g.possible, "of-fp32-peak")
	b.ReportMetric(float64(g.quiet), "quiet-samples")
	b.ReportMetric(0, "ns/op")
}

// queued returns the total time for which this process's threads have been ready to run while
// others used the processors, where Linux reports it. Threads that have ended do not count.
func queued() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is valid
	for _, name := range files {
		raw, _ := os.ReadFile(name) // a thread may have ended, and some kernels lack these statistics
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64) // nanoseconds of waiting
			sum += time.Duration(ns)
		}
	}
	return sum
}

// benchWorkers returns the numbers of workers for measurements.
func benchWorkers() []int { return slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) }

// benchShape is a product by form (NN, NT, TN, TT) and m, n, k.
type benchShape struct {
	form    string
	m, n, k int
}

// BenchmarkMatMul reports the rate of models' products and its ratio to the float32 multiply-add
// peak in the same run. Use -benchtime 1x: one op is a median.
func BenchmarkMatMul(b *testing.B) {
	for _, t := range []device.DType{device.F32, device.BF16, device.F16} {
		for _, workers := range benchWorkers() {
			for _, s := range referenceShapes {
				b.Run(fmt.Sprintf("%v/%s/%dx%dx%d/%dw", t, s.form, s.m, s.n, s.k, workers), func(b *testing.B) {
					q, p := testQueue(b, workers), s.flat(t)
					ops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
					reps := max(1, int(1e9/ops))
					for b.Loop() {
						gate(workers, func() {
							for range reps {
								q.MatMul(p.c.Mat, p.a, p.b, device.Buffer{}, false)
							}
							if err := q.Wait(); err != nil {
								b.Fatal(err)
							}
						}).report(b, ops*float64(reps))
					}
				})
			}
		}
	}
}

func (x *inTurn) report(b *testing.B, other string) {
	b.ReportMetric(x.rate/1e9, "GF/s")
	b.ReportMetric(x.rate/x.peak, "of-fp32-peak")
	b.ReportMetric(x.ratio, "of-"+other)
	b.ReportMetric(x.quiet, "of-"+other+"-at-best")
	b.ReportMetric(x.pairs, "pairs")
}

// BenchmarkMatMulBF16 compares products of bf16 with those of float32.
func BenchmarkMatMulBF16(b *testing.B) {
	for _, workers := range []int{1, 2} {
		for _, s := range referenceShapes {
			b.Run(fmt.Sprintf("%s/%dx%dx%d/%dw", s.form, s.m, s.n, s.k, workers), func(b *testing.B) {
				q := testQueue(b, workers)
				run := func(p *product) func(int) {
					return func(reps int) {
						for range reps {
							q.MatMul(p.c.Mat, p.a, p.b, device.Buffer{}, false)
						}
						if err := q.Wait(); err != nil {
							b.Fatal(err)
						}
					}
				}
				half, full := run(s.flat(device.BF16)), run(s.flat(device.F32))
				for b.Loop() {
					x := inTurns(workers, time.Second, 2*float64(s.m)*float64(s.n)*float64(s.k), half, full)
					x.report(b, "fp32")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// referenceShapes contains the products of a step of the 10.8M, the 29.5M and the 124M GPT, and
// small ones.
var referenceShapes = []benchShape{
	{"NN", 1024, 1152, 384}, {"NN", 1024, 384, 384}, {"NN", 1024, 1536, 384}, {"NN", 1024, 384, 1536}, {"NT", 1024, 384, 1536}, {"TN", 384, 1536, 1024}, {"NT", 1024, 256, 384},
	{"NN", 512, 1536, 512}, {"NN", 512, 2048, 512}, {"NT", 512, 512, 2048}, {"TN", 512, 2048, 512}, {"NT", 512, 4096, 512},
	{"NN", 1024, 2304, 768}, {"NN", 1024, 768, 768}, {"NN", 1024, 3072, 768}, {"NN", 1024, 768, 3072}, {"NT", 1024, 768, 3072}, {"TN", 768, 3072, 1024},
	{"NT", 256, 50257, 768}, {"NN", 256, 768, 50257}, {"TN", 50257, 768, 256}, {"NN", 1024, 1024, 1024},
	{"NN", 64, 64, 64}, {"NN", 128, 128, 128}, {"NN", 256, 256, 256}, {"NT", 256, 256, 64}, {"NN", 256, 64, 256},
}

func (s benchShape) flat(t device.DType) *product {
	rng := rand.New(rand.NewPCG(1, 1))
	mat := func(t device.DType, rows, cols int, trans bool) device.Mat {
		if trans {
			rows, cols = cols, rows
		}
		wide := hostBuffer(device.F32, rows*cols)
		for i := range wide.F32() {
			wide.F32()[i] = rng.Float32() - 0.5
		}
		b := hostBuffer(t, rows*cols)
		kernel.Store(b, wide.F32())
		m := device.Matrix(b, rows, cols)
		if trans {
			m = m.T()
		}
		return m
	}
	ct := t
	if s.form[0] == 'T' { // a gradient of parameters
		ct = device.F32
	}
	return &product{c: view{Mat: mat(ct, s.m, s.n, false)}, a: mat(t, s.m, s.k, s.form[0] == 'T'), b: mat(t, s.k, s.n, s.form[1] == 'T'), m: s.m, n: s.n, k: s.k}
}

// inTurn contains measurements of two alternating implementations.
type inTurn struct {
	rate  float64 // rate of the first, in operations per second
	ratio float64 // ratio of the first's rate to the second's
	quiet float64 // the same, with both at their best
	peak  float64 // rate of multiply-adds at its best, in operations per second
	pairs float64 // number of sample pairs
}

// settle is how long a library's threads may spin for more work after the last, each on a
// processor.
const settle = 40 * time.Millisecond

// inTurns alternately samples f and g, which both perform ops operations. Other programs usually
// slow down both samples of a pair, so the ratio is the median over the pairs. The rate and the
// other ratio come from the fastest tenths.
func inTurns(workers int, seconds time.Duration, ops float64, f, g func(reps int)) (x inTurn) {
	for range 20 {
		x.peak = max(x.peak, peakRate(workers))
	}
	reps := 1 + int(1e9/ops)
	var ratios []float64
	var rates [2][]float64
	for end := time.Now().Add(seconds); time.Now().Before(end) || len(ratios) < 5; {
		var rate [2]float64
		for i, f := range []func(int){f, g} {
			f(1) // evict the other's data from the caches
			for start := time.Now(); workers > 1 && time.Since(start) < settle; {
				f(1)
			}
			start := time.Now()
			f(reps)
			rate[i] = ops * float64(reps) / time.Since(start).Seconds()
			rates[i] = append(rates[i], rate[i])
		}
		ratios = append(ratios, rate[0]/rate[1])
		x.peak = max(x.peak, peakRate(workers))
	}
	slices.Sort(ratios)
	x.ratio, x.pairs = ratios[len(ratios)/2], float64(len(ratios))
	for i := range rates {
		slices.Sort(rates[i])
		rates[i] = rates[i][len(rates[i])*9/10:]
	}
	x.rate, x.quiet = rates[0][0], rates[0][0]/rates[1][0]
	return x
}

// byHand computes g on one worker like runGemm. Before the tiles of a group of columns it calls
// pack, which packs the group's panels into the memory.
func byHand(g kernel.Gemm, w *kernel.Worker, pack func(g *kernel.Gemm, mem *kernel.GemmScratch, s0, s1 int)) {
	g.Workers = 1
	g.Ends()
	for more := true; more; more = g.Next() {
		mem := g.Memory(w)
		if !g.InPlace {
			g.PackA(mem, 0, g.Panels)
		}
		columns := g.ColumnPanels()
		for i := range g.Groups {
			s0, s1 := i*columns/g.Groups, (i+1)*columns/g.Groups
			pack(&g, &mem, s0, s1)
			for p := range g.Panels {
				g.RowPanel(&mem, p, s0, s1)
			}
		}
	}
}

func packInProduct(g *kernel.Gemm, mem *kernel.GemmScratch, s0, s1 int) { g.PackB(*mem, s0, s1) }

// keepPacked packs B of g and returns a replacement for packing it again.
func keepPacked(g kernel.Gemm, w *kernel.Worker) func(g *kernel.Gemm, mem *kernel.GemmScratch, s0, s1 int) {
	var kept [][]float32
	byHand(g, w, func(g *kernel.Gemm, mem *kernel.GemmScratch, s0, s1 int) {
		g.PackB(*mem, s0, s1)
		kept = append(kept, slices.Clone(mem.B))
	})
	next := 0
	return func(_ *kernel.Gemm, mem *kernel.GemmScratch, _, _ int) {
		mem.B = kept[next%len(kept)]
		next++
	}
}

// BenchmarkPackedWeights compares a GPT layer's products with a weight as B with the same
// products on weights packed in advance. It reports the fraction of the time saved for forward,
// for backward, and for all twelve products, including weight gradients.
func BenchmarkPackedWeights(b *testing.B) {
	models := []struct {
		name        string
		rows, width int
	}{{"10.8M", 256, 448}, {"29.5M", 512, 512}, {"124M", 1024, 768}}
	for _, m := range models {
		for _, t := range []device.DType{device.F32, device.BF16} {
			q := testQueue(b, 1)
			var parts [3][]benchShape // forward, backward, weight gradients
			for _, weight := range [][2]int{{1, 3}, {1, 1}, {1, 4}, {4, 1}} {
				in, out := weight[0]*m.width, weight[1]*m.width
				parts[0] = append(parts[0], benchShape{"NN", m.rows, out, in})
				parts[1] = append(parts[1], benchShape{"NT", m.rows, in, out})
				parts[2] = append(parts[2], benchShape{"TN", in, out, m.rows})
			}
			part := func(name string, shapes []benchShape) {
				b.Run(fmt.Sprintf("%s/%v/%s", m.name, t, name), func(b *testing.B) {
					ops := 0.0
					var plain, kept []func()
					for range 2 { // the first run allocates
						plain, kept, ops = nil, nil, 0
						for _, s := range shapes {
							p := s.flat(t)
							g := kernel.NewGemm(p.c.Mat, p.a, p.b, device.Buffer{}, false)
							q.products.need(&g)
							again := func(pack func(g *kernel.Gemm, mem *kernel.GemmScratch, s0, s1 int)) func() {
								return func() { byHand(g, &q.w.Worker, pack) }
							}
							plain = append(plain, again(packInProduct))
							if s.form == "TN" {
								kept = append(kept, again(packInProduct))
							} else {
								kept = append(kept, again(keepPacked(g, &q.w.Worker)))
							}
							ops += 2 * float64(s.m) * float64(s.n) * float64(s.k)
						}
					}
					repeat := func(fs []func()) func(int) {
						return func(reps int) {
							for range reps {
								for _, f := range fs {
									f()
								}
							}
						}
					}
					b.ResetTimer()
					for range b.N {
						x := inTurns(1, time.Second, ops, repeat(kept), repeat(plain))
						b.ReportMetric(1-1/x.ratio, "saved")
						b.ReportMetric(x.rate/1e9, "GF/s")
					}
					b.ReportMetric(0, "ns/op")
				})
			}
			part("forward", parts[0])
			part("backward", parts[1])
			part("all", slices.Concat(parts[0], parts[1], parts[2]))
		}
	}
}
