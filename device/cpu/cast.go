package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Cast sets dst[i] = src[i], any float type to any, rounded once to nearest
// even. NaN stays NaN, and what exceeds the range of dst becomes infinite.
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
