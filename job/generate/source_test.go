package generate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zeroth/checkpoint"
)

// TestNewer checks that a model written just after a checkpoint is taken for the later one, though the time of its file is a
// little earlier, or in whole seconds.
func TestNewer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	second := time.Unix(1_800_000_000, 0)
	for _, x := range []struct {
		file, checkpoint time.Duration // after the second
		newer            bool
	}{
		{500 * time.Millisecond, 505 * time.Millisecond, false}, {500 * time.Millisecond, 600 * time.Millisecond, true}, {500 * time.Millisecond, 0, false},
		{0, 900 * time.Millisecond, false}, {0, 3 * time.Second, true},
	} {
		if err := os.Chtimes(file, second, second.Add(x.file)); err != nil {
			t.Fatal(err)
		}
		if got := newer(checkpoint.Entry{Created: second.Add(x.checkpoint)}, dir); got != x.newer {
			t.Errorf("%+v: newer is %v", x, got)
		}
	}
}
