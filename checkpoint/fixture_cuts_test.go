package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/vfs"
	"zeroth/shard"
)

// testdata/v2 is a checkpoint of format 2, written by its first version: two ranks have parts of
// tensors, each divided into two shards. It must not change, like testdata/v1, and was created in
// the same way.
const (
	fixtureCuts       = "testdata/v2/step-00000007"
	fixtureCutsDigest = "5a99800d8f8bc4562915459d8d179856fc6b3bebbe79e831ae4b7254779b7847"
)

// fixtureCutsTensors returns small tensors, divided in every way; elements returns their content.
func fixtureCutsTensors() (ts []Tensor) {
	for name, shape := range map[string][]int{"rows": {6, 70}, "columns": {70, 12}, "three": {10, 36}, "uneven": {13, 8}, "vector": {12}, "whole": {5, 3}} {
		for _, kind := range []string{Master, "m"} {
			ts = append(ts, Tensor{name, kind, F32, shape})
		}
	}
	byKey(ts)
	return ts
}

func TestFixtureOfCutsStaysReadable(t *testing.T) {
	if os.Getenv("CHECKPOINT_FIXTURE") == "write" {
		root := filepath.Dir(fixtureCuts)
		os.RemoveAll(root)
		saveParts(t, root, fixtureCutsTensors(), 2, 2, Options{Compress: Always, headerBytes: 4096})
		os.Remove(filepath.Join(root, lockName))
	}
	m := &model{tensors: fixtureCutsTensors(), data: map[key][]byte{}, state: "{}"}
	for _, x := range m.tensors {
		m.data[x.key()] = elements(x, shard.Param{Shape: x.Shape}, shard.Range{Hi: x.Numel()})
	}
	must(t, m.holds(vfs.OS{}, fixtureCuts))
	c, err := Open(fixtureCuts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d, err := c.Digest(); err != nil || d != fixtureCutsDigest {
		t.Errorf("digest %s, %v", d, err)
	}
	if c.man.Format != formatCuts || !slices.Equal(c.man.Uses, []feature{partsUsed}) || c.Step != 7 || c.Writers() != 4 {
		t.Errorf("format %d using %q, step %d, %d writers", c.man.Format, c.man.Uses, c.Step, c.Writers())
	}
	for _, ranks := range []int{1, 2, 3, 4, 6} { // as they would divide them
		_, part := cutTensors(ranks)
		for rank := range ranks {
			for _, x := range m.tensors {
				p := part(x, rank)
				r := shard.Range{Hi: p.Numel()}
				into := make([]byte, 4*r.Len())
				must(t, c.ReadAll([]Request{{x.Name, x.Kind, p.Cut, r, into}}, 1))
				if !bytes.Equal(into, elements(x, p, r)) {
					t.Errorf("rank %d of %d reads other elements of %v", rank, ranks, x)
				}
			}
		}
	}
	dir := t.TempDir()
	path, err := c.Reshard(t.Context(), dir, 3, Options{}, func(int64) {})
	must(t, err)
	must(t, m.holds(vfs.OS{}, path))
	must(t, Export{}.Write(t.Context(), c, c.Path, filepath.Join(dir, "model")))
	r, err := safetensors.Open(filepath.Join(dir, "model"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, x := range r.Tensors() {
		got := make([]byte, 4*x.Numel())
		must(t, r.ReadRaw(x.Name, 0, x.Numel(), got))
		if !bytes.Equal(got, m.data[key{x.Name, Master}]) {
			t.Errorf("%s is exported as something else", x.Name)
		}
	}
}
