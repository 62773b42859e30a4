package forecast

import (
	"fmt"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/device"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// TestLimitsOfProducts checks that values at a limit are accepted, and that values above it are
// rejected at a key that can lower them.
func TestLimitsOfProducts(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	wide := "model={layers: %d, width: 1048576, heads: 1, vocab: 256, context: %d}"
	for _, c := range []struct{ fits, over, key, want string }{
		{"model.layers=10000", "model.layers=10001", "model.layers", "10001 is more than 10000; want a whole number from 1 to 10000, such as 6"},
		{"train={micro_batch: 1024, batch: 1073741824}", "train={micro_batch: 1024, batch: 1073741828}", "train.batch", "1073741828 is more than 1073741824"},
		{"train={micro_batch: 65536, accumulate: 4096}", "train={micro_batch: 65536, accumulate: 4097}", "train.micro_batch", "1074003968 sequences per step are more than 1073741824; want less"},
		{fmt.Sprintf(wide, 1, 256), fmt.Sprintf(wide, 2, 256), "model.layers", "2.64e+13 parameters are more than 1.76e+13; want less"},
		{"train={steps: 1000000000, micro_batch: 64, batch: 16777216}", "train={steps: 1000000000, micro_batch: 64, batch: 33554432}", "train.steps", "8.59e+18 tokens in all steps are more than 4.61e+18"},
		{"train={micro_batch: 262144, loss_chunk: 1024}", "train={micro_batch: 262148, loss_chunk: 1024}", "train.loss_chunk", "65537 chunks of train.loss_chunk tokens in a micro-batch are more than 65536"},
	} {
		if _, err := spec.Load("job.yaml", []string{"device=cpu", c.fits}); err != nil {
			t.Errorf("%s: %v", c.fits, err)
		}
		_, err := spec.Load("job.yaml", []string{"device=cpu", c.over})
		if want := "--set " + c.over + ": " + c.key + ": " + c.want; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	for _, c := range []struct {
		sets []string
		want string
	}{
		{[]string{"model.width=524288", "model.heads=1", "model.layers=5", "train={micro_batch: 64, batch: 8388608}"}, "parameters × sequences of a rank per step are more than 1.44e+17"},
		{[]string{"model.context=1048576", "train.batch=16777216", "train.micro_batch=16", "model.layers=1000"}, "elements that pass through a rank's layers per step are more than 1.8e+16"},
		{[]string{"model.width=524288", "model.heads=1", "model.layers=5", "parallel.ranks=32", "zero.offload.optimizer=host"}, "offloaded pieces of 2^20 elements per rank are more than 262144"},
	} {
		if _, err := spec.Load("job.yaml", c.sets); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.sets, err)
		}
	}
}

// TestNothingOverflows checks that no number in a plan or a search overflows at the limits.
func TestNothingOverflows(t *testing.T) {
	nightly.Parallel(t)
	for _, sets := range [][]string{
		{"model={layers: 1, width: 1048576, heads: 1048576, context: 1048576}", "train={micro_batch: 32, loss_chunk: 1048576}", "parallel.ranks=1"},
		{fmt.Sprintf("model={layers: %d, width: 4096, heads: 1, context: 1048576}", nightly.Of(1000, 10_000)), "train={micro_batch: 64, loss_chunk: 1048576}", "parallel.ranks=2"},
		{"model={layers: 2, width: 524288, heads: 1}", "train={micro_batch: 2, accumulate: 4096}", "parallel.ranks=65536"},
		{"model={layers: 1, width: 524288, heads: 1, vocab: 1048576}", "train={micro_batch: 1, accumulate: 4096}", "parallel.ranks=128", "precision=fp32", "zero={offload: {optimizer: disk, parameters: disk, path: .}}"},
		{"model={family: llama, layers: 1, width: 1048576, ffn: 4100000, heads: 2}", "train.micro_batch=4096", "parallel.ranks=8", "zero.stage=1"},
	} {
		c, err := spec.Draft("", sets)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlan(c, Machine{GPU: true, Memory: config.MostMemory})
		if err != nil {
			t.Fatal(err)
		}
		if p.Sent < 0 || p.Parameters < 0 || p.Padding < 0 || p.Disk < 0 || p.Allocated.Total() <= 0 || p.Host.Total() < 0 {
			t.Errorf("%v: %+v", sets, p)
		}
		for use := range device.Uses {
			if p.Allocated[use] < 0 || p.Host[use] < 0 {
				t.Errorf("%v: %v %d, %d on the host", sets, use, p.Allocated[use], p.Host[use])
			}
		}
		for _, m := range p.Timeline {
			if total := m.InUse.Total(); total < 0 || total > p.Allocated.Total() {
				t.Errorf("%v: %s: %d", sets, m.Name, total)
			}
		}
		l := Limits{Ranks: c.Parallel.Ranks, Memory: config.MostMemory, Host: config.MostMemory, Disk: config.MostMemory, GPU: true}
		x := one(t, c, l)
		if x.Needs.Device.Total() != p.Allocated.Total() {
			t.Errorf("%v: %+v", sets, x)
		}
		if f := x.Simulated; f != nil && (f.Sent != p.Sent || !(f.Seconds > 0)) {
			t.Errorf("%v: %+v, planned to send %d bytes", sets, f, p.Sent)
		}
	}
}
