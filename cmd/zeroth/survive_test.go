//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// TestSurvive kills and stops processes of a job that goes on without them, process 0 among them, and
// checks that the others end with 0, that no step is lost, and that the loss is recorded.
func TestSurvive(t *testing.T) {
	nightly.Long(t)
	for _, c := range []struct {
		victim int
		signal syscall.Signal
	}{{2, syscall.SIGKILL}, {0, syscall.SIGKILL}, {0, syscall.SIGSTOP}} {
		t.Run(fmt.Sprint(c.victim, " ", c.signal), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			text := strings.Repeat("Some text to train on. ", 200)
			job := "model: {layers: 1, heads: 2, width: 16, context: 16}\ndata: {text: [a.txt], validation: 0}\ntrain: {steps: 400, batch: 12, micro_batch: 2}\n" +
				"parallel: {ranks: 3}\nzero: {stage: 0}\nfaults: {survive: true}\n"
			for name, content := range map[string]string{"a.txt": text, "tiny.yaml": job} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			ln := door(t, "127.0.0.1")
			var all []*joiner
			for rank := range 3 {
				all = append(all, joins(t, ln, rank, 3, as{dir: dir, args: []string{"--set", "parallel.dead_after=3s"}}))
			}
			metrics := filepath.Join(dir, "r", "metrics.jsonl")
			for {
				if l, err := report.ReadLog(metrics); err == nil && len(l.Steps) > 3 {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if err := all[c.victim].cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			for rank, j := range all {
				if rank != c.victim {
					var says []string
					if rank == 1 && c.victim == 0 || rank == 0 { // who reports
						says = []string{fmt.Sprintf("lost ranks %d, going on with 2 replicas", c.victim), "step 400/400"}
					}
					j.ends(t, fmt.Sprint("process ", rank), 0, says...)
				}
			}
			l, err := report.ReadLog(metrics)
			if err != nil || len(l.Changes) != 1 || l.Changes[0].Replicas != 2 || fmt.Sprint(l.Changes[0].Lost) != fmt.Sprint([]int{c.victim}) {
				t.Fatalf("changes %+v (%v)", l.Changes, err)
			}
			for i, s := range l.Steps {
				if s.Step != i+1 {
					t.Fatalf("line %d is of step %d", i+1, s.Step)
				}
			}
			if row := listed(filepath.Join(dir, "r"), l); !strings.Contains(row[len(row)-1], "done; 2 replicas since step") {
				t.Errorf("listed as %q", row)
			}
			if len(l.Steps) != 400 {
				t.Errorf("%d steps", len(l.Steps))
			}
		})
	}
}
