package cpu

import "unsafe"

// castNEON has no stores past the caches: NEON's are only a hint.
var castNEON = castISA{
	name:   "neon",
	plain:  [castKinds]castFunc{bf16ToF32NEON, f16ToF32NEON, f32ToBF16NEON, f32ToF16NEON},
	stream: [castKinds]castFunc{bf16ToF32NEON, f16ToF32NEON, f32ToBF16NEON, f32ToF16NEON},
	copy: func(dst, src unsafe.Pointer, n int) {
		copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	},
}

func nativeCasts() []*castISA { return []*castISA{&castNEON} }
