//go:build !separate

package job_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/job"
	"zeroth/job/jobtest"
	"zeroth/nn"
	"zeroth/shard"
)

// broken is a module with a mistake: in the work that it issues, or in Forward itself.
type broken struct{ onHost bool }

func (broken) Params() []shard.Param {
	return []shard.Param{{Name: "broken.weight", Shape: []int{16}, Init: shard.Init{Mean: 1}}}
}

func (m broken) Forward(q nn.Ops, _ nn.Scratch, w []device.Buffer, _ *nn.Batch, x, y device.Buffer, _ *nn.Saved) {
	none := []int(nil)
	if !m.onHost {
		_ = none[w[0].N]
	}
	nn.OnHost(q, "breaking", func() error { _ = none[3]; return nil }, x, y)
}

func (broken) Backward(nn.Ops, nn.Scratch, []device.Buffer, []device.Buffer, *nn.Batch, device.Buffer, device.Buffer, *nn.Saved) {
}

// TestModulePanics checks that a panic in a program's module ends the program with a panic that
// names the unit and the module.
func TestModulePanics(t *testing.T) {
	if where := os.Getenv("ZEROTH_PANICS"); where != "" {
		jobtest.InFolder(t, tiny)
		jobtest.Write(t, "a.txt", strings.Repeat("to be, or not to be; ", 100))
		net := small(16, 8)
		net.Modules = slices.Insert(net.Modules, 2, nn.Module(broken{onHost: where == "host"}))
		net.Uses = slices.Insert(net.Uses, 2, []nn.Use{{Unit: "mine", Params: 1}})
		t.Fatal(job.Run(t.Context(), load("job.yaml"), job.Options{Model: net, Out: "run"}))
	}
	for where, want := range map[string]string{
		"host":  "unit mine: forward: breaking: runtime error: index out of range [3] with length 0",
		"issue": "unit mine: forward: module job_test.broken: runtime error: index out of range [16] with length 0",
	} {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestModulePanics$")
		cmd.Env = append(os.Environ(), "ZEROTH_PANICS="+where)
		said, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(said), "panic: "+want) || strings.Contains(string(said), "fatal error") || !strings.Contains(string(said), "job_test.broken.Forward") {
			t.Errorf("%s: %v, want %q in\n%s", where, err, want, said)
		}
	}
}
