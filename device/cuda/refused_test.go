//go:build cuda

package cuda_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda/driver"
	"zeroth/device/cuda/fake"
	"zeroth/device/cuda/kernel"
)

// TestFakesRefuse checks that the fake driver refuses the same things as a real one, with the same
// words: otherwise tests with the fake would prove nothing.
func TestFakesRefuse(t *testing.T) {
	fake.Only(t)
	g, m := loaded(t)
	_, err := g.Load("none", []byte("no PTX\x00"))
	say(t, err, "CUDA_ERROR_INVALID_PTX")
	fill := named("fill")
	_, err = m.Function("nope", fill.Threads, fill.Offsets(), 0)
	say(t, err, "CUDA_ERROR_NOT_FOUND", "nope")
	_, err = m.Function(fill.Name, fill.Threads, fill.Offsets(), 228<<10)
	say(t, err, "CUDA_ERROR_INVALID_VALUE", "kernel fill, with 233472 bytes of shared memory")

	text := string(base().PTX())
	other := strings.Replace(text, ".param .u64 fill_param_1", ".param .u32 fill_param_1", 1)
	narrow, err := g.Load("narrow", []byte(other))
	if err != nil || other == text {
		t.Fatalf("PTX with a narrower parameter: %v", err)
	}
	_, err = narrow.Function(fill.Name, fill.Threads, fill.Offsets(), 0)
	say(t, err, "CUDA_ERROR_INVALID_PTX", "fill")
}

