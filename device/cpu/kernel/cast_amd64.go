package kernel

import "golang.org/x/sys/cpu"

var castAVX2 = CastISA{
	Name:   "avx2",
	Plain:  [CastKinds]CastFunc{bf16ToF32AVX2, f16ToF32AVX2, f32ToBF16AVX2, f32ToF16AVX2},
	Stream: [CastKinds]CastFunc{bf16ToF32AVX2Stream, f16ToF32AVX2, f32ToBF16AVX2, f32ToF16AVX2},
	copy:   copyStream,
}

var castAVX512 = CastISA{
	Name:   "avx512",
	Plain:  [CastKinds]CastFunc{bf16ToF32AVX512, f16ToF32AVX512, f32ToBF16AVX512, f32ToF16AVX512},
	Stream: [CastKinds]CastFunc{bf16ToF32AVX512Stream, f16ToF32AVX512Stream, f32ToBF16AVX512Stream, f32ToF16AVX512Stream},
	copy:   copyStream,
}

// nativeCasts returns the instruction sets available: every processor with AVX2 also converts
// binary16 (F16C).
func nativeCasts() (found []*CastISA) {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		found = append(found, &castAVX2)
		if HasAVX512() {
			found = append(found, &castAVX512)
		}
	}
	return found
}
