// Package safetensorstest writes unusual safetensors files for tests.
package safetensorstest

import (
	"os"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/safetensors"
)

// Write writes a file of tensors of any types, in the given order, and creates its folder. raw
// returns the bytes of each tensor.
func Write(t *testing.T, path string, specs []safetensors.Spec, raw func(safetensors.Spec) []byte) {
	t.Helper()
	var tensors []safetensors.Tensor
	var all []byte
	for _, s := range specs {
		begin := int64(len(all))
		all = append(all, raw(s)...)
		tensors = append(tensors, safetensors.Tensor{Spec: s, Begin: begin, End: int64(len(all))})
	}
	head, err := safetensors.AppendHeader(nil, tensors, nil, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(head, all...), 0o666); err != nil {
		t.Fatal(err)
	}
}
