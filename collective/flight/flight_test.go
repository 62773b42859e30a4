package flight

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cpu"
)

// op returns an operation of a group in a state.
func op(group, seq int, state string) collective.Operation {
	o := collective.Operation{Group: group, Seq: seq, Step: 3, Op: "all-gather", Label: "unit h.0: gather", Type: "fp32", Count: 96, Bytes: 384, State: state, Issued: time.Second}
	switch state {
	case "done":
		o.Started, o.Done = 2*time.Second, 3*time.Second
	case "started":
		o.Started = 2 * time.Second
	}
	return o
}

// dump returns a dump of a rank of a world whose ranks are all in "world", and in pairs in "shard".
func dump(rank, world int, ops ...collective.Operation) Dump {
	all := make([]int, world)
	for r := range all {
		all[r] = r
	}
	return Dump{Session: "s", Written: time.Unix(1000, 0).UTC(), Why: "asked", Rank: rank, World: world, Process: rank, Host: "h", Pid: 10 + rank, Record: collective.Record{
		Began: time.Unix(900, 0).UTC(), At: 7 * time.Second,
		Groups: []collective.RecordedGroup{{Name: "world", Ranks: all}, {Name: "shard", Ranks: []int{rank &^ 1, rank | 1}}}, Operations: ops}}
}

