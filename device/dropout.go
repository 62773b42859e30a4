package device

import (
	"fmt"
	"math"
)

// Dropout is which elements of the rows of a matrix training sets to 0, at one place
// of a network (Srivastava et al., JMLR 15, 2014): each with the probability
// Drop/65536. Those kept are multiplied by Scale, so that sums keep their mean.
//
// Whether an element is kept is a function of Seed, Place, the number of its row and
// its column, and of nothing else: no state is held, and who computes the same rows
// again, or elsewhere, drops the same. Columns 8k to 8k+7 have the eight halves,
// lower ones first, of the four words
//
//	Philox({k, Place, row, row >> 32}, Key())
//
// and are kept where their half is at least Drop.
type Dropout struct {
	Seed  uint64
	Place uint32 // in the network
	Drop  uint32 // in (0, 65536)
	Row   uint64 // number of the first row
	Cols  int    // elements of a row
}

// DropOf is the Drop of a probability, rounded.
func DropOf(p float64) uint32 { return uint32(math.RoundToEven(p * 65536)) }

// Droppable says whether elements can be dropped with a probability: it is 0, or
// rounds to a Drop.
func Droppable(p float64) bool { return p == 0 || p > 0 && p < 1 && DropOf(p) > 0 && DropOf(p) < 65536 }

// Scale is what a kept element is multiplied by.
func (d Dropout) Scale() float32 { return float32(65536 / (65536 - float64(d.Drop))) }

// Key is that of Philox. It is not the seed itself, from which initial parameters are.
func (d Dropout) Key() [2]uint32 {
	const drop, out = 0x64726f70, 0x6f757400
	return [2]uint32{uint32(d.Seed) ^ drop, uint32(d.Seed>>32) ^ out}
}

// Rows is the number of rows that n elements are.
func (d Dropout) Rows(n int) int {
	if d.Cols < 1 || n%d.Cols != 0 || d.Drop == 0 || d.Drop > 65535 {
		panic(fmt.Sprintf("device: dropout of %d/65536 in rows of %d of %d elements", d.Drop, d.Cols, n))
	}
	return n / d.Cols
}
