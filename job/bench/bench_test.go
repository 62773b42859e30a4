package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/machine"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/tests/nightly"
)

func quickBench(ctx context.Context) *bench {
	return &bench{Options: Options{Seconds: 0.02}, ctx: ctx, limits: map[string]float64{}}
}

func TestBenchStops(t *testing.T) {
	broken := errors.New("broken")
	b := quickBench(t.Context())
	if err := b.line("g", "n", 1, "", func() error { return broken }); err != broken {
		t.Errorf("error %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b = quickBench(ctx)
	b.Seconds = 1000
	err := b.line("g", "n", 1, "", func() error { cancel(); return nil })
	if err != nil || len(b.report.Lines) > 0 {
		t.Errorf("a cancelled line: %v, %d lines", err, len(b.report.Lines))
	}
}

// TestBenchWarm checks that short work is repeated within a sample, and long work is not.
func TestBenchWarm(t *testing.T) {
	calls := 0
	short, err := warm(func() error { calls++; return nil })
	long, err2 := warm(func() error { time.Sleep(2 * sampleTime); return nil })
	if err := errors.Join(err, err2); err != nil || short < 100 || long != 1 || calls != 2 {
		t.Errorf("%d and %d repetitions after %d calls, error %v", short, long, calls, err)
	}
}

// TestBenchLine checks that a line with a limit reports its share of it.
func TestBenchLine(t *testing.T) {
	b := quickBench(t.Context())
	defer b.close()
	if err := b.open(1 << 17); err != nil {
		t.Fatal(err)
	}
	if err := b.line("g", "n", 1e6, "copy", func() error { time.Sleep(sampleTime); return nil }); err != nil {
		t.Fatal(err)
	}
	l := b.report.Lines[0]
	if l.Seconds < sampleTime.Seconds() || math.Abs(l.Rate*l.Seconds-1e6) > 1 || l.Limit < 1e8 || l.Limit > 1e13 || math.Abs(l.Share*l.Limit-l.Rate) > 1 {
		t.Errorf("%+v", l)
	}
}

// TestModelFlops checks the arithmetic of a token against a count by hand for the GPT with 29.5
// million parameters.
func TestModelFlops(t *testing.T) {
	m := hf.Model{Shape: nn.Shape{Layers: 8, Width: 512, Context: 128, Vocab: 4096}}
	if want := 6*(8*12*512*512+4096*512) + 6*8*128*512.; flops(m) != float64(want) {
		t.Errorf("%g, want %g", flops(m), want)
	}
}

// TestBenchWithoutGPU checks that a missing GPU is an error only if it was requested.
func TestBenchWithoutGPU(t *testing.T) {
	if _, err := machine.UsableGPUs(); err == nil {
		t.Skip("there is a GPU")
	}
	if err := (Options{}).CheckGPU(); err != nil {
		t.Error(err)
	}
	err := Options{Groups: []string{"gpu"}}.CheckGPU()
	if want := "gpu: this binary was built without GPU support; build one with scripts/build-cuda"; err == nil || !machine.BuiltForGPUs && err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	b := quickBench(t.Context())
	if err := b.gpu(); err != nil || len(b.report.Lines) > 0 || b.report.Machine() != nil {
		t.Errorf("%v, %d lines", err, len(b.report.Lines))
	}
}

// TestBenchMachine checks that the description of a measured GPU contains the measured values.
func TestBenchMachine(t *testing.T) {
	line := func(name string, rate float64) Row {
		return Row{Group: "gpu", Name: name, Rate: rate, Seconds: 6 / rate}
	}
	r := Report{gpus: 2, hostMemory: 5, Lines: []Row{
		line(onDevice, 40), line(bothWays, 8), line(launches, 4), line(squareOf(device.F32), 10), line(squareOf(device.BF16), 20), line(squareOf(device.F16), 30),
		line(attentionOf, 2), line(attentionGradOf, 3), line(betweenGPUs, 7),
	}}
	want := forecast.Hardware{GPU: true, Source: "measured by zeroth bench gpu", Flops: map[string]float64{"fp32": 10, "bf16": 20, "fp16": 30}, Attention: 2.4,
		Memory: 40, Launch: .25, HostLink: 4, HostMemory: 5, Links: []forecast.Link{{Ranks: 2, Bandwidth: 7, Latency: .25}}}
	if got := r.Machine(); fmt.Sprint(*got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
	r.Lines = r.Lines[:len(r.Lines)-1]
	if got := r.Machine(); len(got.Links) > 0 {
		t.Errorf("a single GPU with links %v", got.Links)
	}
}

func TestBenchReport(t *testing.T) {
	r := Report{Host: Host{"linux", "amd64", 2, "go1.26", "avx2", "avx2", ""}, Lines: []Row{
		{Group: "disk", Name: "copy", Seconds: 0.0101, Rate: 12.34e9, Unit: "B/s", Samples: 7},
		{Group: "collective", Name: "x", Seconds: 12.5e-6, Rate: 50e9, Unit: "B/s", Limit: 100e9, LimitName: "copy", Share: 0.5, Samples: 3},
		{Group: "gpu", Name: "y", Seconds: 2, Rate: 512, Unit: "launch/s", Samples: 1},
	}}
	var table, markdown strings.Builder
	raw, err := json.Marshal(r)
	if err := errors.Join(err, r.Table(&table, false), r.Table(&markdown, true)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"linux/amd64, 2 processors", "10.1 ms     12.3 GB/s", "12 µs     50.0 GB/s  0.50 of copy        3", "512 launch/s"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("table: no %q in\n%s", want, &table)
		}
	}
	if want := "| collective | x | 12 µs | 50.0 GB/s | 0.50 of copy | 3 |\n"; !strings.Contains(markdown.String(), want) {
		t.Errorf("no %q in\n%s", want, &markdown)
	}
	var back Report
	if err := json.Unmarshal(raw, &back); err != nil || fmt.Sprint(back) != fmt.Sprint(r) {
		t.Errorf("%v: %+v", err, back)
	}
}

// TestBenchGroups checks that every group measures something, with positive rates and limits.
func TestBenchGroups(t *testing.T) {
	if !nightly.All() {
		t.Skip("several seconds: 256 MiB on the disk")
	}
	b := quickBench(t.Context())
	b.Seconds, b.Dir = 0.001, t.TempDir()
	defer b.close()
	if err := b.open(1 << 22); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.collective(), b.disk()); err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for _, l := range b.report.Lines {
		lines[l.Group]++
		if l.Rate <= 0 || l.Samples == 0 || l.LimitName != "" && l.Limit <= 0 {
			t.Errorf("%+v", l)
		}
	}
	if lines["collective"] != 8 || lines["disk"] != 2 {
		t.Errorf("lines: %v", lines)
	}
	if _, err := Run(t.Context(), Options{Groups: []string{"disk"}, Seconds: 0.001, Dir: "/no/such/folder"}); err == nil || !strings.HasPrefix(err.Error(), "disk: open /no/such/folder/zeroth-bench-") {
		t.Errorf("a disk that is not there: %v", err)
	}
}
