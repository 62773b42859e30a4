package safetensors

import (
	"errors"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
)

// exportTo writes a folder of two parts.
func exportTo(fsys vfs.FS) error {
	specs := []Spec{{"a", F32, []int{600}}, {"b", BF16, []int{1200}}}
	w, err := CreateFolderIn(fsys, "/out", 2400, specs, nil)
	if err != nil {
		return err
	}
	for i, s := range specs {
		if err := w.WriteF32(s.Name, 0, numbers(s.Numel(), uint64(i))); err != nil {
			return errors.Join(err, w.Abort())
		}
	}
	return w.Close()
}

// whole reports whether the folder opens; a folder that opens must be complete.
func whole(t *testing.T, fsys vfs.FS) bool {
	t.Helper()
	r, err := OpenIn(fsys, "/out")
	if err != nil {
		return false
	}
	got := make([]float32, 600)
	if err := r.ReadF32("a", 0, 600, got); err != nil || got[599] != numbers(600, 0)[599] || len(r.Tensors()) != 2 {
		t.Fatalf("a folder that opens is incomplete: %v", err)
	}
	return true
}

// TestInterruptedExport checks that an export interrupted by a kill or a loss of power at any
// operation leaves a folder that either does not open, and can be exported again, or is complete.
func TestInterruptedExport(t *testing.T) {
	crash := errors.New("crashed")
	opened := 0
	for n := 0; ; n++ {
		mem := &vfstest.Mem{}
		remaining := n
		err := exportTo(vfstest.Hook{FS: mem, Before: func(o vfstest.Op) error {
			if remaining--; remaining < 0 && o.Changes() {
				return crash
			}
			return nil
		}})
		if whole(t, mem) {
			opened++
		} else if err := exportTo(mem); err != nil || !whole(t, mem) {
			t.Fatalf("crash before operation %d: exporting again: %v", n, err)
		}
		if err == nil {
			break
		}
	}
	if opened < 1 {
		t.Error("no export was complete")
	}
	mem := &vfstest.Mem{}
	if err := exportTo(mem); err != nil {
		t.Fatal(err)
	}
	for n := 0; n <= mem.Ops(); n++ {
		for f := range 27 {
			disk := mem.AfterPowerLoss(n, func(c vfstest.Change) vfstest.Outcome {
				switch { // three outcomes for contents, names, and every third change
				case c.Index%3 == 0:
					return vfstest.Outcome(f / 9)
				case c.Name:
					return vfstest.Outcome(f / 3 % 3)
				}
				return vfstest.Outcome(f % 3)
			})
			if ok := whole(t, disk); n == mem.Ops() && !ok {
				t.Fatal("a finished export was lost")
			}
		}
	}
}
