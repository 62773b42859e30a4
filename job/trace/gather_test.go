package trace

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"zeroth/internal/setup"
)

// sampled returns the sample of a rank with three steps, by a clock that is ahead.
func sampled(rank int, ahead time.Duration) *Sample {
	origin := time.Unix(1000, int64(rank)).Add(ahead)
	run := func(label, task string, start, end int64) Span { return Span{label, task, start, end} }
	own := tracks{
		tracked("compute", run("h.0: forward", "matmul", 0, 40), run("h.1: forward", "matmul", 100, 140), run("h.0: backward", "matmul", 200, 240)),
		tracked("comm"),
		tracked(waits, run("the norm", "wait", 40, 100), run("the norm", "wait", 140, 200), run("the norm", "wait", 240, 300)),
		tracked("step", run("", "step 7", 0, 100), run("", "step 8", 100, 200), run("", "step 9", 200, 300)),
	}
	return &Sample{rank: &setup.Rank{Rank: rank}, trace: Trace{origin: origin, ranks: []tracks{own}, names: []int{rank}}}
}

// TestMerge checks that samples become one trace by the clock of the first rank's host, and that
// ranks of that host keep their times.
func TestMerge(t *testing.T) {
	const hour = time.Hour
	got, err := Merge([][]byte{sampled(0, 0).Encode("a", 1<<20), sampled(1, 0).Encode("a", 1<<20), (*Sample)(nil).Encode("a", 1<<20), sampled(3, -hour).Encode("b", 1<<20)})
	if err != nil || !reflect.DeepEqual(got.names, []int{0, 1, 3}) {
		t.Fatalf("%+v %v", got, err)
	}
	for i, shift := range []int64{0, 1, 0} {
		want := sampled(0, 0).trace.ranks[0]
		want.shift(shift)
		for q, k := range got.ranks[i] {
			if k.name != want[q].name || fmt.Sprint(k.All()) != fmt.Sprint(want[q].All()) {
				t.Errorf("rank %d, %s: %v, want %v", got.names[i], k.name, k.All(), want[q].All())
			}
		}
	}
}

// TestEncodeIsBounded checks that a sample without enough room loses its oldest tasks, of all tracks
// alike, and that damaged parts are reported.
func TestEncodeIsBounded(t *testing.T) {
	whole := sampled(0, 0).Encode("", 1<<20)
	less := sampled(0, 0).Encode("", len(whole)-1)
	got, err := Merge([][]byte{less})
	if err != nil || len(less) >= len(whole) {
		t.Fatalf("%d of %d bytes: %v", len(less), len(whole), err)
	}
	if steps := got.ranks[0].steps().All(); len(steps) != 2 || steps[1].Task != "step 9" || len(got.ranks[0].compute().All()) != 1 {
		t.Errorf("%v", steps)
	}
	if none := sampled(0, 0).Encode("", 10); none != nil {
		t.Errorf("%d bytes in 10", len(none))
	}
	for _, bad := range []string{"", "{", `{"Tracks":["a","b"]}`, `{"Tracks":["a","b"],"Spans":[[0,0,1],[]]}`, `{"Tracks":["a","b"],"Words":["a"],"Spans":[[0,1,1,1],[]]}`} {
		if _, err := Merge([][]byte{[]byte(bad)}); err == nil {
			t.Errorf("%q was merged", bad)
		}
	}
}
