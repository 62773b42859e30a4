package device

import "math/bits"

// Philox computes Philox4x32-10, a counter-based random generator: Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
func Philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	a, b, c, d, k, l := ctr[0], ctr[1], ctr[2], ctr[3], key[0], key[1] // in registers, unlike arrays
	for range 10 {
		hi0, lo0 := bits.Mul32(PhiloxM0, a)
		hi1, lo1 := bits.Mul32(PhiloxM1, c)
		a, b, c, d = hi1^b^k, lo1, hi0^d^l, lo0
		k, l = k+PhiloxW0, l+PhiloxW1
	}
	return [4]uint32{a, b, c, d}
}

// Philox's multipliers, and the increments of its key per round.
const (
	PhiloxM0, PhiloxM1 = 0xD2511F53, 0xCD9E8D57
	PhiloxW0, PhiloxW1 = 0x9E3779B9, 0xBB67AE85
)
