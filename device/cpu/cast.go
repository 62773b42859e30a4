package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Cast sets dst[i] = src[i] between any float types, rounded once to nearest even. NaN remains NaN,
// and values beyond the range of dst become infinite.
func (q *Queue) Cast(dst, src device.Buffer) {
	if dst.N != src.N {
		panic(fmt.Sprintf("cpu: cast of %d elements to %d", src.N, dst.N))
	}
	kernel.MustFloat("cast", dst.Type)
	kernel.MustFloat("cast", src.Type)
	t := q.issue("cast")
	t.B[0], t.B[1] = dst, src
	q.kernel(t, kernel.RunCast, dst.N, kernel.CastGrain)
}

// Decode sets dst, of any float type, to the elements of a coded matrix; see device.Code.
func (q *Queue) Decode(dst, codes device.Buffer, code device.Code) {
	kernel.MustFloat("decode", dst.Type)
	if codes.Type != device.I32 || codes.N != code.Words(dst.N) {
		panic(fmt.Sprintf("cpu: %d elements of %v decoded from %d %v", dst.N, code, codes.N, codes.Type))
	}
	t := q.issue("decode")
	t.B[0], t.B[1] = dst, codes
	q.kernel(t, kernel.RunDecode, (dst.N+kernel.DecodeLen-1)/kernel.DecodeLen, kernel.PieceWork/kernel.DecodeLen)
}
