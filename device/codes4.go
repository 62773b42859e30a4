package device

import (
	"math"
	"math/bits"
	"slices"
	"sync"
)

// NF4 is the code of bitsandbytes (Dettmers et al., arXiv 2305.14314), with double quantization. Elements
// are coded in 4 bits, in blocks of 64 along the rows, each relative to the block's largest magnitude.
// These magnitudes, minus their mean, are coded in 8 bits, in groups of 256, each relative to the
// group's largest difference. The words are
//
//	the mean (float32), then for each group
//	the largest difference (float32); 64 words with a code of 8 bits per block; the codes of the
//	elements, two a byte with the first in the upper 4 bits, as many words as the group needs
//
// The mean is a sum in float32, whose order in PyTorch depends on the device and, of 32768 magnitudes or
// more, on the number of threads. Here it is that of one thread with AVX2; see mean.
const (
	nf4Block = 64  // elements
	nf4Group = 256 // blocks
	nf4Head  = 1 + nf4Group/4
	nf4Span  = nf4Block * nf4Group // elements of a group
	nf4Words = nf4Head + nf4Span/8
)

// nf4Length returns the number of words of n elements.
func nf4Length(n int) int {
	words, rest := 1+n/nf4Span*nf4Words, n%nf4Span
	if rest > 0 {
		words += nf4Head + (rest+7)/8
	}
	return words
}

// nf4 contains the values of codes.
var nf4 = [16]float32{-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
	0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1}

// NF4Values returns the values of the codes of elements, and those of magnitudes: the dynamic map of
// functional.create_dynamic_map, whose numbers torch.linspace computes with fused operations.
var NF4Values = sync.OnceValues(func() (elements [16]float32, magnitudes [256]float32) {
	all := []float32{0, 1}
	for decade := range 7 {
		n := 1 << decade
		from, step := float32(0.1), float32(1-float32(0.1))/float32(n)
		bound := func(k int) float32 {
			if k < (n+1)/2 {
				return float32(float64(from) + float64(step)*float64(k))
			}
			return float32(1 - float64(step)*float64(n-k))
		}
		for k := range n {
			middle := float32(float32(bound(k)+bound(k+1)) / 2)
			v := float32(middle * float32(math.Pow(10, float64(decade-6))))
			all = append(all, v, -v)
		}
	}
	slices.Sort(all)
	return nf4, [256]float32(all)
})

// nf4Limits contains the largest number with each code but the last.
var nf4Limits = func() (limits [15]float32) {
	for i := range limits {
		limits[i] = float32(nf4[i]+nf4[i+1]) / 2
	}
	return limits
}()

// encodeNF4 codes the elements of one group, without its magnitudes, which it returns.
func encodeNF4(words []uint32, x []float32) (most []float32) {
	for at := 0; at < len(x); at += nf4Block {
		block, codes := x[at:min(at+nf4Block, len(x))], words[nf4Head+at/8:]
		var magnitude uint32 // as bits, whose order is that of positive numbers
		for _, v := range block {
			magnitude = max(magnitude, math.Float32bits(v)&^(1<<31))
		}
		m := math.Float32frombits(magnitude)
		if len(block) == nf4Block {
			encodeBlock((*[nf4Block / 8]uint32)(codes), (*[nf4Block]float32)(block), 1/max(m, 1e-38))
		} else {
			m = max(m, 1e-38)
			for i, v := range block {
				codes[i/8] |= nf4Code(v/m) << (8*(i/2%4) + 4*(1-i%2))
			}
		}
		most = append(most, m)
	}
	return most
}

func encodeBlock(codes *[nf4Block / 8]uint32, x *[nf4Block]float32, inverse float32) {
	for i := range codes {
		v := (*[8]float32)(x[8*i:])
		codes[i] = nf4Code(v[0]*inverse)<<4 | nf4Code(v[1]*inverse) | nf4Code(v[2]*inverse)<<12 | nf4Code(v[3]*inverse)<<8 |
			nf4Code(v[4]*inverse)<<20 | nf4Code(v[5]*inverse)<<16 | nf4Code(v[6]*inverse)<<28 | nf4Code(v[7]*inverse)<<24
	}
}

// nf4Code returns the number of limits below v.
func nf4Code(v float32) uint32 {
	c := &nf4Cells[min(cellOf(v), uint(len(nf4Cells)-1))]
	if v > c.limit {
		return c.below + 1
	}
	return c.below
}

// nf4Cells divides the numbers from -1 to 1 into cells with at most one limit each. Since cellOf never
// falls, all numbers of a cell are above the limits of earlier cells.
var nf4Cells = func() (cells [1026]struct {
	below uint32 // limits in earlier cells
	limit float32
}) {
	for i := range cells {
		cells[i].limit = math.MaxFloat32
		for _, l := range nf4Limits {
			if at := cellOf(l); at < uint(i) {
				cells[i].below++
			} else if at == uint(i) {
				cells[i].limit = l
			}
		}
	}
	return cells
}()

