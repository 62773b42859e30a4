package job

import (
	"os"
	"slices"
	"testing"

	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/jobtest"
	"zeroth/job/spec/spectest"
)

// TestOffloadIsReported checks that the header reports how much is offloaded and where, and that
// files of dead runs are removed and reported.
func TestOffloadIsReported(t *testing.T) {
	jobtest.InTinyFolder(t)
	if err := os.Mkdir("disk", 0o755); err != nil {
		t.Fatal(err)
	}
	jobtest.Write(t, "disk/zeroth-beef-rank-0.offload", "")
	h := &heard{}
	c := spectest.MustLoad(t, "train.steps=1", "zero.offload={optimizer: disk, parameters: host, path: disk, ratio: 0.5}")
	if err := Run(t.Context(), c, Options{Out: "run", Observer: h}); err != nil {
		t.Fatal(err)
	}
	plan, err := setup.DryRun(setup.Planned(c))
	if err != nil {
		t.Fatal(err)
	}
	if h.header.HostPerRank != plan.Host.Total() || h.header.DiskPerRank != plan.Disk || plan.Disk == 0 || h.header.MemoryPerRank != plan.Device.Total() {
		t.Errorf("header %+v, plan %+v", h.header, plan)
	}
	row := h.header.Rows()[len(h.header.Rows())-2]
	if want := "0.5 of the optimizer on disk, parameters on host: " + show.ByteSize(plan.Host.Total()) + " on the host, " + show.ByteSize(plan.Disk) + " on disk a rank"; row != [2]string{"offload", want} {
		t.Errorf("row %q, want %q", row, want)
	}
	if want := "removed leftovers of an interrupted run: disk/zeroth-beef-rank-0.offload (never used)"; !slices.Contains(h.notes, want) {
		t.Errorf("notes %q, want %q", h.notes, want)
	}
	if left, err := os.ReadDir("disk"); err != nil || len(left) > 0 {
		t.Errorf("%v is left on the disk (%v)", left, err)
	}
}
