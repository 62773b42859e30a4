package parquet

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Supported encodings of values.
const (
	plain            = 0
	plainDictionary  = 2
	runLength        = 3
	deltaBinary      = 5
	deltaLengthBytes = 6
	deltaBytes       = 7
	rleDictionary    = 8
)

var errEnds = errors.New("a page ends before its values do")

// values iterates over the values of a page: strings, numbers in JSON syntax, or "true" or
// "false".
type values interface{ next() string }

// newValues returns the values, at most n, of a column that are encoded in b.
func (c *column) newValues(encoding int, b []byte, n int) values {
	t := physical(c.node.physical)
	switch {
	case encoding == plain && t == boolean:
		return bools{&bitReader{b: b, width: 1}}
	case encoding == plain:
		return &plains{b: b, n: c.node}
	case (encoding == plainDictionary || encoding == rleDictionary) && c.dict != nil:
		if len(b) == 0 {
			return &indices{} // only nulls
		}
		return &indices{dict: c.dict, at: hybrid{b: b[1:], width: int(b[0])}}
	case encoding == runLength && t == boolean:
		part, _ := prefixed(b)
		return bools{&hybrid{b: part, width: 1}}
	case encoding == deltaBinary && (t == int32s || t == int64s):
		return &integers{newDeltas(b, n), c.node}
	case encoding == deltaLengthBytes && t == byteArray:
		return newLengths(b, n)
	case encoding == deltaBytes && t == byteArray:
		shared, rest := newDeltas(b, n).all()
		return &prefixes{shared: shared, rest: newLengths(rest, n)}
	}
	fail("values of physical type %d in encoding %d are not supported; rewrite the file with common encodings", t, encoding)
	return nil
}

// prefixed splits off a part that is preceded by its length in four bytes.
func prefixed(b []byte) (part, rest []byte) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		must(errEnds)
	}
	n := 4 + int(binary.LittleEndian.Uint32(b))
	return b[4:n], b[n:]
}

// bitReader reads numbers of width bits each, lowest bits first.
type bitReader struct {
	b         []byte
	width, at int // bits
}

func (r *bitReader) next() (x uint64) {
	if r.at+r.width > 8*len(r.b) {
		must(errEnds)
	}
	for got := 0; got < r.width; {
		shift := r.at % 8
		take := min(8-shift, r.width-got)
		x |= uint64(r.b[r.at/8]>>shift) & (1<<take - 1) << got
		got, r.at = got+take, r.at+take
	}
	return x
}

// hybrid reads runs of a repeated number and runs of bit-packed numbers.
type hybrid struct {
	b          []byte
	width      int // bits
	run        uint64
	value      uint64
	packed     bitReader
	packedLeft uint64 // numbers left in packed
}

func (h *hybrid) next() uint64 {
	for h.run == 0 && h.packedLeft == 0 {
		h.group()
	}
	if h.run > 0 {
		h.run--
		return h.value
	}
	h.packedLeft--
	return h.packed.next()
}

func (h *hybrid) group() {
	head, n := binary.Uvarint(h.b)
	if n <= 0 || h.width > 32 || head > math.MaxInt32 {
		must(errEnds)
	}
	h.b = h.b[n:]
	if head&1 == 0 {
		size := (h.width + 7) / 8
		if size > len(h.b) {
			must(errEnds)
		}
		h.run, h.value = head>>1, 0
		for i := range size {
			h.value |= uint64(h.b[i]) << (8 * i)
		}
		h.b = h.b[size:]
		return
	}
	h.packedLeft = head >> 1 * 8
	size := min(len(h.b), int(head>>1)*h.width) // the last group may be truncated
	h.packed, h.b = bitReader{b: h.b[:size], width: h.width}, h.b[size:]
}

type bools struct{ of interface{ next() uint64 } }

func (v bools) next() string { return strconv.FormatBool(v.of.next() == 1) }

// plains reads plain values.
type plains struct {
	b []byte
	n *node
}

