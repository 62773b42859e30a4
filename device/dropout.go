package device

import (
	"fmt"
	"math"
)

// Dropout describes which elements of a matrix training sets to 0 at one place of a network
// (Srivastava et al., JMLR 15, 2014): each with the probability Drop/65536. Kept elements are
// multiplied by Scale, to preserve the mean of sums.
//
// The mask depends only on Seed, Site, and the numbers of the element's row and column, counted
// from Row and First: there is
// no state, and recomputing rows, here or elsewhere, drops the same elements. Columns 8k to 8k+7
// correspond to the eight halves, lower ones first, of the four words
//
//	Philox({k, Site, row, row >> 32}, Key())
//
// and are kept if their half is at least Drop.
type Dropout struct {
	Seed uint64
	Site uint32 // number of the dropout in the network
	Drop uint32 // in (0, 65536)
	Row  uint64 // number of the first row
	Cols int    // elements per row

	First int // number of the first column, a multiple of 8
}

// DropOf returns the Drop of a probability, rounded.
func DropOf(p float64) uint32 { return uint32(math.RoundToEven(p * 65536)) }

// Droppable reports whether a probability is valid: 0, or rounded to a valid Drop.
func Droppable(p float64) bool { return p == 0 || p > 0 && p < 1 && DropOf(p) > 0 && DropOf(p) < 65536 }

// Scale returns the factor of kept elements.
func (d Dropout) Scale() float32 { return float32(65536 / (65536 - float64(d.Drop))) }

// Key returns the key for Philox. It differs from the seed, which generates initial parameters.
func (d Dropout) Key() [2]uint32 {
	const drop, out = 0x64726f70, 0x6f757400
	return [2]uint32{uint32(d.Seed) ^ drop, uint32(d.Seed>>32) ^ out}
}

// Rows returns the number of rows in n elements.
func (d Dropout) Rows(n int) int {
	if d.Cols < 1 || n%d.Cols != 0 || d.First < 0 || d.First%8 != 0 || d.Drop == 0 || d.Drop > 65535 {
		panic(fmt.Sprintf("device: dropout of %d/65536 in rows of %d of %d elements, from column %d on", d.Drop, d.Cols, n, d.First))
	}
	return n / d.Cols
}
