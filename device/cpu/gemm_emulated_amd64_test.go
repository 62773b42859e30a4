package cpu

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// emulatedBF16 is AMX with its tile instructions replaced by Go: it tests the
// packing and the edges on machines that have AVX-512 but no AMX.
func emulatedBF16() []*isa {
	if !hasAVX512() {
		return nil
	}
	e := amx
	e.name, e.kc = "amx emulated", kcF32 // k is short, for this is slow
	e.row, e.narrow = []rowFunc{device.F32: emulateRowF32, device.BF16: emulateRowBF16}, emulateNarrow
	return []*isa{&e}
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

// emulatedStart is what the sums of tile t begin with.
func emulatedStart(bias unsafe.Pointer, t, add int) unsafe.Pointer {
	if add&addNone != 0 {
		return unsafe.Pointer(&[32]float32{})
	}
	return unsafe.Add(bias, 128*t)
}

func emulateRowF32(r *tileRow) {
	for t := range r.n {
		to := unsafe.Add(r.c, 128*t)
		base, ldb := to, r.ld
		if r.add&addOld == 0 {
			base, ldb = emulatedStart(r.bias, t, r.add), 0
		}
		emulateAMX(r.k, r.a, r.row, r.step, unsafe.Add(r.b, t*r.panel), base, ldb, to, r.ld)
	}
}

func emulateRowBF16(r *tileRow) {
	tile := floatsAt(r.stage, 32*32)
	for t := range r.n {
		emulateAMX(r.k, r.a, r.row, r.step, unsafe.Add(r.b, t*r.panel), emulatedStart(r.bias, t, r.add), 0, r.stage, 32)
		for i := range 32 {
			out := rawBuffer(device.BF16, unsafe.Add(r.c, 2*i*r.ld+64*t), 32)
			if r.add&addOld != 0 {
				var old [32]float32
				load(old[:], out)
				for j, x := range old {
					tile[32*i+j] += x
				}
			}
			store(out, tile[32*i:][:32])
		}
	}
}

func emulateNarrow(dst, src unsafe.Pointer, ld, k int) {
	for p := 0; p < k; p += 32 {
		for i := range 32 {
			store(rawBuffer(device.BF16, unsafe.Add(dst, 64*(p+i)), 32), floatsAt(unsafe.Add(src, 4*(i*ld+p)), 32))
		}
	}
}