// cellOf returns the cell of a number, and a large one for a number that is not in [-1, 1].
func cellOf(v float32) uint { return uint(int(float32(v*512) + 512)) }

// mean returns the mean of magnitudes, added in the order of torch.mean on one thread: four vectors
// of eight lanes side by side, in sums that cascade over four levels of 16 or more additions.
func mean(most []float32) float32 {
	const lanes, vectors, levels = 8, 4, 4
	var sums [levels][vectors][lanes]float32
	steps := len(most) / lanes / vectors
	level := max(4, bits.Len(uint(max(0, steps-1)))/levels)
	add := func(to *[lanes]float32, x []float32) {
		for l := range to {
			to[l] += x[l]
		}
	}
	for i := range steps {
		for v := range vectors {
			add(&sums[0][v], most[(i*vectors+v)*lanes:])
		}
		for j := 1; j < levels && (i+1)%(1<<(j*level)) == 0; j++ {
			for v := range vectors {
				add(&sums[j][v], sums[j-1][v][:])
			}
			sums[j-1] = [vectors][lanes]float32{}
		}
	}
	for j := 1; j < levels; j++ {
		for v := range vectors {
			add(&sums[0][v], sums[j][v][:])
		}
	}
	all := &sums[0][0]
	rest := most[steps*vectors*lanes:]
	for ; len(rest) >= lanes; rest = rest[lanes:] {
		add(all, rest)
	}
	for v := 1; v < vectors; v++ {
		add(all, sums[0][v][:])
	}
	sum := float32(0)
	for _, x := range rest {
		sum += x
	}
	for _, x := range all {
		sum += x
	}
	return sum / float32(len(most))
}

// encodeMagnitudes sets the magnitudes of all blocks of a matrix, and their mean.
func encodeMagnitudes(words []uint32, most []float32) {
	mean := mean(most)
	words[0] = math.Float32bits(mean)
	for g := 0; g*nf4Group < len(most); g++ {
		encodeGroup(words[1+g*nf4Words:], most[g*nf4Group:min((g+1)*nf4Group, len(most))], mean)
	}
}

// encodeGroup codes differences. Like bitsandbytes on a CPU, it rounds them to multiples of 2/65535 of
// the largest before it looks for the nearest value.
func encodeGroup(words []uint32, most []float32, mean float32) {
	largest := float32(0)
	for _, m := range most {
		largest = max(largest, float32(math.Abs(float64(m-mean))))
	}
	words[0] = math.Float32bits(largest)
	if largest == 0 {
		return
	}
	_, value := NF4Values()
	const steps = 65535
	for i, m := range most {
		v := float32((m-mean)/largest+1) * 0.5
		v = float32(int(float32(v*steps)+0.5))/steps*2 - 1
		code, _ := slices.BinarySearch(value[:], v)
		if code = min(code, 255); code > 0 && v-value[code-1] < value[code]-v {
			code--
		}
		words[1+i/4] |= uint32(code) << (8 * (i % 4))
	}
}

// decodeNF4 sets dst to elements from lo on, a multiple of 64.
func decodeNF4(dst Buffer, words []uint32, lo int) {
	values, magnitudes := NF4Values()
	mean := math.Float32frombits(words[0])
	var block [16]float32
	var narrow [16]uint16
	for at := 0; at < dst.N; at += nf4Block {
		group, b := words[1+(lo+at)/nf4Span*nf4Words:], (lo+at)%nf4Span/nf4Block
		code := group[1+b/4] >> (8 * (b % 4)) & 255
		most := float32(magnitudes[code]*math.Float32frombits(group[0])) + mean
		for i, v := range values {
			block[i] = v * most
		}
		codes, to := group[nf4Head+b*nf4Block/8:], dst.Slice(at, min(at+nf4Block, dst.N))
		if dst.Type == F32 {
			decodeBlock(to.F32(), codes, &block)
			continue
		}
		narrowTo(narrow[:], block[:], dst.Type)
		decodeBlock(to.U16(), codes, &narrow)
	}
}

func decodeBlock[T any](dst []T, codes []uint32, value *[16]T) {
	for len(dst) >= 8 {
		w, to := codes[0], dst[:8]
		to[0], to[1], to[2], to[3] = value[w>>4&15], value[w&15], value[w>>12&15], value[w>>8&15]
		to[4], to[5], to[6], to[7] = value[w>>20&15], value[w>>16&15], value[w>>28], value[w>>24&15]
		dst, codes = dst[8:], codes[1:]
	}
	for i := range dst {
		dst[i] = value[codes[0]>>(8*(i/2)+4*(1-i%2))&15]
	}
}
