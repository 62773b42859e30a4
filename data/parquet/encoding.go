package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
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
type values interface{ next() (string, error) }

// newValues returns the values, at most n, of a column that are encoded in b.
func (c *column) newValues(encoding int, b []byte, n int) (values, error) {
	t := physical(c.node.physical)
	switch {
	case encoding == plain && t == boolean:
		return &bools{bits: bitReader{b: b, width: 1}}, nil
	case encoding == plain:
		return &plains{b: b, n: c.node}, nil
	case (encoding == plainDictionary || encoding == rleDictionary) && c.dict != nil:
		if len(b) == 0 {
			return &indices{}, nil // only nulls
		}
		return &indices{dict: c.dict, at: hybrid{b: b[1:], width: int(b[0])}}, nil
	case encoding == runLength && t == boolean:
		part, _, err := prefixed(b)
		return &bools{runs: &hybrid{b: part, width: 1}}, err
	case encoding == deltaBinary && (t == int32s || t == int64s):
		d, err := newDeltas(b, n)
		return &integers{d, c.node}, err
	case encoding == deltaLengthBytes && t == byteArray:
		return newLengths(b, n)
	case encoding == deltaBytes && t == byteArray:
		return newPrefixes(b, n)
	}
	return nil, fmt.Errorf("values of physical type %d in encoding %d are not supported; rewrite the file with common encodings", t, encoding)
}

// prefixed splits off a part that is preceded by its length in four bytes.
func prefixed(b []byte) (part, rest []byte, err error) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, nil, errEnds
	}
	n := 4 + int(binary.LittleEndian.Uint32(b))
	return b[4:n], b[n:], nil
}

// bitReader reads numbers of width bits each, lowest bits first.
type bitReader struct {
	b         []byte
	width, at int // bits
}

