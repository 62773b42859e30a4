package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/vfs"
)

// TestHold checks that the holder of a folder, and nobody else, can save and prune repeatedly.
func TestHold(t *testing.T) {
	root := filepath.Join(t.TempDir(), "made", "here")
	h, err := HoldFolder(nil, root)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		for what, try := range map[string]func() error{
			"a hold":  func() error { _, err := HoldFolder(nil, root); return err },
			"a save":  func() error { _, err := Begin(root, 9, Options{}); return err },
			"a prune": func() error { _, err := Prune(root, Keep{Last: 1}); return err },
		} {
			var held *vfs.Locked
			if err := try(); !errors.As(err, &held) || held.PID != os.Getpid() {
				t.Errorf("%s, %s by another: %v", when, what, err)
			}
		}
	}
	refused("before the first save")
	for step := int64(1); step <= 3; step++ {
		newModel(1).mustSave(t, vfs.OS{}, root, step, 2, Options{Hold: h})
		refused("after a save")
	}
	s, err := Begin(root, 4, Options{Hold: h})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(); err != nil {
		t.Error(err)
	}
	refused("after a save that failed")
	if gone, err := h.Prune(Keep{Last: 2}); err != nil || len(gone.Deleted) != 1 || gone.Deleted[0] != "step-00000001" {
		t.Errorf("gone %v, %v", gone, err)
	}
	refused("after a prune")
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if gone, err := Prune(root, Keep{Last: 1}); err != nil || len(gone.Deleted) != 1 {
		t.Errorf("after releasing the hold: gone %v, %v", gone, err)
	}
}

// TestHoldLeavesNothing checks that a hold without a save leaves the folder empty.
func TestHoldLeavesNothing(t *testing.T) {
	root := filepath.Join(t.TempDir(), "ckpt")
	h, err := HoldFolder(nil, root)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if in, err := os.ReadDir(root); err != nil || len(in) > 0 {
		t.Errorf("remaining: %v, %v", in, err)
	}
}
