package vfs

import "hash/crc32"

// JoinCRC returns the CRC32C of a followed by b, given the CRC32C of each and the length of b:
// crc(a)·x^(8·len(b)) + crc(b) over GF(2), as in zlib's crc32_combine. It derives the checksum
// of a file from those of its blocks, which may be written in any order.
func JoinCRC(a, b uint32, lenB int64) uint32 {
	return mulPoly(powX(lenB), a) ^ b
}

// Polynomials are bit-reversed: bit 31 is x^0.
const polyOne = 1 << 31

// mulPoly returns a·b modulo the CRC polynomial.
func mulPoly(a, b uint32) uint32 {
	p := uint32(0)
	for m := uint32(polyOne); ; m >>= 1 {
		if a&m != 0 {
			p ^= b
			if a&(m-1) == 0 {
				return p
			}
		}
		if m == 0 {
			return p
		}
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
}

// squares[i] is x^(2^i).
var squares = func() (t [64]uint32) {
	t[0] = polyOne >> 1
	for i := 1; i < len(t); i++ {
		t[i] = mulPoly(t[i-1], t[i-1])
	}
	return t
}()

// powX returns x^(8n).
func powX(n int64) uint32 {
	p := uint32(polyOne)
	for i := 3; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			p = mulPoly(squares[i], p)
		}
	}
	return p
}