func (r *bitReader) next() (x uint64, err error) {
	if r.at+r.width > 8*len(r.b) {
		return 0, errEnds
	}
	for got := 0; got < r.width; {
		shift := r.at % 8
		take := min(8-shift, r.width-got)
		x |= uint64(r.b[r.at/8]>>shift) & (1<<take - 1) << got
		got, r.at = got+take, r.at+take
	}
	return x, nil
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

func (h *hybrid) next() (int, error) {
	for h.run == 0 && h.packedLeft == 0 {
		if err := h.group(); err != nil {
			return 0, err
		}
	}
	if h.run > 0 {
		h.run--
		return int(h.value), nil
	}
	h.packedLeft--
	x, err := h.packed.next()
	return int(x), err
}

func (h *hybrid) group() error {
	head, n := binary.Uvarint(h.b)
	if n <= 0 || h.width > 32 || head > math.MaxInt32 {
		return errEnds
	}
	h.b = h.b[n:]
	if head&1 == 0 {
		size := (h.width + 7) / 8
		if size > len(h.b) {
			return errEnds
		}
		h.run, h.value = head>>1, 0
		for i := range size {
			h.value |= uint64(h.b[i]) << (8 * i)
		}
		h.b = h.b[size:]
		return nil
	}
	h.packedLeft = head >> 1 * 8
	size := min(len(h.b), int(head>>1)*h.width) // the last group may be truncated
	h.packed, h.b = bitReader{b: h.b[:size], width: h.width}, h.b[size:]
	return nil
}

type bools struct {
	bits bitReader
	runs *hybrid // if set, used instead of bits
}

func (v *bools) next() (string, error) {
	if v.runs != nil {
		x, err := v.runs.next()
		return strconv.FormatBool(x == 1), err
	}
	x, err := v.bits.next()
	return strconv.FormatBool(x == 1), err
}

// plains reads plain values.
type plains struct {
	b []byte
	n *node
}

func (v *plains) next() (string, error) {
	size := 8
	switch physical(v.n.physical) {
	case byteArray:
		text, rest, err := prefixed(v.b)
		v.b = rest
		return string(text), err
	case int32s, float32s:
		size = 4
	}
	if len(v.b) < size {
		return "", errEnds
	}
	b := v.b[:size]
	v.b = v.b[size:]
	switch physical(v.n.physical) {
	case int32s:
		return v.n.integerText(int64(int32(binary.LittleEndian.Uint32(b)))), nil
	case int64s:
		return v.n.integerText(int64(binary.LittleEndian.Uint64(b))), nil
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
func realText(x float64) (string, error) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "", fmt.Errorf("JSON cannot represent the number %v", x)
	}
	s := strconv.FormatFloat(x, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s, nil
}

// indices reads indices into a dictionary and returns its values.
type indices struct {
	dict []string
	at   hybrid
}

func (v *indices) next() (string, error) {
	i, err := v.at.next()
	if err == nil && i >= len(v.dict) {
		err = fmt.Errorf("index %d into a dictionary of %d values", i, len(v.dict))
	}
	if err != nil {
		return "", err
	}
	return v.dict[i], nil
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
func newDeltas(b []byte, n int) (*deltas, error) {
	d := decoder{b: b}
	block, parts, count, first := d.uvarint(), d.uvarint(), d.uvarint(), d.zigzag()
	if d.err != nil || block == 0 || block > 1<<16 || parts == 0 || block%parts != 0 || count > uint64(n) {
		return nil, fmt.Errorf("invalid delta encoding: blocks of %d, %d parts, %d numbers", block, parts, count)
	}
	return &deltas{b: d.b, part: int(block / parts), parts: int(parts), left: int(count), value: first, first: true}, nil
}

func (d *deltas) next() (int64, error) {
	if d.left == 0 {
		return 0, errEnds
	}
	d.left--
	if d.first {
		d.first = false
		return d.value, nil
	}
	if d.inLeft == 0 {
		if err := d.open(); err != nil {
			return 0, err
		}
	}
	d.inLeft--
	x, err := d.packed.next()
	d.value += d.least + int64(x)
	return d.value, err
}

// open begins the next part and, if needed, block.
func (d *deltas) open() error {
	if len(d.widths) == 0 {
		r := decoder{b: d.b}
		d.least = r.zigzag()
		d.widths = r.take(uint64(d.parts))
		if d.b = r.b; r.err != nil {
			return errEnds
		}
	}
	width := int(d.widths[0])
	size := (width*d.part + 7) / 8
	if width > 64 || size > len(d.b) {
		return errEnds
	}
	d.packed, d.b, d.widths, d.inLeft = bitReader{b: d.b[:size], width: width}, d.b[size:], d.widths[1:], d.part
	return nil
}

// all returns the remaining numbers and the bytes after them.
func (d *deltas) all() (xs []int, rest []byte, err error) {
	for d.left > 0 {
		x, err := d.next()
		if err != nil || x < 0 || x > maxPage {
			return nil, nil, errors.Join(errEnds, err)
		}
		xs = append(xs, int(x))
	}
	return xs, d.b, nil
}

type integers struct {
	d *deltas
	n *node
}

func (v *integers) next() (string, error) {
	x, err := v.d.next()
	return v.n.integerText(x), err
}

// lengths reads concatenated strings preceded by all of their lengths.
type lengths struct {
	sizes []int
	b     []byte
}

func newLengths(b []byte, n int) (*lengths, error) {
	d, err := newDeltas(b, n)
	if err != nil {
		return nil, err
	}
	sizes, rest, err := d.all()
	return &lengths{sizes, rest}, err
}

func (v *lengths) next() (string, error) {
	if len(v.sizes) == 0 || v.sizes[0] > len(v.b) {
		return "", errEnds
	}
	s := string(v.b[:v.sizes[0]])
	v.b, v.sizes = v.b[v.sizes[0]:], v.sizes[1:]
	return s, nil
}

// prefixes reads strings that share a prefix of a given length with the previous string.
type prefixes struct {
	shared []int
	rest   *lengths
	last   string
}

func newPrefixes(b []byte, n int) (*prefixes, error) {
	d, err := newDeltas(b, n)
	if err != nil {
		return nil, err
	}
	shared, rest, err := d.all()
	if err != nil {
		return nil, err
	}
	suffixes, err := newLengths(rest, n)
	return &prefixes{shared: shared, rest: suffixes}, err
}

func (v *prefixes) next() (string, error) {
	s, err := v.rest.next()
	if err != nil || len(v.shared) == 0 || v.shared[0] > len(v.last) || v.shared[0]+len(s) > maxRow {
		return "", errEnds
	}
	v.last, v.shared = v.last[:v.shared[0]]+s, v.shared[1:]
	return v.last, nil
}

// levelBits returns the bit width of levels up to level.
func levelBits(level int) int { return bits.Len(uint(level)) }
