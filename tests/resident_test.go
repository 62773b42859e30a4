package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"zeroth/job"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// trainsHere names the environment variable with a job file and settings, one per line, that a
// process of this test binary trains.
const trainsHere = "ZEROTH_TEST_TRAINS"

// TestTrainsForAnother trains in a separate process, so that the process's memory is the job's, and
// that another test can kill it. The run is resumed if it has begun.
func TestTrainsForAnother(t *testing.T) {
	lines := strings.Split(os.Getenv(trainsHere), "\n")
	if lines[0] == "" {
		t.Skip("another test's process")
	}
	debug.SetGCPercent(100) // as zeroth has it, unlike tests
	c, err := spec.Load(lines[0], lines[1:])
	if err != nil {
		t.Fatal(err)
	}
	if err := job.Run(t.Context(), c, job.Options{Out: filepath.Join(filepath.Dir(lines[0]), "run"), Resume: "latest"}); err != nil {
		t.Fatal(err)
	}
}

// trainElsewhere returns a process that trains a job into the folder run next to its file.
func trainElsewhere(t *testing.T, file string, sets ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTrainsForAnother$")
	cmd.Env = append(os.Environ(), trainsHere+"="+strings.Join(append([]string{file}, sets...), "\n"))
	return cmd
}

// TestResidentIsPlanned checks that the peak resident memory of a process with half a GiB of ranks
// exceeds the plan by at most 64 MiB or 5 %, whichever is more, for Go's runtime, the program and
// the data.
func TestResidentIsPlanned(t *testing.T) {
	nightly.Parallel(t)
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector's own memory is resident, too")
	}
	// On the CPU: the memory of a fake GPU is part of the process, and the fake libraries need some
	// in addition.
	for i, way := range []string{"stage: 1, offload: {optimizer: host}", "stage: 3"} {
		if !nightly.Every(2, i) {
			continue
		}
		dir := t.TempDir()
		text, file := filepath.Join(dir, "a.txt"), filepath.Join(dir, "job.yaml")
		body := fmt.Sprintf("model: {layers: 3, heads: 8, width: 768, context: 8}\ndata: {text: [%s]}\ntrain: {steps: 2, micro_batch: 1, eval_every: 0}\nparallel: {ranks: 2}\nzero: {%s}\ndevice: cpu\n", text, way)
		if err := os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 3000)), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(body), 0o666); err != nil {
			t.Fatal(err)
		}
		if out, err := trainElsewhere(t, file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		m := lastMemory(t, filepath.Join(dir, "run", "metrics.jsonl"))
		if m.Process.Peak == 0 {
			t.Skip("this system does not tell what is resident")
		}
		plan := int64(2) * (sumOf(m.Planned.Device) + sumOf(m.Planned.Host))
		if plan < 1<<29 {
			t.Errorf("%s: only %d bytes are planned", way, plan)
		}
		t.Logf("%s: %d bytes planned, %d resident at the peak", way, plan, m.Process.Peak)
		if over := m.Process.Peak - plan; over > max(64<<20, plan/20) || -over > plan/20 {
			t.Errorf("%s: %d bytes resident at the peak, planned are %d: %d more", way, m.Process.Peak, plan, over)
		}
	}
}

// memoryLine is the memory record of metrics.jsonl.
type memoryLine struct {
	Planned struct{ Device, Host map[string]int64 }
	Process struct {
		Peak    int64 `json:"peak_rss"`
		GPU     int64 `json:"gpu"`
		GPUHeld int64 `json:"gpu_held_by_ranks"`
	}
}

func lastMemory(t *testing.T, file string) (last memoryLine) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct{ Memory *memoryLine }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Memory != nil {
			last = *line.Memory
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return last
}

func sumOf(m map[string]int64) (n int64) {
	for _, x := range m {
		n += x
	}
	return n
}
