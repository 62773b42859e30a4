package setup_test

import (
	"fmt"
	"testing"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
)

// TestOpenAllocatesThePlan checks that ranks which were opened have allocated what dry runs of their places
// predict, by category, before any step, that ranks of one kind are equal, and that all memory is given back.
func TestOpenAllocatesThePlan(t *testing.T) {
	for _, sets := range [][]string{
		{"zero.stage=0"}, {"zero.stage=2", "precision=bf16"}, {"zero.stage=3", "parallel.replicate=2"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"},
		{"parallel.pipeline=2", "zero.stage=1", "train.accumulate=3"}, {"parallel.pipeline=4", "zero.recompute=block", "model.layers=6"},
		{"parallel.tensor=2", "parallel.context=2", "model.family=llama"}, {"train.lora.rank=2", "model.family=llama"},
		{"parallel.master=true", "precision=bf16", "zero.stage=0"}, {"zero.stage=1", "train.sums=tree", "train.accumulate=4"},
	} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			j := setup.InWorld(spectest.Fitted(t, append([]string{"train.batch=null", "device=cpu"}, sets...)...), setup.Alone{}, setup.Hooks{})
			want, err := setup.DryRuns(j)
			if err != nil {
				t.Fatal(err)
			}
			ranks, err := setup.Open(j)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range ranks {
				f := want[setup.RankKind(j.Job, r.Rank)]
				if r.Planned != f {
					t.Errorf("rank %d plans %+v, its place %+v", r.Rank, r.Planned, f)
				}
				if got := r.Device.Usage().Live; got != f.Device {
					t.Errorf("rank %d allocates %v, planned %v", r.Rank, got, f.Device)
				}
				if r.Host != nil && r.Host.Usage().Live != f.Host {
					t.Errorf("rank %d allocates %v on the host, planned %v", r.Rank, r.Host.Usage().Live, f.Host)
				}
			}
			setup.CloseAll(ranks)
			for _, r := range ranks {
				for _, d := range []setup.Device{r.Device, r.HostMemory()} {
					left := d.Usage().Live
					if left[device.Workspace] = 0; left != (device.Bytes{}) {
						t.Errorf("rank %d keeps %v", r.Rank, left)
					}
				}
			}
		})
	}
}
