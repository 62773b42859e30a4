package kernel

import (
	"unsafe"

	"zeroth/device"
)

// A tile that has to be rounded, or lies only partly within C, is first stored in a worker's
// memory.

// moveFunc copies rows by cols elements, 1 <= cols <= 32; ldd and lds are the row strides in
// elements.
type moveFunc func(dst, src unsafe.Pointer, ldd, lds, rows, cols int)

// moves contains the copies between float32 and F32, BF16 and F16.
type moves struct{ to, from [3]moveFunc }

// move copies floats.
func (s *ISA) move(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, rows, cols int) {
	if s.moves != nil {
		s.moves.to[device.F32](dst, src, ldd, lds, rows, cols)
		return
	}
	d := unsafe.Slice((*float32)(dst), (rows-1)*ldd+cols)
	f := unsafe.Slice((*float32)(src), (rows-1)*lds+cols)
	for i := range rows {
		copy(d[i*ldd:][:cols], f[i*lds:])
	}
}

// round stores floats in the rows of dst, which are ldd apart.
func (s *ISA) round(dst device.Buffer, ldd int, src unsafe.Pointer, lds, rows, cols int) {
	if t := dst.Type; s.moves != nil && t <= device.F16 {
		s.moves.to[t](dst.Ptr, src, ldd, lds, rows, cols)
		return
	}
	for i := range rows {
		Store(dst.Slice(i*ldd, i*ldd+cols), unsafe.Slice((*float32)(unsafe.Add(src, 4*i*lds)), cols))
	}
}

// widen loads floats from the rows of src, which are lds apart.
func (s *ISA) widen(dst unsafe.Pointer, ldd int, src device.Buffer, lds, rows, cols int) {
	if t := src.Type; s.moves != nil && t <= device.F16 {
		s.moves.from[t](dst, src.Ptr, ldd, lds, rows, cols)
		return
	}
	for i := range rows {
		Load(unsafe.Slice((*float32)(unsafe.Add(dst, 4*i*ldd)), cols), src.Slice(i*lds, i*lds+cols))
	}
}