func TestMerge(t *testing.T) {
	other := op(0, 1, "started")
	other.Op, other.Count = "reduce-scatter", 8
	launched := op(0, 0, "launched")
	for name, c := range map[string]struct {
		dumps []Dump
		want  []string
	}{
		"alike":       {[]Dump{dump(0, 2, op(0, 0, "done")), dump(1, 2, op(0, 0, "done"))}, []string{"all ranks have executed the same operations"}},
		"on streams":  {[]Dump{dump(0, 2, launched), dump(1, 2, launched)}, []string{"all ranks have executed the same operations"}},
		"nothing yet": {[]Dump{dump(0, 2), dump(1, 2)}, []string{"all ranks have executed the same operations"}},
		"late": {[]Dump{dump(0, 2, op(0, 0, "done"), op(0, 1, "started")), dump(1, 2, op(0, 0, "done"))},
			[]string{"rank 1 has not reached operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), in which rank 0 waits: its last was operation 0 of world (all-gather of 96 fp32, unit h.0: gather, step 3), done 4s before its dump"}},
		"issued is not reached": {[]Dump{dump(0, 2, op(0, 1, "started")), dump(1, 2, op(0, 1, "issued"))},
			[]string{"rank 1 has not reached operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), in which rank 0 waits: its last was operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), issued 6s before its dump"}},
		"absent": {[]Dump{dump(0, 4, op(0, 1, "started")), dump(1, 4, op(0, 1, "started")), dump(3, 4, op(0, 1, "started"))},
			[]string{"rank 2 has no dump, and ranks 0,1,3 wait for it in operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3): killed, stopped, or on a host that writes its dumps elsewhere"}},
		"diverged": {[]Dump{dump(0, 4, op(0, 1, "started")), dump(1, 4, other), dump(2, 4, op(0, 1, "started")), dump(3, 4, op(0, 1, "started"))},
			[]string{"rank 1 diverged from the others in operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3): there it calls reduce-scatter of 8 fp32 (unit h.0: gather)"}},
		// Rank 2 waits for rank 3 in their shard group, which blocks ranks 0 and 1.
		"a chain": {[]Dump{dump(0, 4, op(0, 1, "started")), dump(1, 4, op(0, 1, "started")), dump(2, 4, op(0, 0, "done"), op(1, 5, "started")), dump(3, 4, op(0, 0, "done"), op(1, 4, "done"))},
			[]string{"rank 3 has not reached operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), in which ranks 0,1 wait: its last was operation 4 of shard (all-gather of 96 fp32, unit h.0: gather, step 3), done 4s before its dump"}},
		"a circle": {[]Dump{dump(0, 2, op(0, 0, "done"), op(1, 5, "started")), dump(1, 2, op(1, 4, "done"), op(0, 1, "started"))},
			[]string{"ranks 0,1 wait for each other: rank 0 in operation 5 of shard (all-gather of 96 fp32, unit h.0: gather, step 3), rank 1 in operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3)"}},
		"half done": {[]Dump{dump(0, 2, op(0, 1, "done")), dump(1, 2, op(0, 1, "started"))},
			[]string{"rank 1 is still in operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), but rank 0 is past it: data that was sent has not arrived, or the dumps are from different moments"}},
		"all in it": {[]Dump{dump(0, 2, op(0, 1, "started")), dump(1, 2, op(0, 1, "started"))},
			[]string{"all ranks are in operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3): data that they sent has not arrived"}},
	} {
		for i := range c.dumps {
			c.dumps[i].Fault = true
		}
		r, err := Merge(c.dumps)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.Verdict, c.want) || r.Diverged != !strings.HasPrefix(c.want[0], "all ranks have executed") {
			t.Errorf("%s: diverged %v, verdict\n%s\nwant\n%s", name, r.Diverged, strings.Join(r.Verdict, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestMergeOfAskedDumps checks requested dumps, which are from different moments. Ranks that have
// not waited long count as running; different calls and long waits are divergences. A dump of an
// earlier request is ignored.
func TestMergeOfAskedDumps(t *testing.T) {
	in := func(rank int, since time.Duration) Dump {
		o := op(0, 8, "started")
		o.Started = 100*time.Second - since
		d := dump(rank, 3, o)
		d.At = 100 * time.Second
		return d
	}
	other := in(2, time.Second)
	other.Operations[0].Op = "reduce-scatter"
	earlier := in(2, time.Second)
	earlier.Written = earlier.Written.Add(-10 * time.Minute)
	// Rank 2, which others have waited for a long time, has waited for rank 3 for a second.
	chain := in(2, time.Second)
	chain.Operations[0].Group, chain.Operations[0].Seq = 1, 5
	for name, c := range map[string]struct {
		dumps  []Dump
		parted bool
		want   string
	}{
		"in motion":          {[]Dump{in(0, 3*time.Second), in(1, 0), dump(2, 3, op(0, 7, "done"))}, false, "the run is making progress: no rank had waited longer than 3s for another"},
		"one process":        {[]Dump{in(0, 3*time.Second)}, false, "the run is making progress: no rank had waited longer than 3s for another; ranks 1,2 have no dump"},
		"stuck":              {[]Dump{in(0, time.Minute), in(1, 0), dump(2, 3, op(0, 7, "done"))}, true, "rank 2 has not reached operation 8 of world "},
		"stuck elsewhere":    {[]Dump{in(0, time.Minute), in(1, 0), chain}, true, "rank 3 has no dump, and rank 2 waits for it in operation 5 of shard"},
		"gone":               {[]Dump{in(0, time.Minute), in(1, 0)}, true, "rank 2 has no dump, and ranks 0,1 wait for it"},
		"something else":     {[]Dump{in(0, 0), in(1, 0), other}, true, "rank 2 diverged from the others"},
		"an earlier request": {[]Dump{in(0, 0), in(1, 0), earlier}, false, "the run is making progress: no rank had waited longer than 0s for another; rank 2 has no dump"},
	} {
		r, err := Merge(c.dumps)
		if err != nil {
			t.Fatal(err)
		}
		if r.Diverged != c.parted || len(r.Verdict) != 1 || !strings.HasPrefix(r.Verdict[0], c.want) {
			t.Errorf("%s: diverged %v, verdict %q\nwant %s", name, r.Diverged, r.Verdict, c.want)
		}
	}
}

// TestMergeChooses checks that dumps of an earlier start are ignored and two of the same rank
// refused.
func TestMergeChooses(t *testing.T) {
	old, again, fault := dump(1, 2), dump(0, 2), dump(0, 2)
	fault.Fault = true
	old.File = "old"
	if r, err := Merge([]Dump{old, fault}); err != nil || !slices.Equal(r.Other, []string{"old"}) || !slices.Equal(r.Absent, []int{1}) {
		t.Errorf("%+v %v", r, err)
	}
	old.Session, old.Written, old.File = "before", time.Unix(5, 0), "old"
	again.File = "b"
	if r, err := Merge([]Dump{old, dump(0, 2)}); err != nil || !slices.Equal(r.Other, []string{"old"}) || !slices.Equal(r.Absent, []int{1}) {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := Merge([]Dump{again, again}); err == nil || err.Error() != "b and b are both of rank 0; pass only the newer" {
		t.Error(err)
	}
	if _, err := Merge(nil); err == nil {
		t.Error("nothing was merged")
	}
}

// TestDumpReadsBack checks that dumps can be read back, with the last of many operations and
// arbitrary text.
func TestDumpReadsBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flight")
	dev := cpu.NewHost(1)
	defer dev.Close()
	q := dev.NewQueue("comm")
	defer q.Close()
	rec := collective.NewRecorder()
	g := rec.Watchdog(collective.NewLocal(1)[0], 0, "world", false)
	defer g.Close()
	const n = collective.RecorderLen + 100
	for i := range n {
		rec.BeginStep(i)
		q.Label(fmt.Sprint("unit ", i))
		collective.AllGather(g, q, device.OfF32(make([]float32, 2)))
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	d := Dump{Session: "s", Written: time.Now().UTC(), World: 1, Host: "h", Record: rec.Read()}
	d.Why = "disk\nfull \x1b[0m\xff" + strings.Repeat("€", 3000)
	for range 2 { // the second replaces the first
		if err := d.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "rank-0.json" {
		t.Fatal(files, err)
	}
	got, err := Read([]string{filepath.Join(dir, "rank-0.json")})
	if err != nil {
		t.Fatal(err)
	}
	b := got[0]
	if !strings.HasPrefix(b.Why, "disk full ?[0m?€€") || len(b.Why) > mostText {
		t.Errorf("why %.60q of %d bytes", b.Why, len(b.Why))
	}
	if len(b.Operations) != collective.RecorderLen || b.Forgotten != 100 || !reflect.DeepEqual(b.Operations, d.Operations) || !b.Written.Equal(d.Written) || b.Host != "h" || b.At != d.At {
		t.Errorf("%d operations, %d forgotten, %+v", len(b.Operations), b.Forgotten, b.Operations[0])
	}
	if o := b.Operations[0]; o.Seq != 100 || o.Step != 100 || o.Label != "unit 100" || o.State != "done" || o.Bytes != 8 || !(0 < o.Issued && o.Issued <= o.Started && o.Started <= o.Done) {
		t.Errorf("%+v", o)
	}
}

// TestHostile checks that invalid files are refused.
func TestHostile(t *testing.T) {
	dir := t.TempDir()
	whole := string(dump(0, 2, op(0, 0, "done"), op(1, 3, "issued")).encode())
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := Read([]string{write("whole", whole)}); err != nil {
		t.Fatal(err)
	}
	for i := range len(whole) - 2 {
		if _, err := Read([]string{write("cut", whole[:i])}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "cut")+": not a dump of a rank: line ") {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	for old, c := range map[string]struct{ now, want string }{
		`"version":1`:      {`"version":2`, "version 2; this program reads version 1"},
		`"rank":0`:         {`"rank":9`, "rank 9 of a world of 2"},
		`"world":2`:        {`"world":2000000`, "rank 0 of a world of 2000000"},
		`"pid":10`:         {`"pid":10,"pid":11`, "duplicate key"},
		`"host":"h"`:       {`"host":"h\u001b[0m"`, "want printable characters"},
		`"ranks":[0,1]`:    {`"ranks":[0,0]`, "group world of ranks [0 0]"},
		`"group":1`:        {`"group":7`, "an operation of group 7, of 2"},
		`"seq":3`:          {`"seq":-3`, "operation -3 of group 1"},
		`"state":"issued"`: {`"state":"lost"`, "is not a state"},
		`"label":"unit h`:  {`"label":"` + strings.Repeat("x", mostText+1), "a string of "},
		`"count":96`:       {`"count":1e999`, "where a whole number"},
		`"began":"1970`:    {`"began":"x1970`, "where a time.Time is expected"},
		`"forgotten":0`:    {`"forgotten":0,"token":1`, `"token": unknown key`},
		`"operations":[`:   {`"operations":[` + strings.Repeat("[", 1000), "where an object is expected"},
		`"session":"s"`:    {`"session":"\ud800"`, "line "},
		`"why":"asked"`:    {`"why":["asked"]`, "an array where a string is expected"},
	} {
		text := strings.Replace(whole, old, c.now, 1)
		_, err := Read([]string{write("bad", text), filepath.Join(dir, "none")})
		if text == whole || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "bad: not a dump of a rank: ") || !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "none: ") {
			t.Errorf("%s: %v\nwant %s", c.now[:min(len(c.now), 40)], err, c.want)
		}
	}
	many := strings.Repeat("{\"group\":0,\"seq\":0},", collective.RecorderLen+1)
	if _, err := Read([]string{write("many", whole[:strings.Index(whole, "{\"group\"")]+many)}); err == nil {
		t.Error("too many operations are read")
	}
}

func TestText(t *testing.T) {
	r, err := Merge([]Dump{dump(0, 3, op(0, 1, "started")), dump(1, 3, op(0, 0, "done"))})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r.Text(&b)
	const want = `2 of 3 ranks have a dump; not rank 2
rank 0 (h, process 10): operation 1 of world (all-gather of 96 fp32, unit h.0: gather, step 3), started 5s before its dump
  dumped because: asked
rank 1 (h, process 11): operation 0 of world (all-gather of 96 fp32, unit h.0: gather, step 3), done 4s before its dump
  dumped because: asked
world of ranks 0-2, operation 1:  in it: 0  not reached: 1  no dump: 2
`
	if !strings.HasPrefix(b.String(), want) {
		t.Errorf("%s\nwant %s", &b, want)
	}
}

func FuzzDump(f *testing.F) {
	f.Add(dump(0, 2, op(0, 0, "done")).encode())
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := decode(text)
		if err != nil {
			return
		}
		if d.World > 1000 {
			return
		}
		r, err := Merge([]Dump{d})
		if err != nil {
			t.Fatal(err)
		}
		r.Text(&bytes.Buffer{})
	})
}
