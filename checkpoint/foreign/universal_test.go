package foreign

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/torchfile"
	"zeroth/shard"
)

// A universal checkpoint reads like the ZeRO files it was made from. If the converter mixed up
// parameters, as DeepSpeed's does with round_robin_gradients, the ZeRO files reveal it.
func TestUniversal(t *testing.T) {
	root := t.TempDir()
	from, to := filepath.Join(root, "global_step3"), filepath.Join(root, "global_step3_universal")
	if err := os.CopyFS(from, os.DirFS("testdata/deepspeed/x-z2-roundrobin-bf16-w2/global_step3")); err != nil {
		t.Fatal(err)
	}
	z, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	models, err := os.ReadFile(filepath.Join(from, "mp_rank_00_model_states.pt"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(to, "mp_rank_00_model_states.pt"), models)
	values := map[string][]byte{}
	for _, x := range z.All() {
		f := make([]float32, x.Numel())
		if err := z.ReadF32(x.Name, x.Kind, shard.Range{Hi: len(f)}, f, 1); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4*len(f))
		safetensors.Encode(b, f, checkpoint.F32)
		values[x.Name+x.Kind] = b
		writeUniversal(t, to, x, b)
	}
	u, err := Open(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Check(); err != nil {
		t.Error(err)
	}
	if len(u.All()) != len(z.All()) || u.Step != 3 || !strings.Contains(u.Form, "universal") {
		t.Errorf("%d tensors of %d, step %d, %s", len(u.All()), len(z.All()), u.Step, u.Form)
	}
	u.Close()

	const a, b = "transformer.h.0.ln_1.bias", "transformer.h.1.ln_1.bias"
	for name, other := range map[string]string{a: b, b: a} {
		writeUniversal(t, to, checkpoint.Tensor{Name: name, Kind: checkpoint.Master, DType: checkpoint.F32, Shape: []int{14}}, values[other+checkpoint.Master])
	}
	if u, err = Open(to); err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := u.Check(); err == nil || !strings.Contains(err.Error(), a+", "+b) || !strings.Contains(err.Error(), "round_robin_gradients") {
		t.Errorf("two parameters are exchanged: %v", err)
	}
	if err := os.Remove(filepath.Join(to, "zero", a, "fp32.pt")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(to); err == nil || !strings.Contains(err.Error(), a+"/fp32.pt") {
		t.Errorf("a parameter has no file: %v", err)
	}
}

// writeUniversal writes a bare tensor, as ds_to_universal does at stage 3.
func writeUniversal(t *testing.T, folder string, x checkpoint.Tensor, b []byte) {
	t.Helper()
	file := map[string]string{checkpoint.Master: "fp32"}[x.Kind]
	if file == "" {
		file = x.Kind
	}
	var out strings.Builder
	err := torchfile.Write(&out, "archive", []torchfile.Spec{{DType: x.DType, Shape: x.Shape}}, func(_ torchfile.Spec, w func([]byte) error) error { return w(b) })
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "zero", x.Name, file+".pt"), []byte(out.String()))
}
