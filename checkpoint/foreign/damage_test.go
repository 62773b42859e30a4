package foreign

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"zeroth/shard"
	"zeroth/tests/nightly"
)

// damaged lists the fixtures to mutate.
var damaged = []string{"deepspeed/x-z2-paramalign-rr-bf16-w2", "deepspeed/x-z3-subgroups-bf16-w2", "deepspeed/x-z0-fp32-w2", "dcp/fsdp2-fp32-w2/step-3", "dcp/fsdp1-w2/step-3", "dcp/dtensor-pt-w2", "dcp/plain", "dcp/plain/sharded"}

// A mutated checkpoint is either read or refused with an error naming the folder's file. It causes
// no panic, and uses at most 64 MiB of memory beyond the files' size.
func TestMutations(t *testing.T) {
	nightly.Long(t)
	n := nightly.Of(200, 10000)
	refused := 0
	for i, name := range damaged {
		files := map[string][]byte{}
		var names []string
		from := filepath.Join("testdata", name)
		err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(from, path)
			if err != nil || d.IsDir() || strings.HasSuffix(path, ".json") && !strings.Contains(path, "index") || strings.HasSuffix(path, ".safetensors") {
				return err
			}
			b, err := os.ReadFile(path)
			files[rel], names = b, append(names, rel)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		to := t.TempDir()
		for rel, b := range files {
			write(t, filepath.Join(to, rel), b)
		}
		r := rand.New(rand.NewPCG(uint64(i), 30))
		for range n / len(damaged) {
			rel := names[r.IntN(len(names))]
			mutant := mutate(r, files[rel])
			write(t, filepath.Join(to, rel), mutant)
			if err := readAll(t, to); err != nil {
				refused++
				if !strings.Contains(err.Error(), to) {
					t.Fatalf("%s: an error that names no file: %v", rel, err)
				}
			}
			write(t, filepath.Join(to, rel), files[rel])
		}
		if err := readAll(t, to); err != nil {
			t.Errorf("the checkpoint itself: %v", err)
		}
	}
	if refused < n/20 {
		t.Errorf("only %d of %d mutations are refused", refused, n)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// mutate changes some bytes, mostly in the pickle, truncates the file or doubles a part.
func mutate(r *rand.Rand, b []byte) []byte {
	b = append([]byte{}, b...)
	at := func() int { return r.IntN(min(len(b), 1<<uint(4+r.IntN(18)))) }
	switch r.IntN(6) {
	case 0:
		return b[:at()]
	case 1:
		i := at()
		return append(append(append([]byte{}, b[:i]...), b[max(0, i-r.IntN(40)):]...), b[i:]...)
	case 2:
		copy(b[at():], []byte{0xff, 0xff, 0xff, 0x7f})
	case 3:
		copy(b[max(0, len(b)-1-r.IntN(200)):], []byte{0xff, 0xff, 0xff, 0xff})
	case 4:
		const ops = ".(cRQbqrhj})]t\x85\x86\x87sueaNKMJG\x8aX\x8c\x93\x94\x95\x80\x88\x81"
		b[at()] = ops[r.IntN(len(ops))]
	default:
		for range 1 + r.IntN(4) {
			b[at()] ^= 1 << r.IntN(8)
		}
	}
	return b
}

// peakHeap starts watching the heap. The function that it returns stops watching and returns the
// most bytes in use at once beyond those at the beginning. This includes a little garbage: the
// collector runs whenever the heap has grown by 8 MiB.
func peakHeap() func() int64 {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	used := func() int64 { metrics.Read(heap); return int64(heap[0].Value.Uint64()) }
	runtime.GC()
	begin := used()
	limit := debug.SetMemoryLimit(begin + 8<<20)
	end, most := make(chan bool), make(chan int64)
	go func() {
		peak := int64(0)
		for {
			select {
			case <-end:
				most <- peak
				return
			case <-time.After(100 * time.Microsecond):
				peak = max(peak, used()-begin)
			}
		}
	}()
	return func() int64 {
		end <- true
		debug.SetMemoryLimit(limit)
		return <-most
	}
}

// readAll opens a checkpoint and reads all its elements.
func readAll(t *testing.T, folder string) error {
	t.Helper()
	var size int64
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if info, wrong := d.Info(); wrong == nil {
			size += info.Size()
		}
		return err
	})
	peak := peakHeap()
	defer func() {
		if took := peak(); took > size+64<<20 {
			t.Errorf("%d bytes of memory are used for %d bytes of files", took, size)
		}
	}()
	c, err := Open(folder)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Check(); err != nil {
		return err
	}
	buf := make([]float32, 1<<12)
	for _, x := range c.All() {
		for lo := 0; lo < x.Numel(); lo += len(buf) {
			r := shard.Range{Lo: lo, Hi: min(x.Numel(), lo+len(buf))}
			if err := c.ReadF32(x.Name, x.Kind, r, buf[:r.Len()], 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// A universal checkpoint scrambled by DeepSpeed's converter is refused if the ZeRO files show the
// difference, and a checkpoint with missing ranks is refused by name.
func TestDisagreement(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "odd")
	if err := os.CopyFS(folder, os.DirFS("testdata/deepspeed/z2-bf16-w2")); err != nil {
		t.Fatal(err)
	}
	a := filepath.Join(folder, "global_step3", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
	b := filepath.Join(folder, "global_step3", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
	first, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	write(t, a, second)
	write(t, b, first)
	c, err := Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "transformer.wte.weight") {
		t.Errorf("exchanged ranks: %v", err)
	}
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(folder); err == nil || !strings.Contains(err.Error(), "2 ranks") {
		t.Errorf("a missing rank: %v", err)
	}
}

// TestRanksDiffer checks that files of ranks that are not of one checkpoint are refused.
func TestRanksDiffer(t *testing.T) {
	const optim, model = "zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"
	for _, c := range []struct{ of, file, from string }{
		{"z2-bf16-w2", "bf16_" + optim, "x-z3-subgroups-bf16-w2/global_step3/bf16_" + optim},
		{"z2-bf16-w2", "bf16_" + optim, "z1-fp32-w2/global_step3/" + optim},
		{"z2-bf16-w2", "bf16_" + optim, "x-z2-frozen-bf16-w2/global_step3/bf16_" + optim},
		{"x-z3-subgroups-bf16-w2", model, "x-z3-frozen-bf16-w2/global_step3/" + model},
		{"z3-fp32-w4", optim, "x-z3-fp16-w2/global_step3/" + optim},
	} {
		folder := filepath.Join(t.TempDir(), "odd")
		if err := os.CopyFS(folder, os.DirFS("testdata/deepspeed/"+c.of)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile("testdata/deepspeed/" + c.from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(folder, "global_step3", c.file), b)
		said.Same(t, c.of+" with "+c.from, readAll(t, folder))
	}
}

// A checkpoint without the files of its optimizer is not one of weights alone.
func TestWithoutOptimizer(t *testing.T) {
	for _, c := range []struct{ of, remove string }{
		{"deepspeed/z2-bf16-w2", "global_step3/*_optim_states.pt"},
		{"deepspeed/x-z3-subgroups-bf16-w2", "global_step3/*_optim_states.pt"},
		{"dcp/fsdp2-accelerate-w2", "optimizer_0/.metadata"},
	} {
		folder := filepath.Join(t.TempDir(), "odd")
		if err := os.CopyFS(folder, os.DirFS(filepath.Join("testdata", c.of))); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(folder, c.remove))
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if said.Same(t, c.of, readAll(t, folder)); len(files) == 0 {
			t.Errorf("%s has no %s", c.of, c.remove)
		}
	}
	model := "testdata/deepspeed/z2-bf16-w2/global_step3/mp_rank_00_model_states.pt"
	if c, err := Open(model); err != nil || len(c.tensors) == 0 {
		t.Errorf("the 16-bit weights: %v", err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
}
