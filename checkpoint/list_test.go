package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint/vfs"
)

// tiny saves a checkpoint of one number.
func tiny(t *testing.T, fsys vfs.FS, root string, step int64, metrics map[string]float64) string {
	t.Helper()
	s, err := Begin(root, step, Options{FS: fsys, headerBytes: 512})
	if err != nil {
		t.Fatal(err)
	}
	w := s.Writer(0)
	x := bigModel(1, Master)
	if err := x.put(w, 0, 1, 3); err != nil {
		t.Fatal(err)
	}
	p, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Commit(Commit{Parts: []PartFile{p}, Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(); err != nil { // callers defer it, so it must do nothing
		t.Fatal(err)
	}
	return path
}

func TestListAndResolve(t *testing.T) {
	root := filepath.Join(t.TempDir(), "ckpt")
	if _, err := Resolve(root, "latest"); !errors.Is(err, ErrNone) {
		t.Errorf("latest of nothing: %v", err)
	}
	tiny(t, vfs.OS{}, root, 100, nil)
	tiny(t, vfs.OS{}, root, 200, map[string]float64{"val_loss": 3})
	back := tiny(t, vfs.OS{}, root, 100, nil) // the run went back
	os.WriteFile(filepath.Join(root, "notes.txt"), nil, 0o644)
	os.Mkdir(filepath.Join(root, "step-x"), 0o755)
	os.Mkdir(filepath.Join(root, "step--5"), 0o755)
	live, err := Begin(root, 300, Options{})
	if err != nil {
		t.Fatal(err)
	}
	os.Mkdir(filepath.Join(root, ".trash-step-00000001-0123456789abcdef"), 0o755)
	os.Mkdir(filepath.Join(root, ".trash-step-00000001-0"), 0o755) // not a name of ours
	os.Mkdir(filepath.Join(root, ".tmp-mine"), 0o755)
	l, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l {
		name, _, _ := strings.Cut(filepath.Base(e.Path), "00000300-")
		got = append(got, fmt.Sprintf("%s:%v:%d:%d", name, e.Status, e.Step, e.Seq))
	}
	want := "step-00000100:complete:100:1 step-00000200:complete:200:2 step-00000100.1:complete:100:3 .tmp-step-:partial:300:0 .trash-step-00000001-0123456789abcdef:trash:0:0"
	if strings.Join(got, " ") != want {
		t.Errorf("listed %v", got)
	}
	if l[1].Metrics["val_loss"] != 3 || l[1].Bytes < 512 || l[1].Created.IsZero() || l[1].Writers != 1 {
		t.Errorf("entry %+v", l[1])
	}
	for which, want := range map[string]string{"latest": back, "100": back, "200": filepath.Join(root, "step-00000200"), back: back} {
		if got, err := Resolve(root, which); err != nil || got != want {
			t.Errorf("%s resolves to %s, %v; want %s", which, got, err, want)
		}
	}
	for which, want := range map[string]string{"300": "have 100, 200, 100", "nope": "no such folder", "last": "did you mean latest?", "Newest": "did you mean latest?", "step-00000100": "did you mean 100?"} {
		if _, err := Resolve(root, which); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", which, err, want)
		}
	}
	if err := live.Abort(); err != nil {
		t.Fatal(err)
	}
}

// TestLatestDamaged checks that a damaged checkpoint is never skipped silently.
func TestLatestDamaged(t *testing.T) {
	for _, name := range []string{commitName, manifestName, stateName} {
		root := t.TempDir()
		tiny(t, vfs.OS{}, root, 1, nil)
		newer := tiny(t, vfs.OS{}, root, 2, nil)
		os.Remove(filepath.Join(newer, name))
		if _, err := Resolve(root, "latest"); err == nil || !strings.Contains(err.Error(), "is damaged") || !strings.Contains(err.Error(), "have 1") {
			t.Errorf("without %s the latest is: %v", name, err)
		}
		if _, err := Resolve(root, "2"); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("step 2 without %s: %v", name, err)
		}
		if path, err := Resolve(root, "1"); err != nil || !strings.HasSuffix(path, "step-00000001") {
			t.Errorf("step 1: %s, %v", path, err)
		}
		tiny(t, vfs.OS{}, root, 3, nil)
		path, err := Resolve(root, "latest")
		switch {
		case name == stateName && (err != nil || !strings.HasSuffix(path, "step-00000003")):
			t.Errorf("an older damaged one blocks the latest: %s, %v", path, err)
		case name != stateName && (err == nil || !strings.Contains(err.Error(), "step-00000002 is damaged and may be the newest: "+name+": is missing") || !strings.Contains(err.Error(), "give its path: the newest intact one is "+filepath.Join(root, "step-00000003"))):
			t.Errorf("a checkpoint without %s may be newer: %s, %v", name, path, err)
		}
	}
	root := t.TempDir()
	path := tiny(t, vfs.OS{}, root, 1, nil)
	os.Rename(path, filepath.Join(root, "step-00000009"))
	if l, _ := List(root); l[0].Status != Damaged || !strings.Contains(l[0].Why, "named for step 9") {
		t.Errorf("renamed: %+v", l)
	}
}

