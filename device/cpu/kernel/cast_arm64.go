package kernel

import "unsafe"

// castNEON has no stores that bypass the caches: in NEON they are only a hint.
var castNEON = CastISA{
	Name:   "neon",
	Plain:  [CastKinds]CastFunc{bf16ToF32NEON, f16ToF32NEON, f32ToBF16NEON, f32ToF16NEON},
	Stream: [CastKinds]CastFunc{bf16ToF32NEON, f16ToF32NEON, f32ToBF16NEON, f32ToF16NEON},
	copy: func(dst, src unsafe.Pointer, n int) {
		copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	},
}

func nativeCasts() []*CastISA { return []*CastISA{&castNEON} }
