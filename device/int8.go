package device

import "math"

// Int8 stores weights as LLM.int8 of bitsandbytes does (Dettmers et al., arXiv 2208.07339): rounded to
// float16, then coded row by row in 8 bits, signed, relative to the row's largest magnitude. The
// words are, for each row, the largest magnitude (float32) and the codes, four a word, as many words as
// the row needs. LLM.int8 multiplies codes; here matrices are decoded for use, and activations
// are not rounded.

// int8Words returns the number of words of a row.
func int8Words(cols int) int { return 1 + (cols+3)/4 }

// encodeInt8 codes one row, which it rounds in place, and returns its magnitude.
func encodeInt8(words []uint32, x []float32) []float32 {
	most := float32(0)
	for i, v := range x {
		x[i] = WideF16(RoundF16(v))
		if m := float32(math.Abs(float64(x[i]))); m > most || m != m { // NaN stays
			most = m
		}
	}
	words[0] = math.Float32bits(most)
	if most == 0 || !(most <= 65504) {
		return []float32{most}
	}
	inverse := float32(1/most) * 127 // as PyTorch computes 127 / most
	for i, v := range x {
		code := math.RoundToEven(float64(v * inverse))
		words[1+i/4] |= uint32(uint8(int8(code))) << (8 * (i % 4))
	}
	return []float32{most}
}

// decodeInt8 sets dst to elements from lo on.
func decodeInt8(dst Buffer, words []uint32, lo, cols int) {
	var value [256]float32
	var narrow [256]uint16
	for at := 0; at < dst.N; {
		row, col := (lo+at)/cols, (lo+at)%cols
		words := words[row*int8Words(cols):]
		most := math.Float32frombits(words[0])
		for i := range value {
			value[i] = float32(float32(int8(i))*most) * (1.0 / 127)
		}
		to := dst.Slice(at, min(at+cols-col, dst.N))
		if dst.Type == F32 {
			decodeBytes(to.F32(), words[1:], col, &value)
		} else {
			narrowTo(narrow[:], value[:], dst.Type)
			decodeBytes(to.U16(), words[1:], col, &narrow)
		}
		at += to.N
	}
}

// decodeBytes sets dst to the values of the codes of a row from col on.
func decodeBytes[T any](dst []T, words []uint32, col int, value *[256]T) {
	for ; len(dst) > 0 && col%4 != 0; col++ {
		dst[0] = value[words[col/4]>>(8*(col%4))&255]
		dst = dst[1:]
	}
	words = words[col/4:]
	for len(dst) >= 4 {
		w, to := words[0], dst[:4]
		to[0], to[1], to[2], to[3] = value[w&255], value[w>>8&255], value[w>>16&255], value[w>>24]
		dst, words = dst[4:], words[1:]
	}
	for i := range dst {
		dst[i] = value[words[0]>>(8*i)&255]
	}
}