// TestFakesRefuseLaunches checks that more than 48 KiB of shared memory must be announced, and that
// no grid may be empty.
func TestFakesRefuseLaunches(t *testing.T) {
	fake.Only(t)
	g, m := loaded(t)
	s, err := g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	k := named("fill")
	plain, err := m.Function(k.Name, k.Threads, k.Offsets(), 0)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(f driver.Function, grid [3]uint32, shared uint32) error {
		c := s.Commands()
		c.Launch(f, grid, shared, make([]byte, 64)) // of nothing
		return c.Run()
	}
	one, none := [3]uint32{1, 1, 1}, [3]uint32{1, 0, 1}
	say(t, fill(plain, none, 0), "CUDA_ERROR_INVALID_VALUE", "launch fill")
	say(t, fill(plain, one, 48<<10+1), "CUDA_ERROR_INVALID_VALUE", "launch fill")
	if err := fill(plain, one, 48<<10); err != nil {
		t.Errorf("48 KiB need no announcement: %v", err)
	}
	large, err := m.Function(k.Name, k.Threads, k.Offsets(), 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(large, one, 64<<10); err != nil {
		t.Errorf("64 KiB were announced: %v", err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

// launched launches the kernel fill on an empty buffer with the given number of threads.
func launched(t *testing.T, threads, shared uint32, params []byte) error {
	t.Helper()
	g, m := loaded(t)
	s, err := g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	k := named("fill")
	f, err := m.Function(k.Name, threads, k.Offsets(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Commands()
	c.Launch(f, [3]uint32{1, 1, 1}, shared, params)
	return errors.Join(c.Run(), s.Wait())
}

// TestFakesRefuseResources checks that a launch may have at most the threads for which its kernel
// was compiled, registers for them, and 48 KiB of shared memory including the kernel's own.
func TestFakesRefuseResources(t *testing.T) {
	fake.Only(t)
	list := filepath.Join(t.TempDir(), "kernels.txt")
	if env("LAUNCH") == "" {
		for uses, what := range map[string]string{"0 255 0 0 255": "threads", "40000 32 0 0 32": "shared", "0 264 0 0 264": "registers"} {
			if err := os.WriteFile(list, []byte("fill "+uses+" 0 0\n"), 0o666); err != nil {
				t.Fatal(err)
			}
			fake.Again(t, "TestFakesRefuseResources", "LAUNCH="+what, "FAKECUDA_KERNELS="+list)
		}
		return
	}
	nothing := make([]byte, 64)
	switch env("LAUNCH") {
	case "threads":
		say(t, launched(t, 257, 0, nothing), "CUDA_ERROR_INVALID_VALUE", "launch fill")
	case "shared":
		if err := launched(t, 256, 9000, nothing); err != nil {
			t.Error(err)
		}
		say(t, launched(t, 256, 10000, nothing), "CUDA_ERROR_INVALID_VALUE", "launch fill")
	case "registers":
		say(t, launched(t, 256, 0, nothing), "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launch fill")
	}
}

// TestFakesRefuseStrays checks that an invalid address, for example of the Go heap, ends the
// context.
func TestFakesRefuseStrays(t *testing.T) {
	fake.Only(t)
	if env("STRAY") == "" {
		fake.Again(t, "TestFakesRefuseStrays", "STRAY=1")
		return
	}
	params, stray := make([]byte, 64), new([64]byte)
	binary.LittleEndian.PutUint64(params, uint64(uintptr(unsafe.Pointer(stray)))|1<<46)
	say(t, launched(t, 256, 0, params), "CUDA_ERROR_ILLEGAL_ADDRESS")
}

// TestFakesRefuseProducts checks that cuBLAS refuses working space not aligned to 256 bytes,
// overlapping rows, and misaligned operands.
func TestFakesRefuseProducts(t *testing.T) {
	fake.Only(t)
	g, _ := loaded(t)
	s, err := g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mem, err := g.Alloc(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free(mem)
	_, err = driver.NewBLAS(s, unsafe.Add(mem, 64), 1024, nil)
	say(t, err, "CUBLAS_STATUS_INVALID_VALUE", "make a cuBLAS handle")
	b, err := driver.NewBLAS(s, mem, 1024, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	right := driver.Gemm{M: 8, N: 8, K: 8, LdA: 8, LdB: 8, LdC: 8, LdD: 8, Epilogue: driver.Plain, Align: 16}
	product := func(change func(*driver.Gemm), shift int) error {
		g, c := right, s.Commands()
		change(&g)
		b.Product(c, &g, unsafe.Add(mem, 4096+shift), unsafe.Add(mem, 8192), unsafe.Add(mem, 12288))
		return errors.Join(c.Run(), s.Wait())
	}
	if err := product(func(*driver.Gemm) {}, 0); err != nil {
		t.Error(err)
	}
	say(t, product(func(g *driver.Gemm) { g.LdA = 7 }, 0), "CUBLAS_STATUS_INVALID_VALUE", "product (8,8) by (8,8)")
	say(t, product(func(g *driver.Gemm) { g.TypeD = driver.BFloat16 }, 0), "CUBLAS_STATUS_NOT_SUPPORTED")
	say(t, product(func(*driver.Gemm) {}, 2), "CUBLAS_STATUS_INVALID_VALUE")
	planned := func(change func(*driver.Gemm)) (bool, error) {
		g := right
		change(&g)
		at := func(i int) unsafe.Pointer { return unsafe.Add(mem, 4096*i) }
		return b.Fused(s.Commands(), &g, driver.Operands{A: at(1), B: at(2), C: at(3), D: at(3), Vector: at(4), Aux: at(5)})
	}
	for what, change := range map[string]func(*driver.Gemm){
		"leading dimensions": func(g *driver.Gemm) { g.LdB = 7 },
		"types":              func(g *driver.Gemm) { g.Type, g.TypeD = driver.Float32, driver.Float16 },
		"a transpose":        func(g *driver.Gemm) { g.Epilogue, g.TransA = driver.SumsA, true },
		"rows beside d":      func(g *driver.Gemm) { g.Epilogue, g.LdAux = driver.GeluGrad, 9 },
	} {
		if ok, err := planned(change); ok || err != nil {
			t.Errorf("%s: a plan: %v, %v", what, ok, err)
		}
	}
	if ok, err := planned(func(*driver.Gemm) {}); !ok || err != nil {
		t.Errorf("no plan: %v", err)
	}
}

// TestSumsAreFloat32 uses libraries that ignore settings: settings, and the properties of
// algorithms, are read back.
func TestSumsAreFloat32(t *testing.T) {
	fake.Only(t)
	want := map[string]string{"math": "the math mode is not the float32 that was set", "reduction": "the algorithm adds partial sums in 16 bits, which was not allowed"}
	what := env("FAKECUBLAS_DISOBEYS")
	if what == "" {
		for what := range want {
			fake.Again(t, "TestSumsAreFloat32", "FAKECUBLAS_DISOBEYS="+what)
		}
		return
	}
	b := open(t)
	x, y := device.Matrix(b.alloc(device.BF16, 64), 8, 8), device.Matrix(b.alloc(device.BF16, 64), 8, 8)
	b.q.MatMul(y, x, x, b.alloc(device.BF16, 8), false)
	say(t, b.q.Wait(), want[what])
}

// TestUrgentQueues checks that the streams of collectives have the highest priority, and others the
// lowest.
func TestUrgentQueues(t *testing.T) {
	fake.Only(t)
	b, file := open(t), filepath.Join(t.TempDir(), "streams")
	t.Setenv("FAKECUDA_STREAMS", file)
	b.dev.NewUrgentQueue("comm").Close()
	b.dev.NewQueue("compute").Close()
	raw, err := os.ReadFile(file)
	if want := "priority -5\npriority 0\n"; err != nil || string(raw) != want {
		t.Errorf("streams have %q, %v; want %q", raw, err, want)
	}
}

// TestFakesRefuseMemory checks that memory can be freed once, and that copies to invalid addresses
// are refused.
func TestFakesRefuseMemory(t *testing.T) {
	fake.Only(t)
	g, _ := loaded(t)
	s, err := g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := g.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	host, c := make([]byte, 65), s.Commands()
	c.ToDevice(p, unsafe.Pointer(&host[0]), len(host))
	say(t, c.Run(), "CUDA_ERROR_INVALID_VALUE", "copy 65 bytes to the device")
	if err := g.Free(p); err != nil {
		t.Fatal(err)
	}
	say(t, g.Free(p), "CUDA_ERROR_INVALID_VALUE")
	c.Zero(p, 64)
	say(t, c.Run(), "CUDA_ERROR_INVALID_VALUE", "clear 64 bytes")
}

// TestFakesCopyLate checks that a copy to host memory that is not pinned is complete when the call
// returns; to pinned memory, it waits for its turn in the stream, in this order until the wait.
func TestFakesCopyLate(t *testing.T) {
	fake.Only(t)
	if env("FAKECUDA_MODE") == "" {
		fake.Again(t, "TestFakesCopyLate", "FAKECUDA_MODE=lazy:1")
		return
	}
	g, _ := loaded(t)
	s, err := g.NewStream(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 16
	p, err := g.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Free(p)
	pinned, err := g.AllocHost(n)
	if err != nil {
		t.Fatal(err)
	}
	defer g.FreeHost(pinned)
	zeros := make([]byte, n)
	late, early := unsafe.Slice((*byte)(pinned), n), bytes.Repeat([]byte{7}, n)
	copy(late, early)
	c := s.Commands()
	c.Zero(p, n)
	c.ToHost(pinned, p, n)
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(late, zeros) {
		t.Error("a copy to pinned memory is done before the host has waited")
	}
	c.ToHost(unsafe.Pointer(&early[0]), p, n)
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(early, zeros) || !bytes.Equal(late, zeros) {
		t.Errorf("a copy to memory that is not pinned gave %v, and behind the one to pinned memory %v", early, late)
	}
}

// base returns the family of fill.
func base() *kernel.Family {
	all := kernel.Families()
	return all[slices.IndexFunc(all, func(f *kernel.Family) bool { return f.Name == kernel.Base })]
}

// loaded returns a GPU with the kernels of base.
func loaded(t testing.TB) (*driver.GPU, *driver.Module) {
	t.Helper()
	g, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	m, err := g.Load(kernel.Base, base().PTX())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Unload() })
	return g, m
}

// named returns a kernel.
func named(name string) *kernel.Kernel {
	all := kernel.Table()
	return all[slices.IndexFunc(all, func(k *kernel.Kernel) bool { return k.Name == name })]
}
