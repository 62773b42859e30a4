package parquet

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Kinds of values in Thrift's compact protocol.
const (
	kindTrue   = 1
	kindFalse  = 2
	kindByte   = 3
	kindI16    = 4
	kindI32    = 5
	kindI64    = 6
	kindDouble = 7
	kindBytes  = 8
	kindList   = 9
	kindSet    = 10
	kindMap    = 11
	kindStruct = 12
)

// maxDepth limits the nesting of structs and columns.
const maxDepth = 32

// decoder reads Thrift's compact protocol. Its results are never longer than its input, and
// its first error sticks.
type decoder struct {
	b     []byte
	err   error
	short bool // the error is that b is too short
	depth int
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
	d.b = nil
}

func (d *decoder) end() {
	d.short = d.short || d.err == nil
	d.fail("truncated value")
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.end()
		return 0
	}
	x := d.b[0]
	d.b = d.b[1:]
	return x
}

func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.b)
	switch {
	case n == 0:
		d.end()
	case n < 0:
		d.fail("a number has too many bytes")
	}
	d.b = d.b[max(0, min(n, len(d.b))):]
	return x
}

func (d *decoder) zigzag() int64 {
	x := d.uvarint()
	return int64(x>>1) ^ -int64(x&1)
}

// take returns the next n bytes.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.end()
		return nil
	}
	x := d.b[:n]
	d.b = d.b[n:]
	return x
}

func (d *decoder) want(kind byte, kinds ...byte) bool {
	ok := slices.Contains(kinds, kind)
	if !ok {
		d.fail("a value of kind %d, want %d", kind, kinds[0])
	}
	return ok
}

func (d *decoder) int(kind byte) int64 {
	if kind == kindByte {
		return int64(int8(d.byte()))
	}
	if !d.want(kind, kindI32, kindI64, kindI16) {
		return 0
	}
	return d.zigzag()
}

// small reads an int that must fit in 32 bits.
func (d *decoder) small(kind byte) int {
	x := d.int(kind)
	if x != int64(int32(x)) {
		d.fail("the number %d is too large", x)
		return 0
	}
	return int(x)
}

func (d *decoder) text(kind byte) string {
	if !d.want(kind, kindBytes) {
		return ""
	}
	return string(d.take(d.uvarint()))
}

// fields calls f with every field of a struct. f either reads the field and returns true, or
// returns false to skip it.
func (d *decoder) fields(kind byte, f func(id int, kind byte) bool) {
	if !d.want(kind, kindStruct) {
		return
	}
	if d.depth++; d.depth > maxDepth {
		d.fail("values nested more than %d deep", maxDepth)
	}
	id := int64(0)
	for d.err == nil {
		h := d.byte()
		if h == 0 {
			break
		}
		if id += int64(h >> 4); h>>4 == 0 {
			id = d.zigzag()
		}
		if kind := h & 15; d.err == nil && !f(int(id), kind) {
			d.skip(kind)
		}
	}
	d.depth--
}

// read reads the fields of a struct. into has, by a field's id, where its value goes (an *int that
// must fit in 32 bits, an *int64 or a *string), or a func(kind byte) that reads the field.
func (d *decoder) read(kind byte, into map[int]any) {
	d.fields(kind, func(id int, kind byte) bool {
		switch to := into[id].(type) {
		case *int:
			*to = d.small(kind)
		case *int64:
			*to = d.int(kind)
		case *string:
			*to = d.text(kind)
		case func(byte):
			to(kind)
		default:
			return false
		}
		return true
	})
}

// list calls f with the kind of every item; f must read the item.
func (d *decoder) list(kind byte, f func(kind byte)) {
	if !d.want(kind, kindList, kindSet) {
		return
	}
	h := d.byte()
	n := uint64(h >> 4)
	if n == 15 {
		n = d.uvarint()
	}
	if n > uint64(len(d.b)) { // an item has at least a byte
		d.end()
	}
	for ; n > 0 && d.err == nil; n-- {
		f(h & 15)
	}
}

func (d *decoder) skip(kind byte) {
	switch kind {
	case kindTrue, kindFalse:
	case kindByte:
		d.byte()
	case kindI16, kindI32, kindI64:
		d.uvarint()
	case kindDouble:
		d.take(8)
	case kindBytes:
		d.take(d.uvarint())
	case kindList, kindSet:
		d.list(kind, d.skipItem)
	case kindStruct:
		d.fields(kind, func(int, byte) bool { return false })
	case kindMap:
		d.skipMap()
	default:
		d.fail("unknown kind of value %d", kind)
	}
}

// skipItem skips an item of a list or map, where booleans take a byte.
func (d *decoder) skipItem(kind byte) {
	if d.depth++; d.depth > maxDepth {
		d.fail("values nested more than %d deep", maxDepth)
	}
	if kind == kindTrue || kind == kindFalse {
		kind = kindByte
	}
	d.skip(kind)
	d.depth--
}

func (d *decoder) skipMap() {
	n := d.uvarint()
	if n == 0 {
		return
	}
	kinds := d.byte()
	for ; n > 0 && d.err == nil; n-- {
		d.skipItem(kinds >> 4)
		d.skipItem(kinds & 15)
	}
}
