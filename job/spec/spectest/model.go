package spectest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/shard"
)

// ModelFolder creates a folder of a model with fresh parameters and returns its path.
func ModelFolder(t *testing.T, m hf.Model) string {
	t.Helper()
	dir := t.TempDir()
	err := os.WriteFile(filepath.Join(dir, "config.json"), m.ConfigJSON(), 0o666)
	var specs []safetensors.Spec
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		specs = append(specs, safetensors.Spec{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
		data := make([]float32, p.Numel())
		nn.Fill(1, p, shard.Range{Hi: p.Numel()}, data)
		err = errors.Join(err, w.WriteF32(p.Name, 0, data))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}
