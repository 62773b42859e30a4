package spec

import (
	"os"
	"strings"
	"testing"
	"zeroth/config"

	"github.com/google/go-cmp/cmp"

	"zeroth/job/jobtest"
)

const offloaded = jobtest.Least + "zero:\n  offload:\n    optimizer: disk\n    parameters: host\n    path: disk\n    ratio: 0.5\nparallel: {memory: 1.5GiB}\n"

// TestOffloadKeys checks that keys nested two levels deep are read, overridden and written like
// others.
func TestOffloadKeys(t *testing.T) {
	jobtest.InFolder(t, offloaded)
	if err := os.Mkdir("disk", 0o755); err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t)
	want := config.Offload{Optimizer: "disk", Parameters: "host", Activations: "none", Path: "disk", Buffers: 4, Ratio: 0.5}
	if c.Zero.Offload != want || c.Parallel.Memory != 3<<29 {
		t.Errorf("got %+v and %d bytes", c.Zero.Offload, c.Parallel.Memory)
	}
	jobtest.Write(t, "again.yaml", string(c.YAML()))
	again, err := Load("again.yaml", nil)
	if d := cmp.Diff(c, again, equal); err != nil || d != "" {
		t.Errorf("reading back: %v %s\n%s", err, d, c.YAML())
	}
	if text := string(c.YAML()); !strings.Contains(text, "\n  recompute: none\n  offload:\n    optimizer: disk\n") || !strings.Contains(text, "  memory: 1536MiB\n") {
		t.Errorf("written as\n%s", text)
	}
	over := mustLoad(t, "zero.offload.optimizer=host", "zero.offload.path=", "zero.offload.ratio=0", "zero.stage=3")
	if want := (config.Offload{Optimizer: "host", Parameters: "host", Activations: "none", Buffers: 4}); over.Zero.Offload != want {
		t.Errorf("overlaid: %+v", over.Zero.Offload)
	}
	if text := string(mustLoad(t, "zero.offload=", "parallel.memory=").YAML()); strings.Contains(text, "ratio:") || strings.Contains(text, "path:") || !strings.Contains(text, "  memory: auto\n") {
		t.Errorf("keys without a meaning are written:\n%s", text)
	}
}

// TestOffloadRefusals checks that impossible offloading is rejected, with one message each.
func TestOffloadRefusals(t *testing.T) {
	jobtest.InFolder(t, offloaded)
	if err := os.Mkdir("disk", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{
		"zero.stage=2",
		"zero.offload.path=",
		"zero.offload.path=gone",
		"zero.offload.path=a.txt",
		"zero.offload.optimizer=host",
		"zero.offload.ratio=1.5",
		"zero.offload.buffers=0",
		"zero.offload.optimizer=nvme",
		"zero.offload.optimiser=host",
		"zero.offload=host",
		"offload={optimizer: host}",
		"parallel.memory=512",
		"parallel.memory=-1GiB",
	} {
		_, err := Load("job.yaml", []string{set})
		said.Same(t, set, err)
	}
	for _, sets := range []string{"zero.recompute=mlp", "zero.recompute=block", "zero.recompute=block device=cuda parallel.pipeline=2 pipeline.schedule=ZBH1"} {
		_, err := Load("job.yaml", append(strings.Fields(sets), "zero.offload.activations=host"))
		said.Same(t, sets, err)
	}
	for _, load := range []func(string, []string) (*Job, error){Load, Draft} { // a GPU's job is planned anywhere
		sets := []string{"zero.recompute=linear", "zero.offload.activations=host", "device=cuda", "parallel.ranks=2"}
		if _, err := load("job.yaml", sets); err != nil {
			t.Error(err)
		}
	}
	_, err := Load("job.yaml", []string{"zero.offload={optimizer: none, buffers: 2, ratio: 0.5}"})
	if err == nil || strings.Count(err.Error(), "not used: n") != 2 {
		t.Errorf("keys without a meaning: %v", err)
	}
}
