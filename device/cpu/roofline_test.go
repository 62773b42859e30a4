package cpu

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"zeroth/device/cpu/kernel"
)

// TestStreams checks that the loops compute what their names promise, so that their rates are
// meaningful.
func TestStreams(t *testing.T) {
	for _, s := range kernel.Streams() {
		const n = 1 << 13
		dst, a, b := make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range a {
			dst[i], a[i], b[i] = float32(-i), float32(i), float32(4*i)
		}
		want := map[string]float32{"copy": 1, "triad": 3, "in place": 1, "update": -0.5, "read": -1}[s.Name]
		s.Piece(dst, a, b)
		if sum := math.Float32frombits(kernel.SinkGo.Load()); s.Name == "read" && math.Abs(float64(sum)/(n*(n-1)/2)-1) > 1e-3 {
			t.Errorf("read %g, want %d", sum, n*(n-1)/2)
		}
		for i := range dst {
			if dst[i] != want*float32(i) {
				t.Fatalf("%s: element %d is %g, want %g", s.Name, i, dst[i], want*float32(i))
			}
		}
	}
}

// TestStreamPass checks that a pass reaches every element, for any number of workers.
func TestStreamPass(t *testing.T) {
	for _, workers := range []int{1, 3} {
		reached := make([]float32, 5*kernel.StreamUnit)
		s := kernel.Stream{Piece: func(dst, _, _ []float32) {
			for i := range dst {
				dst[i]++
			}
		}}
		s.Pass(workers, reached, reached, reached)
		for i, n := range reached {
			if n != 1 {
				t.Fatalf("%d workers: element %d was reached %g times", workers, i, n)
			}
		}
	}
}

// TestPeaks checks that peaks are plausible rates, and that bf16's is higher.
func TestPeaks(t *testing.T) {
	best := func(p kernel.Peak) (rate float64) { // of several: other programs may use the processor
		for range 20 {
			rate = max(rate, p.Rate(1))
		}
		return rate
	}
	f32 := best(kernel.PeakF32())
	if f32 < 1e8 || f32 > 1e12 {
		t.Errorf("%s: %g operations a second", kernel.PeakF32().Name, f32)
	}
	if p, ok := kernel.PeakBF16(); ok {
		if r := best(p); r < f32/2 || r > 1e14 {
			t.Errorf("%s: %g operations a second, float32 %g", p.Name, r, f32)
		}
	}
	kernel.FmaGo(10)
	dst, a := []float32{1, 2}, []float32{3, 4}
	kernel.StreamsGo[0](dst, a, a)
	kernel.StreamsGo[1](dst, nil, nil)
	kernel.StreamsGo[2](dst, a, nil)
	if dst[0] != -3 || dst[1] != -4 {
		t.Errorf("the portable loops give %v", dst)
	}
}

// BenchmarkPeak reports the best rate of multiply-adds in registers of several runs, because other
// programs only make them slower:
//
//	go test ./device/cpu -run '^$' -bench Peak -benchtime 50x
func BenchmarkPeak(b *testing.B) {
	peaks := []kernel.Peak{kernel.PeakF32()}
	if p, ok := kernel.PeakBF16(); ok {
		peaks = append(peaks, p)
	}
	for _, p := range peaks {
		for _, workers := range benchWorkers() {
			b.Run(fmt.Sprintf("%s/%dw", p.Name, workers), func(b *testing.B) {
				rate := 0.0
				for b.Loop() {
					rate = max(rate, p.Rate(workers))
				}
				b.ReportMetric(rate/1e9, "GF/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkStreams reports the median rate of each pass over memory:
//
//	go test ./device/cpu -run '^$' -bench Streams -benchtime 7x
func BenchmarkStreams(b *testing.B) {
	x, y, z := make([]float32, kernel.StreamLen), make([]float32, kernel.StreamLen), make([]float32, kernel.StreamLen)
	for _, s := range kernel.Streams() {
		for _, workers := range benchWorkers() {
			b.Run(fmt.Sprintf("%s/%dw", s.Name, workers), func(b *testing.B) {
				s.Pass(workers, x, y, z) // touches all pages
				var took []float64
				for b.Loop() {
					start := time.Now()
					s.Pass(workers, x, y, z)
					took = append(took, time.Since(start).Seconds())
				}
				slices.Sort(took)
				b.ReportMetric(float64(s.Bytes*len(x))/took[len(took)/2]/1e9, "GB/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
