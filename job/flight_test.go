package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/flight"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
)

// TestFaultIsDumped checks that ranks of one process that diverge are dumped, and that the dumps
// show it. If a rank fails by itself, its error is reported and nothing is dumped.
func TestFaultIsDumped(t *testing.T) {
	jobtest.InTinyFolder(t)
	own := errors.New("the disk of rank 1")
	for i, c := range []struct {
		fault collectivetest.Fault
		want  string // of the verdict; "": no dumps
	}{
		{collectivetest.Fault{Drop: true}, "rank 1 diverged from the others in operation 5 of shard"},
		{collectivetest.Fault{Err: own}, ""},
	} {
		out := fmt.Sprint("run", i)
		err := Run(t.Context(), spectest.MustLoad(t, "parallel.ranks=3", "train.micro_batch=1"), Options{Out: out, Hooks: setup.Hooks{
			WrapGroups: func(rank int, g collective.Ranks) collective.Ranks {
				if rank == 1 {
					g.Shard = collectivetest.Faulty(g.Shard, collectivetest.At(5, c.fault))
				}
				return g
			},
		}})
		if err == nil || errors.Is(err, own) != (c.want == "") {
			t.Fatalf("%+v: %v", c.fault, err)
		}
		files, wrong := filepath.Glob(filepath.Join(out, flight.Folder, "rank-?.json"))
		if wrong != nil || c.want == "" && files != nil || c.want != "" && len(files) != 3 {
			t.Fatalf("%+v: dumps %v", c.fault, files)
		}
		if c.want == "" {
			continue
		}
		dumps, wrong := flight.Read(files)
		if wrong != nil {
			t.Fatal(wrong)
		}
		r, wrong := flight.Merge(dumps)
		if wrong != nil || !r.Diverged || len(r.Verdict) == 0 || !strings.HasPrefix(r.Verdict[0], c.want) {
			t.Errorf("%v: %+v\nwant %s", wrong, r, c.want)
		}
	}
}

// TestDumpIsAsked checks that requested dumps are written and that the run continues to its end.
func TestDumpIsAsked(t *testing.T) {
	jobtest.InTinyFolder(t)
	asked, seen := make(chan struct{}), make(chan struct{})
	h := &heard{onStep: func(s report.Step) {
		if s.Step == 3 {
			asked <- struct{}{}
			asked <- struct{}{} // taken when the first is answered
			close(seen)
		}
	}}
	if err := Run(t.Context(), spectest.MustLoad(t), Options{Out: "run", Observer: quiet{h}, Dump: asked}); err != nil {
		t.Fatal(err)
	}
	<-seen
	if _, err := os.Stat("run/flight/rank-0.json"); err != nil || len(h.steps) != 7 {
		t.Errorf("%d steps, %v", len(h.steps), err)
	}
}

// quiet passes on all but notes, which may come from any goroutine.
type quiet struct{ *heard }

func (q quiet) Event(e report.Event) {
	if _, ok := e.(report.Note); !ok {
		q.heard.Event(e)
	}
}
