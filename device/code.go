package device

import (
	"fmt"
	"unsafe"
)

// Code is how the elements of a matrix that is never updated are stored: as floats, or in fewer
// bits. A coded matrix is a buffer of I32, the words described at each code, and kernels read its
// decoded elements. On a big-endian host, too, the lowest byte of a word comes first.
type Code uint8

const (
	Floats Code = iota
	NF4         // see codes4.go
	Int8        // see int8.go
)

// Codes contains the names of codes.
var Codes = [...]string{"full", "nf4", "int8"}

func (c Code) String() string { return Codes[c] }

// Words returns the number of words of a coded matrix.
func (c Code) Words(rows, cols int) int {
	if c == Int8 {
		return rows * int8Words(cols)
	}
	return nf4Length(rows * cols)
}

// Head returns the number of words before those of the first piece.
func (c Code) Head() int {
	if c == NF4 {
		return 1
	}
	return 0
}

// Piece returns the number of consecutive elements of a matrix that Encode codes at once. A matrix is
// a sequence of pieces, of which only the last may be shorter.
func (c Code) Piece(cols int) int {
	if c == Int8 {
		return cols
	}
	return nf4Span
}

// Span returns the range of words of the pieces with elements from lo up to hi; lo is a multiple of
// Piece.
func (c Code) Span(lo, hi, cols int) (first, end int) {
	if c == Int8 {
		return lo / cols * int8Words(cols), (hi + cols - 1) / cols * int8Words(cols)
	}
	return 1 + lo/nf4Span*nf4Words, nf4Length(hi)
}

// Encode codes the float32 elements of one piece to its words, which must be zero, and returns the
// magnitudes for EncodeMagnitudes. It may round x in place. If an element is not finite or, for Int8,
// larger than 65504, a magnitude is not finite and the codes are meaningless.
func (c Code) Encode(words []uint32, x []float32) (most []float32) {
	if c == Int8 {
		return encodeInt8(words, x)
	}
	return encodeNF4(words, x)
}

// EncodeMagnitudes completes the words of a matrix with the magnitudes of all its pieces, in order.
func (c Code) EncodeMagnitudes(words []uint32, most []float32) {
	if c == NF4 {
		encodeMagnitudes(words, most)
	}
}

// Decode sets dst, of any float type, to the elements from lo on of a matrix with cols columns. For NF4,
// lo is a multiple of 64. For Int8, words may begin at any row, from which lo counts.
func (c Code) Decode(dst Buffer, words []uint32, lo, cols int) {
	if c == Int8 {
		decodeInt8(dst, words, lo, cols)
	} else {
		decodeNF4(dst, words, lo)
	}
}

// narrowTo rounds x to a type of 2 bytes.
func narrowTo(dst []uint16, x []float32, t DType) {
	round := RoundBF16
	if t == F16 {
		round = RoundF16
	}
	for i, v := range x {
		dst[i] = round(v)
	}
}

// Words views the words of a coded matrix in host memory.
func (b Buffer) Words() []uint32 {
	if b.Type != I32 && b.Type != F32 {
		panic(fmt.Sprintf("device: a %v buffer viewed as words", b.Type))
	}
	b.mustHost()
	return unsafe.Slice((*uint32)(b.Ptr), b.N)
}
