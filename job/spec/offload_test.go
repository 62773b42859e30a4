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
	want := config.Offload{Optimizer: "disk", Parameters: "host", Path: "disk", Buffers: 4, Ratio: 0.5}
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
	if want := (config.Offload{Optimizer: "host", Parameters: "host", Buffers: 4}); over.Zero.Offload != want {
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
	for _, c := range []struct{ sets, want string }{
		{"zero.stage=2", "job.yaml:5:17: zero.offload.parameters: at stage 2 every rank has all parameters: there are no shards to offload; want stage: 3, or parameters: none"},
		{"zero.offload.path=", "job.yaml:4:16: zero.offload.optimizer: no folder to offload to; want path: an existing folder on the disk to use"},
		{"zero.offload.path=gone", "--set zero.offload.path=gone: zero.offload.path: gone: no such file or directory; want path: an existing folder on the disk to use"},
		{"zero.offload.path=a.txt", "--set zero.offload.path=a.txt: zero.offload.path: a.txt is not a folder; want path: an existing folder on the disk to use"},
		{"zero.offload.optimizer=host", "job.yaml:6:11: zero.offload.path: not used: nothing is offloaded to disk; remove it (--set zero.offload.path=null removes it)"},
		{"zero.offload.ratio=1.5", "--set zero.offload.ratio=1.5: zero.offload.ratio: 1.5 is out of range; want a fraction from 0 to 1, such as 1.0"},
		{"zero.offload.buffers=0", "--set zero.offload.buffers=0: zero.offload.buffers: 0 is less than 1; want a whole number from 1 to 1024, such as 4"},
		{"zero.offload.optimizer=nvme", "--set zero.offload.optimizer=nvme: zero.offload.optimizer: nvme is not a valid value; did you mean disk?; want none, host or disk"},
		{"zero.offload.optimiser=host", "--set zero.offload.optimiser=host: zero.offload.optimiser: unknown key; did you mean optimizer?"},
		{"zero.offload=host", "--set zero.offload=host: zero.offload: host is not a mapping; want zero: {offload: {optimizer: ...}}"},
		{"offload={optimizer: host}", "--set offload={optimizer: host}: offload: unknown key; did you mean zero.offload?"},
		{"parallel.memory=512", "--set parallel.memory=512: parallel.memory: 512 is not a number of bytes; want auto, or a number with its unit, such as 512MiB or 4GB"},
		{"parallel.memory=-1GiB", "--set parallel.memory=-1GiB: parallel.memory: -1GiB is not a number of bytes; want auto, or a number with its unit, such as 512MiB or 4GB"},
	} {
		_, err := Load("job.yaml", []string{c.sets})
		if err == nil || err.Error() != c.want {
			t.Errorf("\n got %v\nwant %s", err, c.want)
		}
	}
	_, err := Load("job.yaml", []string{"zero.offload={optimizer: none, buffers: 2, ratio: 0.5}"})
	if err == nil || strings.Count(err.Error(), "not used: n") != 2 {
		t.Errorf("keys without a meaning: %v", err)
	}
}
