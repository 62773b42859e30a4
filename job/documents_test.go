package job

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/job/config/configtest"
	"zeroth/job/testjob"
)

// The loss is the mean over the targets that are learned: padding and prompts
// change nothing, however ranks divide the documents.
func TestLossOfDocuments(t *testing.T) {
	testjob.InTinyFolder(t)
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", i%7, i%5, i%7+i%5)
	}
	testjob.Write(t, "sums.jsonl", lines.String())
	run := func(sets ...string) (losses []float64) {
		t.Helper()
		h := &heard{}
		sets = append(sets, "data.text=", "data.documents=[sums.jsonl]", "data.format=prompt", "data.tokenizer=bytes", "model.family=llama", "train.steps=3", "train.batch=8", "precision=fp32", "train.eval_every=0")
		if err := Run(t.Context(), configtest.MustLoad(t, sets...), Options{Out: filepath.Join(t.TempDir(), "run"), Observer: h}); err != nil {
			t.Fatal(err)
		}
		for _, s := range h.steps {
			losses = append(losses, s.Loss)
		}
		return losses
	}
	want := run("model.context=8", "parallel.ranks=1")
	for _, sets := range [][]string{{"model.context=24", "parallel.ranks=1"}, {"model.context=8", "parallel.ranks=4", "zero.stage=3"}, {"model.context=8", "parallel.ranks=2", "train.accumulate=2"}} {
		for i, got := range run(sets...) {
			if math.Abs(got-want[i]) > 1e-5 { // sums in another order
				t.Errorf("%v: step %d has loss %v, want %v", sets, i+1, got, want[i])
			}
		}
	}
	if math.Abs(want[0]-math.Log(256)) > 0.5 {
		t.Errorf("loss %v at first, want that of any byte", want[0])
	}
}
