package fit

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/job/config"
	"zeroth/job/config/configtest"
	"zeroth/job/sim"
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

// TestLeastRatio checks that the search finds the smallest fitting ratio for any memory of device
// and host, or the one that lacks least. It finds none if nothing needs to be offloaded.
func TestLeastRatio(t *testing.T) {
	for _, sets := range offloading {
		c := configtest.Fitted(t, sets...)
		sizes := slices.CompactFunc(everyPart(t, bareOf(t, c, Limits{Ranks: 4, Rates: roughRates}), c), sameNeeds)
		if len(sizes) < 4 {
			t.Fatalf("%v: only %d splits", sets, len(sizes))
		}
		for i, device := range sizes {
			for _, host := range sizes[i%2:] {
				l := Limits{Ranks: 4, Rates: roughRates, Disk: math.MaxInt64, Memory: device.Needs.Device.Total() - int64(i%2), Host: host.Needs.Host.Total()}
				s := bareOf(t, c, l)
				all := everyPart(t, s, c)
				want := slices.IndexFunc(all, (*Choice).Fits)
				got := least(t, s, c)
				if (got == nil) != (all[0].lacks() <= 0) {
					t.Fatalf("%v: %d bytes: %+v, with nothing offloaded %d are lacking", sets, l.Memory, got, all[0].lacks())
				}
				switch {
				case got == nil:
				case want > 0 && got.Config.Zero.Offload.Ratio != all[want].Config.Zero.Offload.Ratio:
					t.Fatalf("%v: %d and %d bytes: ratio %v, want %v", sets, l.Memory, l.Host, got.Config.Zero.Offload.Ratio, all[want].Config.Zero.Offload.Ratio)
				case want < 0 && got.over() != slices.MinFunc(all[1:], func(a, b *Choice) int { return int(a.over() - b.over()) }).over():
					t.Fatalf("%v: %d and %d bytes: ratio %v lacks %d", sets, l.Memory, l.Host, got.Config.Zero.Offload.Ratio, got.over())
				}
			}
		}
	}
}

// everyPart returns the choices for all hundredths, from nothing to everything.
func everyPart(t *testing.T, s *search, c *config.Config) (all []*Choice) {
	for part := range parts + 1 {
		all = append(all, at(t, s, c, part))
	}
	return all
}

func least(t *testing.T, s *search, c *config.Config) *Choice {
	t.Helper()
	x, err := s.choice(c)
	if err == nil {
		x, err = s.least(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func sameNeeds(a, b *Choice) bool { return a.Needs == b.Needs }

// TestFastestRatio checks that no fitting ratio has a shorter simulated step, whether the device,
// the link or the host is slow.
func TestFastestRatio(t *testing.T) {
	ratios := map[float64]bool{}
	for _, hardware := range []sim.Hardware{{HostLink: 50e9, HostMemory: 25e9, Memory: 2e12}, {HostLink: 50e9, HostMemory: 1e13, Memory: 1e9}, {HostLink: 1e12, HostMemory: 1e10, Memory: 1e10}} {
		h, err := sim.OpenHardware("h100")
		if err != nil {
			t.Fatal(err)
		}
		h.HostLink, h.HostMemory, h.Memory = hardware.HostLink, hardware.HostMemory, hardware.Memory
		for _, sets := range offloading {
			c := configtest.Fitted(t, sets...)
			l := Limits{Ranks: 4, GPU: true, Rates: h.Rates(c.Precision), Hardware: h, Host: math.MaxInt64, Disk: math.MaxInt64, Memory: math.MaxInt64}
			s := bareOf(t, c, l)
			low, high := at(t, s, c, parts), at(t, s, c, 0)
			s.limits.Memory = (low.Needs.Device.Total()+high.Needs.Device.Total())/2 + low.High
			least := least(t, s, c)
			if least == nil || !least.Fits() {
				t.Fatalf("%v: %+v", sets, least)
			}
			got, err := s.fastest(least)
			if err != nil {
				t.Fatal(err)
			}
			ratios[got.Config.Zero.Offload.Ratio] = true
			for _, x := range slices.CompactFunc(everyPart(t, s, c), sameNeeds) {
				if !x.Fits() {
					continue
				}
				if err := x.simulate(); err != nil || x.Seconds() < got.Seconds() {
					t.Errorf("%v: ratio %v takes %v (%v), the fastest, %v, %v", sets, x.Config.Zero.Offload.Ratio, x.Seconds(), err, got.Config.Zero.Offload.Ratio, got.Seconds())
				}
			}
			if !got.Fits() || !got.Exact {
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
	h, err := sim.OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	h.HostMemory = 1e8
	c := configtest.Fitted(t, "zero.stage=2", "zero.offload.optimizer=host")
	s := bareOf(t, c, Limits{Ranks: 4, GPU: true, Rates: roughRates})
	half := at(t, s, c, 50)
	l := Limits{Ranks: 4, GPU: true, Hardware: h, Memory: half.Needs.Device.Total() + half.High}
	advice := func(ratio string, l Limits) string {
		line, err := Advice(configtest.Fitted(t, "zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio="+ratio), l)
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
