package tests

import (
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"zeroth/checkpoint/safetensors"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec/spectest"
	"zeroth/nn"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// TestLoadingMemory checks that four ranks at stage 3 that start from a folder
// together read each element once, each rank reading its shard. Beyond the shards they need only
// a staging buffer of 4 MiB per rank, and less on a CPU, where they read directly into the
// shards.
func TestLoadingMemory(t *testing.T) {
	nightly.Long(t)
	m := hf.Model{Family: "llama", Shape: nn.Shape{Layers: 4, Heads: 8, Width: 512, Context: 32, Vocab: 4096, Eps: 1e-5}, Llama: nn.Llama{KV: 4, FFN: 1408, Theta: 1e4}}
	folder := spectest.ModelFolder(t, m)
	for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		if dtype == safetensors.BF16 {
			retype(t, folder, dtype)
		}
		c := mustHFConfig(t, folder, "tokens.bin", "parallel.ranks=4", "zero.stage=3", "precision=fp32")
		ranks, err := setup.Open(setup.Local(c))
		if err != nil {
			t.Fatal(err)
		}
		defer zerotest.CloseAll(ranks)
		from, err := hf.OpenModel(folder, c.Model)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		w := &hf.Weights{From: from}
		var before, after runtime.MemStats
		var read [4]atomic.Int64
		runtime.ReadMemStats(&before)
		err = setup.Together(ranks, func(r *setup.Rank) error {
			return r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
				read[r.Rank].Add(int64(len(dst)))
				return w.Fill(p, dst)
			})
		})
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		total, sum := int64(0), int64(0)
		for _, p := range hf.Parameters(m.Network(nn.LoRA{})) {
			total += int64(p.Numel())
		}
		for r := range read {
			n := read[r].Load()
			sum += n
			if most := total/4 + total/50; n > most {
				t.Errorf("%s: rank %d reads %d elements of %d", dtype, r, n, total)
			}
		}
		if sum != total {
			t.Errorf("%s: %d elements are read, the model has %d", dtype, sum, total)
		}
		took := int64(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: loading a model of %d bytes into 4 ranks takes %d bytes beside their shards", dtype, 4*total, took)
		// Buffers of 1 MiB for widening 16-bit types are pooled; how many are allocated depends
		// on the garbage collector.
		if most := int64(4 * (4<<20 + 1<<18)); dtype == safetensors.F32 && took > most || most > 4*total/2 {
			t.Errorf("%s: %d bytes are allocated, want at most %d; the model has %d", dtype, took, most, 4*total)
		}
	}
}

// retype rewrites a folder's parameters in another type.
func retype(t *testing.T, folder string, dtype safetensors.DType) {
	t.Helper()
	path := filepath.Join(folder, "model.safetensors")
	values := readModel(t, path)
	r, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var specs []safetensors.Spec
	for _, x := range r.Tensors() {
		specs = append(specs, safetensors.Spec{Name: x.Name, DType: dtype, Shape: x.Shape})
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w, err := safetensors.Create(path, specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if err := w.WriteF32(s.Name, 0, values[s.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
