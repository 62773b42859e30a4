//go:build cuda

package cuda_test

import (
	"bytes"
	"testing"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

func TestAlloc(t *testing.T) {
	b := open(t)
	work := b.dev.Usage().Live
	x, y := b.alloc(device.F32, 1000), b.alloc(device.BF16, 7)
	for _, d := range []device.Buffer{x, y} {
		if got := b.fetch(d).Raw(); !bytes.Equal(got, make([]byte, d.Bytes())) {
			t.Errorf("%d %v are not zeros", d.N, d.Type)
		}
	}
	if got, want := b.dev.Usage().Live.Total()-work.Total(), int64(4000+14); got != want {
		t.Errorf("%d bytes in use, want %d", got, want)
	}
	b.dev.Free(x)
	b.dev.Free(y)
	if got := b.dev.Usage().Live; got != work {
		t.Errorf("after Free %v are in use, want %v", got, work)
	}
}

func TestReserve(t *testing.T) {
	fake.Need(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var plan device.Bytes
	plan[device.Grads] = 4 * (100 + 3)
	if err := d.ReservePlan(plan, 2); err != nil {
		t.Fatal(err)
	}
	x, err := d.Alloc(device.F32, 100, device.Grads)
	if err != nil {
		t.Fatal(err)
	}
	y, err := d.Alloc(device.F32, 3, device.Grads)
	if err != nil {
		t.Fatal(err)
	}
	if uintptr(y.Ptr)%256 != 0 || uintptr(y.Ptr)-uintptr(x.Ptr) != 512 {
		t.Errorf("buffers at %p and %p: want one reservation and multiples of 256", x.Ptr, y.Ptr)
	}
	_, err = d.Alloc(device.F32, 1000, device.Grads)
	say(t, err, "grads: the plan has")
	if _, err := d.Alloc(device.F32, 1000, device.Params); err != nil {
		t.Errorf("what is not in the plan: %v", err)
	}
}

func TestBudget(t *testing.T) {
	fake.Need(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Budget(1000)
	if _, err := d.Alloc(device.F32, 250, device.Params); err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(device.F32, 1, device.Params)
	say(t, err, "budget of 1000 bytes", "params")
}

func TestOutOfMemory(t *testing.T) {
	fake.Only(t)
	b := open(t)
	_, err := b.dev.Alloc(device.F32, 1<<32, device.Params)
	say(t, err, "params", "CUDA_ERROR_OUT_OF_MEMORY", "GPU 0 (Emulated GPU)")
	if x := b.alloc(device.F32, 8); x.Ptr == nil { // the context has not failed
		t.Error("no memory any more")
	}
}

func TestPinnedMemory(t *testing.T) {
	fake.Need(t)
	p, err := cuda.OpenPinned(0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	mem, err := p.Take(5000)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem, make([]byte, 5000)) {
		t.Error("it is not cleared")
	}
	if at := uintptr(unsafe.Pointer(&mem[0])); at%4096 != 0 {
		t.Errorf("it is at %#x; disks are read into it directly", at)
	}
	p.Give(mem)
}

func TestOldGPUIsRefused(t *testing.T) {
	fake.Only(t)
	fake.Again(t, "TestOpenErrors", "FAKECUDA_CAPABILITY=75", "WANT=GPU 0 (Emulated GPU) has compute capability 7.5, but the kernels need 8.0")
}

// TestOldDriverIsRefused checks that a driver refuses PTX that is newer, and cubins of a newer CUDA.
func TestOldDriverIsRefused(t *testing.T) {
	fake.Only(t)
	fake.Again(t, "TestOpenErrors", "FAKECUDA_DRIVER=12030", "FAKECUDA_CAPABILITY=100", "WANT=load the kernels base on GPU 0 (Emulated GPU): CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
	fake.Again(t, "TestOpenErrors", "FAKECUDA_DRIVER=11080", "WANT=load the cubin of the kernels base on GPU 0 (Emulated GPU): CUDA_ERROR_INVALID_IMAGE")
}

func TestWithoutDriver(t *testing.T) {
	fake.Only(t)
	fake.Again(t, "TestOpenErrors", "ZEROTH_CUDA_PATH=/nowhere/libcuda.so.1", "WANT=/nowhere/libcuda.so.1")
	fake.Again(t, "TestOpenErrors", "FAKECUDA_DEVICES=0", "WANT=CUDA_VISIBLE_DEVICES")
}

func TestOpenErrors(t *testing.T) {
	want := env("WANT")
	if want == "" {
		t.Skip("run by others")
	}
	_, err := cuda.Open(0)
	say(t, err, want)
}
