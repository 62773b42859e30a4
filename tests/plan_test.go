package tests

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/job"
	"zeroth/shard"
	"zeroth/zero"
)

// planOf is a job's plan on this machine.
func planOf(t *testing.T, c *job.Config) *job.Plan {
	t.Helper()
	p, err := c.Plan(job.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// uses are the allocations that categories are part of.
func uses(a job.Amounts) (b device.Bytes) {
	for c, n := range a {
		b[job.Category(c).Use()] += n
	}
	return b
}

// A plan allocates what a run allocates, and at every event of its timeline no
// category has more in use than is allocated for it; all of the arena is in
// use at some event, and so is all that is allocated for gathered units and
// whole gradients where all units are alike.
func TestInUseIsWithinAllocated(t *testing.T) {
	for _, sets := range slices.Concat(memoryJobs, offloadJobs) {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			c := config(t, sets...)
			p := planOf(t, c)
			if p.Host != formula(c, 0).Host() || p.Disk != formula(c, 0).Disk() {
				t.Errorf("planned %v on the host and %d on disk, want %v and %d", p.Host, p.Disk, formula(c, 0).Host(), formula(c, 0).Disk())
			}
			sameBytes(t, "planned", p.Allocated, formula(c, 0).Bytes())
			var most device.Bytes
			for _, m := range p.Timeline {
				for use, n := range uses(m.InUse) {
					if n < 0 || n > p.Allocated[use] {
						t.Errorf("%s: %d bytes of %v in use of %d", m.Name, n, device.Use(use), p.Allocated[use])
					}
					most[use] = max(most[use], n)
				}
			}
			for use, n := range most {
				want := p.Allocated[use]
				if device.Use(use) == device.UnitGrads && c.Zero.Stage < 2 && c.Train.Accumulate > 1 {
					continue // of two slots one is in use: what is in it is added up by the queue that writes the next
				}
				if n != want {
					t.Errorf("at most %d bytes of %v in use, allocated are %d", n, device.Use(use), want)
				}
			}
			for use, n := range uses(p.AtRest) {
				if n > uses(p.Timeline[0].InUse)[use] || n > p.Allocated[use] {
					t.Errorf("at rest %d bytes of %v", n, device.Use(use))
				}
			}
			if strings.Contains(p.Peak.Name, "%!") || p.Peak.InUse.Total() > p.Allocated.Total() {
				t.Errorf("peak %q: %d bytes of %d", p.Peak.Name, p.Peak.InUse.Total(), p.Allocated.Total())
			}
		})
	}
}

// DeepSpeed's own figures, in GiB as it prints them: the notes' golden values,
// which for the exact counts of T5-3B are those of DeepSpeed's documentation.
func TestDeepSpeedEstimates(t *testing.T) {
	type figures struct{ cpu, gpu float64 }
	for _, test := range []struct {
		stage           int
		params, largest int64
		gpus, nodes     int
		want            []figures
	}{
		{3, 2851598336, 32899072, 8, 1, []figures{{71.71, 0.12}, {127.48, 0.12}, {63.74, 0.79}, {127.48, 0.79}, {1.47, 6.10}, {127.48, 6.10}}},
		{3, 2851e6, 32e6, 8, 1, []figures{{71.69, 0.12}, {127.45, 0.12}, {63.72, 0.78}, {127.45, 0.78}, {1.43, 6.09}, {127.45, 6.09}}},
		{2, 2851598336, 0, 8, 1, []figures{{127.48, 5.31}, {127.48, 11.29}}},
		{2, 2851e6, 0, 8, 1, []figures{{127.45, 5.31}, {127.45, 11.28}}},
		{2, 2851598336, 0, 8, 4, []figures{{509.91, 5.31}, {127.48, 6.81}}},
		{2, 2851e6, 0, 8, 4, []figures{{509.80, 5.31}, {127.45, 6.80}}},
		{3, 6805e6, 131e6, 4, 1, []figures{{-1, 0.49}, {-1, 0.49}, {-1, 3.66}, {-1, 3.66}, {-1, 29.01}, {-1, 29.01}}},
	} {
		rows := job.DeepSpeed(test.stage, test.params, test.largest, test.gpus, test.nodes)
		if len(rows) != len(test.want) {
			t.Fatalf("stage %d: %d rows", test.stage, len(rows))
		}
		for i, r := range rows {
			want := test.want[i]
			const gib = 1 << 30
			if cpu := float64(r.CPU) / gib; want.cpu >= 0 && math.Abs(cpu-want.cpu) > 0.005 {
				t.Errorf("stage %d, %d parameters, %+v: %.3f GiB of host memory, want %.2f", test.stage, test.params, r, cpu, want.cpu)
			}
			if gpu := float64(r.GPU) / gib; math.Abs(gpu-want.gpu) > 0.005 {
				t.Errorf("stage %d, %d parameters, %+v: %.3f GiB a GPU, want %.2f", test.stage, test.params, r, gpu, want.gpu)
			}
		}
	}
}

// The states of a bf16 model by stage, GB: the ZeRO paper's figure 1 and table 1.
// The paper keeps gradients in 16 bits where we keep them in float32, so its
// 2 + 2 + 12 bytes a parameter are our 2 + 4 + 12 with 2 less for each gradient.
func TestZeROPaperTable(t *testing.T) {
	for _, row := range []struct {
		params, ranks int
		want          [3]float64 // GB at stages 1, 2, 3
	}{
		{7.5e9, 1, [3]float64{120, 120, 120}}, {7.5e9, 4, [3]float64{52.5, 41.25, 30}}, {7.5e9, 16, [3]float64{35.6, 21.6, 7.5}},
		{7.5e9, 64, [3]float64{31.4, 16.6, 1.88}}, {7.5e9, 256, [3]float64{30.4, 15.4, 0.47}}, {7.5e9, 1024, [3]float64{30.1, 15.1, 0.12}},
		{128e9, 1, [3]float64{2048, 2048, 2048}}, {128e9, 4, [3]float64{896, 704, 512}}, {128e9, 16, [3]float64{608, 368, 128}},
		{128e9, 64, [3]float64{536, 284, 32}}, {128e9, 256, [3]float64{518, 263, 8}}, {128e9, 1024, [3]float64{513.5, 257.8, 2}},
		{1e12, 1, [3]float64{16000, 16000, 16000}}, {1e12, 4, [3]float64{7000, 5500, 4000}}, {1e12, 16, [3]float64{4750, 2875, 1000}},
		{1e12, 64, [3]float64{4187.5, 2218.8, 250}}, {1e12, 256, [3]float64{4046.9, 2054.7, 62.5}}, {1e12, 1024, [3]float64{4011.7, 2013.7, 15.6}},
	} {
		const units = 1000
		sizes := make([]zero.UnitSize, units)
		for i := range sizes {
			sizes[i].Numel = row.params / units
		}
		for i, want := range row.want {
			s := zero.Stage(i + 1)
			b := zero.Footprint{Units: sizes, Mesh: s.Mesh(shard.Mesh{Shard: row.ranks, Replicate: 1}), Policy: s.Policy(0, false), DType: device.BF16, Vecs: 2, Micro: 1}.Bytes()
			grads := b[device.Grads] / 2
			if s < 2 {
				grads = b[device.UnitGrads] / 2
			}
			got := float64(b[device.Params]+grads+b[device.Master]+b[device.States]) / 1e9
			if math.Abs(got-want) > 0.005*want+0.005 {
				t.Errorf("%d parameters on %d ranks, stage %d: %.2f GB, want %.2f", row.params, row.ranks, s, got, want)
			}
		}
	}
}
