package device_test

import (
	"fmt"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"zeroth/device"
)

// base returns memory for an arena, with a distinct type and use.
func base(bytes int) device.Buffer {
	b := device.OfI32(make([]int32, bytes/4))
	b.Use = device.Activations
	return b
}

// TestArenaBuffers checks that allocations in any order do not overlap, are aligned to 64
// bytes from the arena's start, and keep their contents.
func TestArenaBuffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := base(1 << 12)
		a := device.NewArena(mem)
		type held struct {
			mark int // before the allocation
			b    device.Buffer
			mine byte
		}
		var all []held
		peak := 0
		for i := range rapid.IntRange(1, 40).Draw(t, "operations") {
			if n := len(all); n > 0 && rapid.IntRange(0, 2).Draw(t, "release") == 0 {
				at := rapid.IntRange(0, n-1).Draw(t, "to")
				a.Release(all[at].mark)
				all = all[:at]
				continue
			}
			dt := rapid.SampledFrom([]device.DType{device.F32, device.BF16, device.F16, device.I32, device.F64}).Draw(t, "type")
			n, mark := rapid.IntRange(0, 12).Draw(t, "elements"), a.Mark()
			h := held{mark, a.Take(dt, n), byte(i + 1)}
			if h.b.Type != dt || h.b.N != n || !h.b.Host || h.b.Use != device.Activations {
				t.Fatalf("took %d %v, got %+v", n, dt, h.b)
			}
			if n > 0 {
				if at := uintptr(h.b.Ptr) - uintptr(mem.Ptr); at != uintptr(mark) || at%64 != 0 {
					t.Fatalf("memory at byte %d, want %d", at, mark)
				}
			}
			if up := a.Mark() - mark; up < h.b.Bytes() || up >= h.b.Bytes()+64 || up%64 != 0 {
				t.Fatalf("%d bytes raise the arena by %d", h.b.Bytes(), up)
			}
			for j := range h.b.Raw() {
				h.b.Raw()[j] = h.mine
			}
			all, peak = append(all, h), max(peak, a.Mark())
		}
		for _, h := range all {
			for _, x := range h.b.Raw() {
				if x != h.mine {
					t.Fatalf("a byte of %+v is %d, want %d", h.b, x, h.mine)
				}
			}
		}
		if a.Peak() != peak {
			t.Fatalf("peak %d, want %d", a.Peak(), peak)
		}
	})
}

// TestArenaWithoutMemory checks that an arena on a device that only counts has heights but no
// memory.
func TestArenaWithoutMemory(t *testing.T) {
	a := device.NewArena(device.Buffer{Type: device.F32, N: 32})
	b, c := a.Take(device.BF16, 3), a.Take(device.F32, 1)
	if b.Ptr != nil || c.Ptr != nil || b.Host || a.Mark() != 128 {
		t.Errorf("took %+v and %+v, height %d", b, c, a.Mark())
	}
}

// panics returns the message with which f panics.
func panics(f func()) (said string) {
	defer func() { said = fmt.Sprint(recover()) }()
	f()
	return ""
}

func TestArenaRefuses(t *testing.T) {
	a := device.NewArena(base(128))
	a.Take(device.F32, 16)
	a.Take(device.F32, 16)
	a.Take(device.F32, 0) // empty allocations need no space
	for want, f := range map[string]func(){
		"device: arena of 128 bytes needs 192":       func() { a.Take(device.BF16, 1) },
		"device: arena released to 129 of 128 bytes": func() { a.Release(129) },
		"device: arena released to -1 of 128 bytes":  func() { a.Release(-1) },
	} {
		if got := panics(f); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSlice checks that a slice of a buffer has those elements of its memory. An empty one points
// into the memory, too, even at the end, where other memory may begin.
func TestSlice(t *testing.T) {
	x := []float64{0, 1, 2, 3, 4, 5, 6, 7}
	b := device.OfF64(x)
	for lo := range len(x) + 1 {
		for hi := lo; hi <= len(x); hi++ {
			s := b.Slice(lo, hi)
			if s.N != hi-lo || s.Type != device.F64 || !s.Host || s.Bytes() != 8*(hi-lo) {
				t.Fatalf("slice [%d:%d) is %+v", lo, hi, s)
			}
			for i, got := range s.F64() {
				if got != x[lo+i] {
					t.Fatalf("element %d of [%d:%d) is %g", i, lo, hi, got)
				}
			}
			if at := uintptr(s.Ptr) - uintptr(unsafe.Pointer(&x[0])); at >= 64 {
				t.Fatalf("slice [%d:%d) points to byte %d of 64", lo, hi, at)
			}
		}
	}
	if got, want := panics(func() { b.Slice(3, 9) }), "device: slice [3:9) of 8 elements"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s := (device.Buffer{Type: device.BF16, N: 4}).Slice(1, 3); s.N != 2 || s.Ptr != nil {
		t.Errorf("slice of a buffer without memory is %+v", s)
	}
}

// TestHostViews checks that a buffer can be viewed only with its type, and only by the host.
func TestHostViews(t *testing.T) {
	f32, f64, i32, u16 := make([]float32, 3), make([]float64, 3), make([]int32, 3), make([]uint16, 3)
	device.OfF32(f32).F32()[1] = 2
	device.OfF64(f64).F64()[1] = 2
	device.OfI32(i32).I32()[1] = 2
	device.OfU16(device.BF16, u16).U16()[1] = 2
	device.OfU16(device.F16, u16).U16()[2] = 3
	if f32[1] != 2 || f64[1] != 2 || i32[1] != 2 || u16[1] != 2 || u16[2] != 3 {
		t.Errorf("%v %v %v %v after writing through views", f32, f64, i32, u16)
	}
	b := device.OfF32(f32)
	far := b
	far.Host = false
	for want, f := range map[string]func(){
		"device: a fp32 buffer viewed as int32":     func() { b.I32() },
		"device: a fp32 buffer viewed as bf16":      func() { b.U16() },
		"device: a fp32 buffer viewed as fp64":      func() { b.F64() },
		"device: the host looks into device memory": func() { far.F32() },
		"device: int32 is not a 16-bit type":        func() { device.OfU16(device.I32, u16) },
	} {
		if got := panics(f); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestUsagePeak checks that the peak contains the categories when the total was highest.
func TestUsagePeak(t *testing.T) {
	var u device.Usage
	for _, step := range []struct {
		use device.Use
		n   int64
	}{{device.Params, 10}, {device.Grads, 5}, {device.Params, -8}, {device.States, 7}, {device.Grads, 2}, {device.Params, -2}} {
		u.Add(step.use, step.n)
	}
	wantLive, wantPeak := device.Bytes{device.Grads: 7, device.States: 7}, device.Bytes{device.Params: 2, device.Grads: 7, device.States: 7}
	if u.Live != wantLive || u.Peak != wantPeak || u.Peak.Total() != 16 {
		t.Errorf("live %v, peak %v; want %v, %v", u.Live, u.Peak, wantLive, wantPeak)
	}
}

// TestNames checks that every type and category has a distinct name.
func TestNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for use := range device.Uses {
		if seen[use.String()] {
			t.Errorf("use %d is called %q", use, use)
		}
		seen[use.String()] = true
	}
	for dt, size := range map[device.DType]int{device.F32: 4, device.BF16: 2, device.F16: 2, device.I32: 4, device.F64: 8, device.I64: 8} {
		if seen[dt.String()] || dt.Size() != size {
			t.Errorf("type %d is called %q, of %d bytes", dt, dt, dt.Size())
		}
		seen[dt.String()] = true
	}
}
