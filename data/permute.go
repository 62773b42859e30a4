package data

import "math/bits"

// permutation is a bijection of [0, n): a Feistel network over the next power of four with
// cycle walking, which passes values outside [0, n) through the network again, fewer than
// three times on average. Its keys depend only on seed and epoch, so nothing is stored.
// (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.)
type permutation struct {
	n    uint64
	half uint // bits of each half
	keys [rounds]uint64
}

// rounds is the number of rounds. Four are already close to random on large domains, but the
// halves of a small one have few bits, and rounds are cheap.
const rounds = 8

// golden is 2^64 over the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

func newPermutation(seed, epoch, n uint64) permutation {
	p := permutation{n: n, half: (uint(bits.Len64(n-1)) + 1) / 2}
	key := mix(mix(seed+golden) + epoch*golden)
	for i := range p.keys {
		key += golden
		p.keys[i] = mix(key)
	}
	return p
}

// permuted returns the image of position i < n in an epoch.
func permuted(seed uint64, epoch, n, i int64) int64 {
	p := newPermutation(seed, uint64(epoch), uint64(n))
	return int64(p.at(uint64(i)))
}

// at returns the image of i < n.
func (p *permutation) at(i uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	for {
		left, right := i>>p.half, i&mask
		for _, key := range p.keys {
			left, right = right, left^mix(right+key)&mask
		}
		if i = left<<p.half | right; i < p.n {
			return i
		}
	}
}

// mix applies the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
