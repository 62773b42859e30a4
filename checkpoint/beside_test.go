package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/tests/nightly"
)

// TestReadDuringDeletion checks that while a run keeps only its newest checkpoint, readers find
// an intact one or get an error that it was deleted, never that it is damaged or that there is
// none.
func TestReadDuringDeletion(t *testing.T) {
	nightly.Long(t)
	root := t.TempDir()
	m := newModel(1)
	m.mustSave(t, vfs.OS{}, root, 1, 1, Options{headerBytes: 4096})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { // ends with ctx
		var err error
		for step := int64(2); ctx.Err() == nil && err == nil; step++ {
			if _, err = m.save(vfs.OS{}, root, step, 1, 3, Options{headerBytes: 4096}); err == nil {
				_, err = Prune(root, Keep{Last: 1})
			}
		}
		ended <- err
	}()
	last, opened, gone := int64(0), 0, 0
	end := time.Now().Add(3 * time.Second)
	if !nightly.All() {
		end = time.Now().Add(time.Second)
	}
	few := func() bool { return opened < 5 || gone == 0 || last < 5 }
	for patience := end.Add(2 * time.Minute); time.Now().Before(end) || few() && time.Now().Before(patience); { // longer on a busy machine
		c, err := Find(root, "latest")
		if err != nil {
			t.Fatalf("find: %v", err)
		}
		if c.Seq < last {
			t.Fatalf("commit %d after %d", c.Seq, last)
		}
		last = c.Seq
		if err := m.equals(c); err != nil {
			t.Fatalf("read: %v", err)
		}
		c.Close()
		opened++
		list, err := List(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Status == Damaged {
				t.Fatalf("listed %+v", e)
			}
		}
		path, err := Resolve(root, "latest")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(opened%5) * time.Millisecond) // let the others work
		bad, err := Verify(ctx, path, Walk{Workers: 1})
		if len(bad) > 0 || err != nil && !errors.Is(err, ErrGone) {
			t.Fatalf("verify: %v, %v", bad, err)
		}
		if err != nil {
			gone++
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if few() {
		t.Errorf("%d opened, %d gone, %d saved: too few for a verdict", opened, gone, last)
	}
}

// TestDeletedAtEveryOperation deletes the newest checkpoint before each operation of opening it.
// The result must be the next one, or an error that it is gone.
func TestDeletedAtEveryOperation(t *testing.T) {
	for n := 0; ; n++ {
		mem := &vfstest.Mem{}
		older, newer := newModel(1), newModel(2)
		first := older.mustSave(t, mem, "/c", 1, 1, Options{})
		at := 0
		fsys := vfstest.Hook{FS: mem, Before: func(o vfstest.Op) error {
			if at++; at == n+1 {
				newer.mustSave(t, mem, "/c", 2, 1, Options{})
				if _, err := PruneIn(mem, "/c", Keep{Last: 1}); err != nil {
					t.Error(err)
				}
			}
			return nil
		}}
		c, err := FindIn(fsys, "/c", "latest")
		if err != nil {
			t.Fatalf("deleted before operation %d: %v", n, err)
		}
		if newer.equals(c) != nil && older.equals(c) != nil {
			t.Fatalf("deleted before operation %d: the result is neither", n)
		}
		past := at <= n
		c.Close()
		at = 0
		if _, err := OpenIn(fsys, first); err != nil && !errors.Is(err, ErrGone) {
			t.Fatalf("deleted before operation %d of opening: %v", n, err)
		}
		if past {
			break
		}
	}
}

// TestNonexistentCheckpoint checks that a checkpoint that never existed is not reported as
// damaged.
func TestNonexistentCheckpoint(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "step-00000001")} {
		if _, err := Open(path); !errors.Is(err, ErrGone) {
			t.Errorf("opened: %v", err)
		}
		if bad, err := Verify(context.Background(), path, Walk{}); !errors.Is(err, ErrGone) || bad != nil {
			t.Errorf("verified: %v, %v", bad, err)
		}
	}
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o777))
	var d *Damage
	if _, err := Open(filepath.Join(dir, "empty")); !errors.As(err, &d) || d.File != commitName {
		t.Errorf("opened: %v", err)
	}
}

// halfRead is a file system whose first listing of a folder misses a name renamed meanwhile.
type halfRead struct {
	vfs.FS
	readings int
}

func (h *halfRead) List(dir string) ([]vfs.Entry, error) {
	h.readings++
	if h.readings == 1 {
		return nil, nil
	}
	return h.FS.List(dir)
}

// TestListReadsNamesTwice checks that a checkpoint missed by one listing of the folder is found.
func TestListReadsNamesTwice(t *testing.T) {
	root := t.TempDir()
	newModel(1).mustSave(t, vfs.OS{}, root, 1, 1, Options{})
	fsys := &halfRead{FS: vfs.OS{}}
	if path, err := ResolveIn(fsys, root, "latest"); err != nil || fsys.readings != 4 {
		t.Errorf("%q, %v after %d readings, want a checkpoint after 4", path, err, fsys.readings)
	}
}
