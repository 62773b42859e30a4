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

// Decode sets dst, a matrix of any float type without gaps, to the elements of a coded one; see
// device.Code.
func (q *Queue) Decode(dst device.Mat, codes device.Buffer, code device.Code) {
	n := dst.Buf.N
	kernel.MustFloat("decode", dst.Buf.Type)
	if n != dst.Rows*dst.Cols || codes.Type != device.I32 || codes.N != code.Words(dst.Rows, dst.Cols) {
		panic(fmt.Sprintf("cpu: %dx%d elements of %v in %d decoded from %d %v", dst.Rows, dst.Cols, code, n, codes.N, codes.Type))
	}
	t := q.issue("decode")
	t.M[0], t.B[1], t.Code = dst, codes, code
	q.kernel(t, kernel.RunDecode, (n+kernel.DecodeLen-1)/kernel.DecodeLen, kernel.PieceWork/kernel.DecodeLen)
}
