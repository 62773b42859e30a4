// Package checkpointtest helps to test what reads checkpoints.
package checkpointtest

import (
	"testing"

	"zeroth/checkpoint"
	"zeroth/shard"
)

// Copy copies a checkpoint to the folder root as if one rank had written it, and returns the new
// checkpoint's folder.
func Copy(t testing.TB, c *checkpoint.Checkpoint, root string) string {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	s, err := checkpoint.Begin(root, c.Step, checkpoint.Options{})
	must(err)
	defer s.Abort()
	w := s.Writer(0)
	for _, x := range c.Tensors {
		b, all := make([]byte, x.Bytes()), shard.Range{Hi: x.Numel()}
		must(c.Read(x.Name, x.Kind, all, b))
		must(w.Put(x, all, b, nil))
	}
	part, err := w.Finish()
	must(err)
	path, err := s.Commit(checkpoint.Commit{Tensors: c.Tensors, State: c.State, Metrics: c.Metrics, Parts: []checkpoint.PartFile{part}})
	must(err)
	return path
}
