package device

import "math/bits"

// Philox computes Philox4x32-10, a counter-based random generator: Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
func Philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(PhiloxM0, ctr[0])
		hi1, lo1 := bits.Mul32(PhiloxM1, ctr[2])
		ctr = [4]uint32{hi1 ^ ctr[1] ^ key[0], lo1, hi0 ^ ctr[3] ^ key[1], lo0}
		key[0] += PhiloxW0
		key[1] += PhiloxW1
	}
	return ctr
}

// Philox's multipliers, and the increments of its key per round.
const (
	PhiloxM0, PhiloxM1 = 0xD2511F53, 0xCD9E8D57
	PhiloxW0, PhiloxW1 = 0x9E3779B9, 0xBB67AE85
)
