package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/tests/nightly"
)

// TestStopped checks that operations cancelled after their first bytes return the context's error
// and leave nothing that could be mistaken for their result.
func TestStopped(t *testing.T) {
	nightly.Long(t)
	dir := t.TempDir()
	m := bigModel(8*readBytes/4, Master)
	path := m.mustSave(t, vfs.OS{}, filepath.Join(dir, "c"), 9, 1, Options{})
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hf := filepath.Join(dir, "hf")
	if err := (Export{}).Write(context.Background(), c, c.Path, hf); err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.Open(hf)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for name, work := range map[string]func(context.Context, func(int64)) error{
		"verify": func(ctx context.Context, done func(int64)) error {
			_, err := Verify(ctx, path, Walk{Workers: 1, Progress: done})
			return err
		},
		"diff": func(ctx context.Context, done func(int64)) error {
			_, err := Diff(ctx, c, c, Walk{Workers: 1, Progress: done})
			return err
		},
		"export": func(ctx context.Context, done func(int64)) error {
			return Export{Walk: Walk{Workers: 1, Progress: done}}.Write(ctx, c, c.Path, filepath.Join(dir, "export"))
		},
		"import": func(ctx context.Context, done func(int64)) error {
			_, err := Import{Progress: done, Options: Options{Workers: 1}}.Import(ctx, Parameters(src), filepath.Join(dir, "import"))
			return err
		},
		"reshard": func(ctx context.Context, done func(int64)) error {
			_, err := c.Reshard(ctx, filepath.Join(dir, "reshard"), 1, Options{Workers: 1}, done)
			return err
		},
	} {
		ctx, stop := context.WithCancel(context.Background())
		var seen int64
		err := work(ctx, func(n int64) { seen += n; stop() })
		stop()
		if !errors.Is(err, context.Canceled) || seen == 0 {
			t.Errorf("%s: %v after %d bytes", name, err, seen)
		}
		remaining, _ := filepath.Glob(filepath.Join(dir, name, "[^.]*"))
		hidden, _ := filepath.Glob(filepath.Join(dir, name, ".tmp*"))
		if len(remaining)+len(hidden) > 0 {
			t.Errorf("%s: remaining: %v %v", name, remaining, hidden)
		}
	}
}

// TestStat checks that Stat recognizes a checkpoint's folder wherever it is, and also incomplete
// ones.
func TestStat(t *testing.T) {
	dir := t.TempDir()
	m := newModel(1)
	path := m.mustSave(t, vfs.OS{}, dir, 9, 1, Options{})
	if e, ok := Stat(path); !ok || e.Status != Complete || e.Step != 9 || e.Seq != 1 || e.Bytes == 0 || e.Path != path {
		t.Errorf("%+v %v", e, ok)
	}
	t.Chdir(path)
	if e, ok := Stat("."); !ok || e.Status != Complete || e.Step != 9 {
		t.Errorf(".: %+v %v", e, ok)
	}
	best := filepath.Join(dir, "best")
	if err := os.Rename(path, best); err != nil {
		t.Fatal(err)
	}
	if e, ok := Stat(best); !ok || e.Status != Complete || e.Step != 9 {
		t.Errorf("renamed: %+v %v", e, ok)
	}
	if err := os.Remove(filepath.Join(best, stateName)); err != nil {
		t.Fatal(err)
	}
	if e, ok := Stat(best); !ok || e.Status != Damaged || e.Why == "" {
		t.Errorf("damaged: %+v %v", e, ok)
	}
	partial := filepath.Join(dir, tmpPrefix+stepName(3, 0)+"-0123456789abcdef")
	if err := os.Mkdir(partial, 0o777); err != nil {
		t.Fatal(err)
	}
	if e, ok := Stat(partial); !ok || e.Status != Partial || e.Step != 3 {
		t.Errorf("partial: %+v %v", e, ok)
	}
	for _, other := range []string{dir, filepath.Join(dir, "gone"), filepath.Join(best, commitName)} {
		if e, ok := Stat(other); ok {
			t.Errorf("%s: %+v", other, e)
		}
	}
}

func TestNewest(t *testing.T) {
	for _, c := range []struct {
		list []Entry
		want string // path; "" if there is none
	}{
		{nil, ""},
		{[]Entry{{Path: "t", Status: Trash, Seq: 9}, {Path: "p", Status: Partial, Step: 9}}, ""},
		{[]Entry{{Path: "a", Step: 9, Seq: 1}, {Path: "b", Step: 5, Seq: 2}}, "b"},
		{[]Entry{{Path: "a", Step: 5, Seq: 1, Status: Damaged}, {Path: "b", Step: 9, Seq: 2}}, "b"},
		{[]Entry{{Path: "a", Step: 5, Seq: 1}, {Path: "b", Step: 9, Seq: 2, Status: Damaged}}, "b"},
		{[]Entry{{Path: "a", Step: 5, Seq: 0, Status: Damaged}, {Path: "b", Step: 4, Seq: 2}}, "a"},
		{[]Entry{{Path: "a", Step: 3, Seq: 0, Status: Damaged}, {Path: "b", Step: 4, Seq: 2}}, "a"}, // a run may have gone back to 3
		{[]Entry{{Path: "a", Step: 3, Seq: 0, Status: Damaged}}, "a"},
	} {
		if e, ok := Newest(c.list); e.Path != c.want || ok != (c.want != "") {
			t.Errorf("%+v: %+v, %v, want %q", c.list, e, ok, c.want)
		}
	}
}

func TestDifferenceJSON(t *testing.T) {
	b, err := json.Marshal(Difference{Name: "n", Kind: "m", What: Differs, Elements: 2, MaxAbs: Distance(math.Inf(1)), MaxRel: 0.5})
	if want := `{"name":"n","kind":"m","what":"differs","elements":2,"max_abs":"inf","max_rel":0.5}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
}
