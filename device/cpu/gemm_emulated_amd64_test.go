package cpu

import (
	"math"
	"unsafe"
)

// emulatedBF16 is AMX with its tile instructions replaced by Go: it tests the
// packing and the edges on machines that have AVX-512 but no AMX.
func emulatedBF16() []*isa {
	if !hasAVX512() {
		return nil
	}
	e := amx
	e.name, e.tile, e.row = "amx emulated", []tileFunc{32: emulateAMX}, nil
	return []*isa{&e}
}

func emulateAMX(k int, a, b, base unsafe.Pointer, ldb int, c unsafe.Pointer, ldc, _ int) {
	as, bs := unsafe.Slice((*uint32)(a), k*32), unsafe.Slice((*uint32)(b), k*32)
	from := unsafe.Slice((*float32)(base), 31*ldb+32)
	to := unsafe.Slice((*float32)(c), 31*ldc+32)
	float := math.Float32frombits
	for i := range 32 {
		var row [32]float32
		copy(row[:], from[i*ldb:])
		for p := range k {
			x := as[p/16*512+i*16+p%16]
			lo, hi := float(x<<16), float(x&0xffff0000)
			for j, y := range bs[p*32:][:32] {
				row[j] += lo*float(y<<16) + hi*float(y&0xffff0000)
			}
		}
		copy(to[i*ldc:], row[:])
	}
}
