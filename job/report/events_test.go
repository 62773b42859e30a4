package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/job/jobtest"
)

// TestMaskedChecksum compares with TensorFlow's masking of the CRC-32C of 32 zeros, which RFC
// 3720 gives.
func TestMaskedChecksum(t *testing.T) {
	sum := uint32(0x8a9136aa)
	if got, want := masked(make([]byte, 32)), (sum>>15|sum<<17)+0xa282ead8; got != want {
		t.Errorf("%x, want %x", got, want)
	}
}

// TestEventsFollowMetrics checks that reopened event files contain exactly the steps of the
// trimmed metrics and continue from there.
func TestEventsFollowMetrics(t *testing.T) {
	dir := t.TempDir()
	l := &Log{}
	for sitting := range 3 {
		if sitting == 2 { // killed in the middle of a record
			files, _ := filepath.Glob(filepath.Join(dir, "*tfevents*"))
			if err := os.Truncate(files[0], 333); err != nil {
				t.Fatal(err)
			}
		}
		e, err := OpenEvents(dir, []byte("model: {}\n"), l)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			s := Step{Step: 3*sitting + i + 1, Loss: 1 / float64(i+1), Time: 1e9 + float64(i)}
			e.Step(s)
			l.Steps = append(l.Steps, s)
			if i == 1 {
				e.Event(Eval{Step: s.Step, ValLoss: 7})
				l.Evals = append(l.Evals, Eval{Step: s.Step, ValLoss: 7})
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		l.Steps = slices.DeleteFunc(l.Steps, func(s Step) bool { return s.Step > 3*sitting+3 })
	}
	got := jobtest.Events(t, dir)
	for step := 1; step <= 10; step++ {
		want := fmt.Sprintf("%d loss=%v", step, float32(1/float64((step-1)%3+1)))
		if step == 10 {
			want = "10 loss=0.25"
		}
		n := 0
		for _, x := range got {
			if x == want {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%q is there %d times", want, n)
		}
	}
	if n := len(slices.DeleteFunc(got, func(x string) bool { return !strings.HasSuffix(x, "val_loss=7") })); n != 3 {
		t.Errorf("%d evaluations", n)
	}
}
