package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Dropout sets y to the kept elements of x, scaled, plus add if that is not empty. y may be x or
// add. All consist of rows of d.Cols elements.
func (q *Queue) Dropout(y, x, add device.Buffer, d device.Dropout) {
	kernel.WantSame("dropout", y, x, x)
	if add.N > 0 {
		kernel.WantSame("dropout", y, add, add)
	}
	rows := d.Rows(y.N)
	t := q.issue("dropout")
	t.B[0], t.B[1], t.B[2], t.Drop = y, x, add, d
	q.kernel(t, kernel.RunDropout, rows, kernel.RowGrain(d.Cols))
}
