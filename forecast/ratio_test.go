package forecast

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// offloading lists ways to offload an optimizer that differ in their kinds of memory.
var offloading = [][]string{
	{"zero.stage=0", "zero.offload.optimizer=host"},
	{"zero.stage=1", "zero.offload.optimizer=host", "checkpoint.every=5"},
	{"zero.stage=2", "zero.offload.optimizer=host", "train.micro_batch=1"},
	{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "precision=fp32"},
	{"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=host", "zero.offload.path=.", "train.micro_batch=2"},
	{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=disk", "zero.offload.path=.", "model.family=llama", "optimizer.type=adamw8bit"},
}

// TestLeastRatio checks that the search finds the smallest ratio that fits a device, to the
// hundredth, or everything if none does.
func TestLeastRatio(t *testing.T) {
	for _, sets := range offloading {
		c := spectest.Fitted(t, sets...)
		all := everyPart(t, newSearch(c, Limits{Ranks: 4}), c)
		sizes := slices.CompactFunc(slices.Clone(all), sameNeeds)
		if len(sizes) < 4 {
			t.Fatalf("%v: only %d splits", sets, len(sizes))
		}
		for i, device := range sizes {
			l := Limits{Ranks: 4, Memory: device.Needs.Device.Total() - int64(i%2)}
			want := 1 + slices.IndexFunc(all[1:], func(x *Choice) bool { return x.Needs.Device.Total() <= l.Memory })
			if want == 0 {
				want = parts
			}
			if got := newSearch(c, l).leastPart(c); got != want {
				t.Errorf("%v: %d bytes: %d hundredths, want %d", sets, l.Memory, got, want)
			}
		}
	}
}

// everyPart returns the choices for all hundredths, from nothing to everything.
func everyPart(t *testing.T, s *search, c *spec.Job) (all []*Choice) {
	t.Helper()
	for part := range parts + 1 {
		x, err := s.quick.measure(withRatio(c, part))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

func sameNeeds(a, b *Choice) bool { return a.Needs == b.Needs }

// TestFastestRatio checks that no fitting ratio has a shorter simulated step, whether the device,
// the link or the host is slow.
func TestFastestRatio(t *testing.T) {
	nightly.Parallel(t)
	ratios := map[float64]bool{}
	for _, hardware := range []Hardware{{HostLink: 50e9, HostMemory: 25e9, Memory: 2e12}, {HostLink: 50e9, HostMemory: 1e13, Memory: 1e9}, {HostLink: 1e12, HostMemory: 1e10, Memory: 1e10}} {
		h, err := OpenHardware("h100")
		if err != nil {
			t.Fatal(err)
		}
		h.HostLink, h.HostMemory, h.Memory = hardware.HostLink, hardware.HostMemory, hardware.Memory
		for _, sets := range offloading {
			c := spectest.Fitted(t, sets...)
			all := everyPart(t, newSearch(c, Limits{Ranks: 4, GPU: true, Hardware: h}), c)
			l := Limits{Ranks: 4, GPU: true, Hardware: h, Host: math.MaxInt64, Disk: math.MaxInt64, Memory: (all[0].Needs.Device.Total()+all[parts].Needs.Device.Total())/2 + all[0].High}
			s := newSearch(c, l)
			whole, err := s.measure(withRatio(c, parts))
			if err != nil || !whole.Fits() {
				t.Fatalf("%v: %+v, %v", sets, whole, err)
			}
			got := s.tune(whole)
			ratios[got.Config.Zero.Offload.Ratio] = true
			for part := range parts + 1 {
				x, err := s.measure(withRatio(c, part))
				if err != nil || x.Fits() && x.Seconds() < got.Seconds()*0.999 {
					t.Errorf("%v: ratio %v takes %v (%v), the fastest, %v, %v", sets, x.Config.Zero.Offload.Ratio, x.Seconds(), err, got.Config.Zero.Offload.Ratio, got.Seconds())
				}
			}
			if !got.Fits() {
				t.Errorf("%v: %+v", sets, got)
			}
		}
	}
	if len(ratios) < 3 {
		t.Errorf("only %v are ever the fastest", ratios)
	}
}

// TestAdviceOnRatio checks that the advised ratio fits and is not slower, and that there is no
// advice if the job's ratio is best.
func TestAdviceOnRatio(t *testing.T) {
	h, err := OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	h.HostMemory = 1e8
	c := spectest.Fitted(t, "zero.stage=2", "zero.offload.optimizer=host")
	half := one(t, withRatio(c, 50), Limits{Ranks: 4, GPU: true})
	l := Limits{Ranks: 4, GPU: true, Hardware: h, Memory: half.Needs.Device.Total() + half.High}
	advice := func(ratio string, l Limits) string {
		line, err := Advice(spectest.Fitted(t, "zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio="+ratio), l)
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	line := advice("1", l)
	var ratio string
	if _, err := fmt.Sscanf(line, "--set zero.offload.ratio=%s fits", &ratio); err != nil || !strings.Contains(line, ", and a step takes ") {
		t.Fatalf("%q: %v", line, err)
	}
	if again := advice(ratio, l); again != "" {
		t.Errorf("set as advised: %s", again)
	}
	if line := advice("0.01", l); !strings.HasPrefix(line, "--set zero.offload.ratio="+ratio+" ") {
		t.Errorf("a ratio that does not fit: %s", line)
	}
	l.Memory = 1 << 40
	if line := advice("1", l); !strings.Contains(line, "zero.offload.optimizer=none") {
		t.Errorf("much memory: %s", line)
	}
	l.Memory = 1 << 10
	if line := advice("1", l); line != "" {
		t.Errorf("too little memory: %s", line)
	}
}
