//go:build cuda

package cuda_test

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
	"zeroth/device/cuda/kernel"
)

// modules makes the fake record loading and unloading of modules from now on, and returns a
// function for the sorted records: "load NAME KIND" and "unload NAME KIND" of each, by its first
// kernel and what was loaded, "sm_90" or "ptx".
func modules(t *testing.T) func() []string {
	fake.Only(t)
	file := filepath.Join(t.TempDir(), "modules")
	t.Setenv("FAKECUDA_MODULES", file)
	return func() []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		slices.Sort(lines)
		return lines
	}
}

// normGrad launches a separate family on 8 rows.
func normGrad(q *cuda.Queue, x device.Buffer) {
	w := x.N / 8
	m := device.Matrix(x, 8, w)
	q.LayerNormGrad(m, x.Slice(0, w), x.Slice(0, w), m, m, x.Slice(0, w), x.Slice(0, 8), x.Slice(0, 8), false)
}

// wantModules checks the records: all modules are of one kind, that of this process's GPU.
func wantModules(t *testing.T, got []string, want ...string) {
	t.Helper()
	for i := range want {
		want[i] += " " + cmp.Or(os.Getenv("WANT"), "sm_90")
		if strings.Contains(want[i], " wgmma_") {
			want[i] += "a"
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("modules: %q, want %q", got, want)
	}
}

// TestFamiliesLoadOnUse checks that a GPU loads what every job needs, then the
// announced attention, then what is launched, each once, and unloads everything at the end.
func TestFamiliesLoadOnUse(t *testing.T) {
	noted := modules(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	wantModules(t, noted(), "load dropout")
	if err := d.ReserveWork(device.Sizes{Type: device.BF16, Rows: 8, Width: 64, Attn: device.Attn{T: 8, D: 64}}); err != nil {
		t.Fatal(err)
	}
	wantModules(t, noted(), "load dropout", "load flash_bf16_64")
	x, err := d.Alloc(device.F32, 512, device.Params)
	if err != nil {
		t.Fatal(err)
	}
	q := d.NewQueue("q")
	for range 3 {
		normGrad(q, x)
	}
	if err := q.Wait(); err != nil {
		t.Error(err)
	}
	wantModules(t, noted(), "load dropout", "load flash_bf16_64", "load norm_grad_3")
	q.Close()
	d.Close()
	wantModules(t, noted(), "load dropout", "load flash_bf16_64", "load norm_grad_3", "unload dropout", "unload flash_bf16_64", "unload norm_grad_3")
}

// TestChosenAttentionLoads checks that a device loads the attention that it is told to choose, and that
// its queues launch it.
func TestChosenAttentionLoads(t *testing.T) {
	chosenLoads(t, kernel.MMA, 256, 20, "load flash_bf16_256")
	chosenLoads(t, kernel.WGMMA, 64, 0, "load wgmma_bf16_64")
}

func chosenLoads(t *testing.T, c kernel.Choice, width int, top float32, want string) {
	t.Helper()
	noted := modules(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	d.ChooseAttention(c)
	a := device.Attn{B: 1, T: 8, H: 1, KV: 1, D: width, Scale: 0.1, Cap: top}
	if err := d.ReserveWork(device.Sizes{Type: device.BF16, Rows: 8, Width: width, Attn: a}); err != nil {
		t.Fatal(err)
	}
	x, err := d.Alloc(device.BF16, 8*width, device.Activations)
	lse, more := d.Alloc(device.F32, 8, device.Activations)
	if err = errors.Join(err, more); err != nil {
		t.Fatal(err)
	}
	q := d.NewQueue("q")
	m := device.Matrix(x, 8, width)
	q.Attention(m, lse, m, m, m, a)
	if err := q.Wait(); err != nil {
		t.Error(err)
	}
	q.Close()
	wantModules(t, noted(), "load dropout", want)
	d.Free(x)
	d.Free(lse)
	d.Close()
}

// TestLoadsWhatGPUTakes checks what is loaded on GPUs of several capabilities: cubins of their major
// one, and PTX on others and where the driver refuses the cubins.
func TestLoadsWhatGPUTakes(t *testing.T) {
	fake.Only(t)
	for env, want := range map[string]string{
		"FAKECUDA_CAPABILITY=80": "sm_80", "FAKECUDA_CAPABILITY=86": "sm_80", "FAKECUDA_CAPABILITY=89": "sm_80", "FAKECUDA_CAPABILITY=90": "sm_90",
		"FAKECUDA_CAPABILITY=100": "ptx", "FAKECUDA_CAPABILITY=120": "ptx", "FAKECUDA_NO_CUBINS=": "ptx", "FAKECUDA_DRIVER=12000": "sm_90",
	} {
		fake.Again(t, "TestFamiliesLoadOnUse", env, "WANT="+want)
	}
}

// TestCubins checks that each family's cubin has its kernels, with the parameters that they have in
// C++, and loads on no GPU of another capability.
func TestCubins(t *testing.T) {
	fake.Only(t)
	if os.Getenv("FAKECUDA_CAPABILITY") == "" {
		fake.Again(t, "TestCubins", "FAKECUDA_CAPABILITY=80")
		fake.Again(t, "TestCubins", "FAKECUDA_CAPABILITY=90")
		return
	}
	g, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, f := range kernel.Families() {
		if !f.RunsOn(g.Major, g.Minor) {
			continue
		}
		m, err := g.Load(f.Name, f.Images(g.Major)[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range f.Kernels {
			if _, err := m.Function(k.Name, k.Threads, k.Offsets(), 0); err != nil {
				t.Error(err)
			}
		}
		if err := m.Unload(); err != nil {
			t.Error(err)
		}
		if others := f.Images(17 - g.Major); len(others) > 1 {
			_, err = g.Load(f.Name, others[0])
			say(t, err, "load the cubin of the kernels "+f.Name, "CUDA_ERROR_NO_BINARY_FOR_GPU")
		}
	}
}

// TestFamilyLoadErrors checks that families refused by the driver are named, when a
// device requests them and by the queue that launches them, while others continue.
func TestFamilyLoadErrors(t *testing.T) {
	modules(t)
	t.Setenv("FAKECUDA_BAD_KERNEL", "adamw")
	_, err := cuda.Open(0)
	say(t, err, "load the cubin of the kernels base on GPU 0 (Emulated GPU)", "CUDA_ERROR_INVALID_IMAGE", "load the kernels base on GPU 0 (Emulated GPU)", "CUDA_ERROR_INVALID_PTX")
	t.Setenv("FAKECUDA_BAD_KERNEL", "flash_dq_f16_96")
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	say(t, d.ReserveWork(device.Sizes{Type: device.F16, Attn: device.Attn{D: 96}}), "load the kernels flash_f16_96 on GPU 0 (Emulated GPU)", "CUDA_ERROR_INVALID_PTX")
	d.Close()

	t.Setenv("FAKECUDA_BAD_KERNEL", "norm_grad_3")
	b := open(t)
	x := b.alloc(device.F32, 512)
	b.q.Label("h.3 backward")
	normGrad(b.q, x)
	normGrad(b.q, x)
	say(t, b.q.Wait(), "h.3 backward: GPU 0 (Emulated GPU): load the cubin of the kernels norm_grad_3 on", "load the kernels norm_grad_3 on", "CUDA_ERROR_INVALID_PTX")
	b.r.Zero(x)
	if err := b.r.Wait(); err != nil {
		t.Errorf("another queue: %v", err)
	}
}

// TestFamilyLoadsOnce launches the first kernel of a family concurrently on ranks
// that share a GPU: it must be loaded once and be available to each.
func TestFamilyLoadsOnce(t *testing.T) {
	noted := modules(t)
	var devices []*cuda.Device
	var memory []device.Buffer
	for range 6 {
		d, err := cuda.Open(0)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		x, err := d.Alloc(device.F32, 8*2048, device.Params)
		if err != nil {
			t.Fatal(err)
		}
		devices, memory = append(devices, d), append(memory, x)
	}
	var ranks sync.WaitGroup
	for i, d := range devices {
		ranks.Go(func() {
			q := d.NewQueue("q")
			defer q.Close()
			normGrad(q, memory[i].Slice(0, 512))
			normGrad(q, memory[i])
			if err := q.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	wantModules(t, noted(), "load dropout", "load norm_grad_3", "load norm_grad_8")
}