func (v *plains) next() string {
	size := 8
	switch physical(v.n.physical) {
	case byteArray:
		text, rest := prefixed(v.b)
		v.b = rest
		return string(text)
	case int32s, float32s:
		size = 4
	}
	if len(v.b) < size {
		must(errEnds)
	}
	b := v.b[:size]
	v.b = v.b[size:]
	switch physical(v.n.physical) {
	case int32s:
		return v.n.integerText(int64(int32(binary.LittleEndian.Uint32(b))))
	case int64s:
		return v.n.integerText(int64(binary.LittleEndian.Uint64(b)))
	case float32s:
		return realText(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
	}
	return realText(math.Float64frombits(binary.LittleEndian.Uint64(b)))
}

// integerText formats an integer, signed or unsigned according to the column.
func (n *node) integerText(x int64) string {
	switch {
	case n.isUnsigned() && physical(n.physical) == int32s:
		return strconv.FormatUint(uint64(uint32(x)), 10)
	case n.isUnsigned():
		return strconv.FormatUint(uint64(x), 10)
	}
	return strconv.FormatInt(x, 10)
}

// realText formats a floating-point number, with a fraction even if it is zero.
func realText(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		fail("JSON cannot represent the number %v", x)
	}
	s := strconv.FormatFloat(x, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// indices reads indices into a dictionary and returns its values.
type indices struct {
	dict []string
	at   hybrid
}

func (v *indices) next() string {
	i := v.at.next()
	if i >= uint64(len(v.dict)) {
		fail("index %d into a dictionary of %d values", i, len(v.dict))
	}
	return v.dict[i]
}

// deltas reads integers encoded as differences, in blocks of parts, each with a bit width.
type deltas struct {
	b            []byte
	part, parts  int // numbers per part; parts per block
	left         int // numbers left
	value, least int64
	widths       []byte // of the parts left in the block
	packed       bitReader
	inLeft       int  // numbers left in the part
	first        bool // the next number is value
}

// newDeltas reads the header, which must announce at most n numbers.
func newDeltas(b []byte, n int) *deltas {
	d := decoder{b: b}
	block, parts, count, first := d.uvarint(), d.uvarint(), d.uvarint(), d.zigzag()
	if d.err != nil || block == 0 || block > 1<<16 || parts == 0 || block%parts != 0 || count > uint64(n) {
		fail("invalid delta encoding: blocks of %d, %d parts, %d numbers", block, parts, count)
	}
	return &deltas{b: d.b, part: int(block / parts), parts: int(parts), left: int(count), value: first, first: true}
}

func (d *deltas) next() int64 {
	if d.left == 0 {
		must(errEnds)
	}
	d.left--
	if d.first {
		d.first = false
		return d.value
	}
	if d.inLeft == 0 {
		d.open()
	}
	d.inLeft--
	d.value += d.least + int64(d.packed.next())
	return d.value
}

// open begins the next part and, if needed, block.
func (d *deltas) open() {
	if len(d.widths) == 0 {
		r := decoder{b: d.b}
		d.least = r.zigzag()
		d.widths = r.take(uint64(d.parts))
		if d.b = r.b; r.err != nil {
			must(errEnds)
		}
	}
	width := int(d.widths[0])
	size := (width*d.part + 7) / 8
	if width > 64 || size > len(d.b) {
		must(errEnds)
	}
	d.packed, d.b, d.widths, d.inLeft = bitReader{b: d.b[:size], width: width}, d.b[size:], d.widths[1:], d.part
}

// all returns the remaining numbers and the bytes after them.
func (d *deltas) all() (xs []int, rest []byte) {
	for d.left > 0 {
		x := d.next()
		if x < 0 || x > maxPage {
			must(errEnds)
		}
		xs = append(xs, int(x))
	}
	return xs, d.b
}

type integers struct {
	d *deltas
	n *node
}

func (v *integers) next() string { return v.n.integerText(v.d.next()) }

// lengths reads concatenated strings preceded by all of their lengths.
type lengths struct {
	sizes []int
	b     []byte
}

func newLengths(b []byte, n int) *lengths {
	sizes, rest := newDeltas(b, n).all()
	return &lengths{sizes, rest}
}

func (v *lengths) next() string {
	if len(v.sizes) == 0 || v.sizes[0] > len(v.b) {
		must(errEnds)
	}
	s := string(v.b[:v.sizes[0]])
	v.b, v.sizes = v.b[v.sizes[0]:], v.sizes[1:]
	return s
}

// prefixes reads strings that share a prefix of a given length with the previous string.
type prefixes struct {
	shared []int
	rest   *lengths
	last   string
}

func (v *prefixes) next() string {
	s := v.rest.next()
	if len(v.shared) == 0 || v.shared[0] > len(v.last) || v.shared[0]+len(s) > maxRow {
		must(errEnds)
	}
	v.last, v.shared = v.last[:v.shared[0]]+s, v.shared[1:]
	return v.last
}

// levelBits returns the bit width of levels up to level.
func levelBits(level int) int { return bits.Len(uint(level)) }