func TestKeep(t *testing.T) {
	var list []Entry
	for i, step := range []int64{100, 200, 300, 400, 500, 400, 600} {
		list = append(list, Entry{Step: step, Seq: int64(i + 1), Metrics: map[string]float64{"val_loss": []float64{5, 1, 3, 4, 2, 1, 6}[i]}})
	}
	list = append(list, Entry{Step: 700, Status: Damaged}, Entry{Step: 800, Status: Partial})
	for _, c := range []struct {
		keep Keep
		drop string
	}{
		{Keep{}, "4"}, // only the older 400
		{Keep{Last: 1}, "1 2 3 4 5 6"},
		{Keep{Last: 3}, "1 2 3 4"},
		{Keep{Last: 100}, "4"},
		{Keep{Every: 300}, "1 2 4 5 6"},
		{Keep{Last: 2, Every: 500}, "1 2 3 4"},
		{Keep{Best: "val_loss"}, "1 3 4 5 6"}, // of equal ones the lowest step
		{Keep{Last: 1, Best: "nope"}, "1 2 3 4 5 6"},
		{Keep{Last: 1, Step: 400}, "1 2 3 4 5"},
	} {
		var got []string
		for _, e := range c.keep.Drop(list) {
			got = append(got, fmt.Sprint(e.Seq))
		}
		if strings.Join(got, " ") != c.drop {
			t.Errorf("%+v drops %v, want %s", c.keep, got, c.drop)
		}
	}
}

// TestPrune checks that pruning does not wait for saves, does not disturb readers, and cleans up
// after a crash.
func TestPrune(t *testing.T) {
	if gone, err := Prune(filepath.Join(t.TempDir(), "none"), Keep{}); err != nil || len(gone.Deleted)+len(gone.Left) > 0 {
		t.Errorf("pruned nothing: %v, %v", gone, err)
	}
	root := t.TempDir()
	m := newModel(1)
	old := m.mustSave(t, vfs.OS{}, root, 1, 2, Options{})
	tiny(t, vfs.OS{}, root, 2, nil)
	c, err := Open(old)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	live, err := Begin(root, 3, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prune(root, Keep{Last: 1}); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("pruned during a save: %v", err)
	}
	if _, err := Begin(root, 3, Options{}); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("two saves at once: %v", err)
	}
	live.hold.lock.Close() // as if its process had died
	gone, err := Prune(root, Keep{Last: 1})
	if d := gone.Deleted; err != nil || len(d) != 2 || d[0] != "step-00000001" || d[1] != filepath.Base(live.tmp) || len(gone.Left) > 0 {
		t.Errorf("gone %v, %v", gone, err)
	}
	if err := m.equals(c); err != nil {
		t.Errorf("a reader was disturbed: %v", err)
	}
	in, _ := os.ReadDir(root)
	if len(in) != 2 { // .lock and step 2
		t.Errorf("remaining: %v", in)
	}
	if w := live.Writer(0); w.Put(Tensor{"w", Master, F32, []int{1}}, wholeOf(1), make([]byte, 4), nil) == nil {
		if _, err := w.Finish(); err == nil {
			t.Error("a writer of the dead save finished")
		}
	}
}

func TestBeginAndJoinRefuse(t *testing.T) {
	root := t.TempDir()
	if _, err := Begin(root, -1, Options{}); err == nil {
		t.Error("step -1")
	}
	file := filepath.Join(root, "file")
	os.WriteFile(file, nil, 0o644)
	if _, err := Begin(file, 1, Options{}); err == nil {
		t.Error("a file as folder")
	}
	if _, err := Join(root, 1, "0123456789abcdef", Options{}); err == nil || !strings.Contains(err.Error(), "same folder") {
		t.Errorf("joined nothing: %v", err)
	}
	if _, err := Join(root, 1, "../../etc", Options{}); err == nil || !strings.Contains(err.Error(), "nonce") {
		t.Errorf("joined a path: %v", err)
	}
	s, err := Begin(root, 1, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	j, err := Join(root, 1, s.Nonce, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Commit(Commit{}); err == nil || !strings.Contains(err.Error(), "began the save") {
		t.Errorf("committed after joining: %v", err)
	}
	if err := j.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.tmp); err != nil {
		t.Errorf("aborting after joining removed the folder: %v", err)
	}
	nan := 0.0
	if _, err := s.Commit(Commit{Metrics: map[string]float64{"loss": nan / nan}}); err == nil || !strings.Contains(err.Error(), "metric loss") {
		t.Errorf("NaN metric: %v", err)
	}
}
