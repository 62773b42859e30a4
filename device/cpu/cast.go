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
