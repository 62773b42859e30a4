package cpu

import "golang.org/x/sys/cpu"

var castAVX2 = castISA{
	name:   "avx2",
	plain:  [castKinds]castFunc{bf16ToF32AVX2, f16ToF32AVX2, f32ToBF16AVX2, f32ToF16AVX2},
	stream: [castKinds]castFunc{bf16ToF32AVX2Stream, f16ToF32AVX2Stream, f32ToBF16AVX2Stream, f32ToF16AVX2Stream},
	copy:   copyStream,
}

var castAVX512 = castISA{
	name:   "avx512",
	plain:  [castKinds]castFunc{bf16ToF32AVX512, f16ToF32AVX512, f32ToBF16AVX512, f32ToF16AVX512},
	stream: [castKinds]castFunc{bf16ToF32AVX512Stream, f16ToF32AVX2Stream, f32ToBF16AVX512Stream, f32ToF16AVX2Stream},
	copy:   copyStream,
}

// nativeCasts: every processor with AVX2 also converts binary16 (F16C).
func nativeCasts() (found []*castISA) {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		found = append(found, &castAVX2)
		if hasAVX512() {
			found = append(found, &castAVX512)
		}
	}
	return found
}
