package cpu

import (
	"math"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// emulatedBF16 is AMX with its tile instructions replaced by Go, to test packing and edges on
// machines with AVX-512 but without AMX. With the race detector it takes minutes.
func emulatedBF16() []*kernel.ISA {
	if !kernel.HasAVX512() || !nightly.All() {
		return nil
	}
	e := kernel.AMX
	e.Name, e.KC = "amx emulated", kernel.KcF32 // short k, since this is slow
	e.Row, e.Narrow = []kernel.RowFunc{device.F32: emulateRowF32, device.BF16: emulateRowBF16}, emulateNarrow
	return []*kernel.ISA{&e}
}

func emulateAMX(k int, a unsafe.Pointer, rowStep, step int, b, base unsafe.Pointer, ldb int, c unsafe.Pointer, ldc int) {
	bs := unsafe.Slice((*uint32)(b), k*32)
	from := unsafe.Slice((*float32)(base), 31*ldb+32)
	to := unsafe.Slice((*float32)(c), 31*ldc+32)
	float := math.Float32frombits
	for i := range 32 {
		var row [32]float32
		copy(row[:], from[i*ldb:])
		for p := range k {
			x := *(*uint32)(unsafe.Add(a, i*rowStep+p/16*step+p%16*4))
			lo, hi := float(x<<16), float(x&0xffff0000)
			for j, y := range bs[p*32:][:32] {
				row[j] += lo*float(y<<16) + hi*float(y&0xffff0000)
			}
		}
		copy(to[i*ldc:], row[:])
	}
}

// emulatedStart returns the initial sums of tile t.
func emulatedStart(bias unsafe.Pointer, t, add int) unsafe.Pointer {
	if add&kernel.AddNone != 0 {
		return unsafe.Pointer(&[32]float32{})
	}
	return unsafe.Add(bias, 128*t)
}

func emulateRowF32(r *kernel.TileRow) {
	for t := range r.N {
		to := unsafe.Add(r.C, 128*t)
		base, ldb := to, r.Ld
		if r.Add&kernel.AddOld == 0 {
			base, ldb = emulatedStart(r.Bias, t, r.Add), 0
		}
		emulateAMX(r.K, r.A, r.Row, r.Step, unsafe.Add(r.B, t*r.Panel), base, ldb, to, r.Ld)
	}
}

func emulateRowBF16(r *kernel.TileRow) {
	tile := kernel.FloatsAt(r.Stage, 32*32)
	for t := range r.N {
		emulateAMX(r.K, r.A, r.Row, r.Step, unsafe.Add(r.B, t*r.Panel), emulatedStart(r.Bias, t, r.Add), 0, r.Stage, 32)
		for i := range 32 {
			out := kernel.RawBuffer(device.BF16, unsafe.Add(r.C, 2*i*r.Ld+64*t), 32)
			if r.Add&kernel.AddOld != 0 {
				var old [32]float32
				kernel.Load(old[:], out)
				for j, x := range old {
					tile[32*i+j] += x
				}
			}
			kernel.Store(out, tile[32*i:][:32])
		}
	}
}

func emulateNarrow(dst, src unsafe.Pointer, ld, k int) {
	for p := 0; p < k; p += 32 {
		for i := range 32 {
			kernel.Store(kernel.RawBuffer(device.BF16, unsafe.Add(dst, 64*(p+i)), 32), kernel.FloatsAt(unsafe.Add(src, 4*(i*ld+p)), 32))
		}
	}
}
