package parquet

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"zeroth/internal/input"
)

// chunk locates the pages of a column in the file.
type chunk struct {
	codec       int
	start, size int64
	values      int64 // including nulls
}

var codecs = map[int]string{0: "none", 1: "snappy", 2: "gzip", 3: "LZO", 4: "brotli", 5: "LZ4", 6: "zstd", 7: "LZ4_RAW"}

// cell is a value of a column, or a null, with its levels.
type cell struct {
	rep, def int
	text     string
}

// column reads the chunks of a column.
type column struct {
	file io.ReaderAt
	node *node
	chunk
	at, end int64
	left    int64 // values left in the chunk
	dict    []string

	inPage     int // values left in the page
	reps, defs hybrid
	values     values

	raw, page []byte
	zstd      *zstd.Decoder
	gzip      *gzip.Reader
	ahead     cell // valid if has
	has       bool
}

// open begins a chunk.
func (c *column) open(k chunk) {
	c.chunk, c.at, c.end, c.left = k, k.start, k.start+k.size, k.values
	c.dict, c.inPage, c.has = nil, 0, false
}

// peek returns the next cell without consuming it, or nil at the end of the chunk.
func (c *column) peek() *cell {
	if !c.has && c.inPage == 0 && c.left == 0 {
		return nil
	}
	if !c.has {
		c.load()
	}
	return &c.ahead
}

// load reads the next cell; its failures name the column.
func (c *column) load() {
	defer input.Catch(func(e failure) { fail("column %q: %w", c.node.path, e.error) })
	for c.inPage == 0 {
		c.nextPage()
	}
	c.inPage--
	c.left--
	x := cell{}
	if c.node.rep > 0 {
		x.rep = int(c.reps.next())
	}
	if c.node.def > 0 {
		x.def = int(c.defs.next())
	}
	if x.rep > c.node.rep || x.def > c.node.def {
		fail("levels %d and %d exceed the maximum %d and %d", x.rep, x.def, c.node.rep, c.node.def)
	}
	if x.def == c.node.def {
		x.text = c.values.next()
	}
	c.ahead, c.has = x, true
}

// pageHeader is the header of a page.
type pageHeader struct {
	kind, size, packed     int // size and packed are bytes, uncompressed and in the file
	crc                    int64
	checked                bool
	values, encoding       int
	repBytes, defBytes     int // only for kind pageV2
	plain                  bool
	defEncoding, repEncode int
}

const (
	pageV1         = 0
	pageIndex      = 1
	pageDictionary = 2
	pageV2         = 3
)

// headerBytes is the usual maximum size of a page header; with statistics it may be larger.
const headerBytes, mostHeader = 4 << 10, 16 << 20

// header reads the next page header and advances past it.
func (c *column) header() (h pageHeader) {
	for n := int64(headerBytes); ; n *= 16 {
		n = min(n, c.end-c.at, mostHeader)
		c.raw = sized(c.raw, int(n))
		_, err := c.file.ReadAt(c.raw, c.at)
		must(err)
		h = pageHeader{}
		d := decoder{b: c.raw}
		h.read(&d)
		if d.err == nil {
			c.at += int64(len(c.raw) - len(d.b))
			return h
		}
		if !d.short || n == c.end-c.at || n == mostHeader {
			fail("the header of a page: %w", d.err)
		}
	}
}

func (h *pageHeader) read(d *decoder) {
	data := func(into map[int]any) func(byte) {
		return func(kind byte) { d.read(kind, into) }
	}
	d.read(kindStruct, map[int]any{
		1: &h.kind, 2: &h.size, 3: &h.packed, 4: func(kind byte) { h.crc, h.checked = d.int(kind), true },
		5: data(map[int]any{1: &h.values, 2: &h.encoding, 3: &h.defEncoding, 4: &h.repEncode}),
		7: data(map[int]any{1: &h.values, 2: &h.encoding}),
		8: data(map[int]any{1: &h.values, 4: &h.encoding, 5: &h.defBytes, 6: &h.repBytes, 7: func(kind byte) {
			h.plain = h.plain || kind == kindFalse // is_compressed
			d.skip(kind)
		}}),
	})
}

// nextPage loads the next page of values, and the dictionary before it if there is one.
func (c *column) nextPage() {
	if c.at >= c.end {
		fail("%d values are missing", c.left)
	}
	h := c.header()
	if h.size < 0 || h.size > maxPage || h.packed < 0 || h.packed > maxPage {
		fail("a page of %d bytes, %d in the file; the limit is %d", h.size, h.packed, maxPage)
	}
	if int64(h.packed) > c.end-c.at {
		must(errEnds)
	}
	c.raw = sized(c.raw, h.packed)
	_, err := c.file.ReadAt(c.raw, c.at)
	must(err)
	c.at += int64(h.packed)
	if h.checked && uint32(h.crc) != crc32.ChecksumIEEE(c.raw) {
		fail("the page at byte %d is damaged: its checksum does not match", c.at-int64(h.packed))
	}
	if h.values < 0 || h.values > maxValues {
		fail("a page of %d values; the limit is %d", h.values, maxValues)
	}
	switch h.kind {
	case pageV1:
		c.dataV1(&h)
	case pageV2:
		c.dataV2(&h)
	case pageDictionary:
		c.dictionary(&h)
	case pageIndex:
	default:
		fail("unknown kind of page %d", h.kind)
	}
}

func (c *column) dataV1(h *pageHeader) {
	must(c.unpack(c.raw, h.size, false))
	b := c.page
	for _, l := range []struct {
		level, encoding int
		to              *hybrid
	}{{c.node.rep, h.repEncode, &c.reps}, {c.node.def, h.defEncoding, &c.defs}} {
		if l.level == 0 {
			continue
		}
		if l.encoding != runLength {
			fail("levels in encoding %d are not supported", l.encoding)
		}
		var levels []byte
		levels, b = prefixed(b)
		*l.to = hybrid{b: levels, width: levelBits(l.level)}
	}
	c.begin(h, b)
}

func (c *column) dataV2(h *pageHeader) {
	if h.repBytes < 0 || h.defBytes < 0 || h.repBytes > len(c.raw) || h.defBytes > len(c.raw)-h.repBytes || h.repBytes+h.defBytes > h.size {
		must(errEnds)
	}
	levels := h.repBytes + h.defBytes
	must(c.unpack(c.raw[levels:], h.size-levels, h.plain))
	levelBytes := append([]byte(nil), c.raw[:levels]...) // the next header overwrites raw
	c.reps = hybrid{b: levelBytes[:h.repBytes], width: levelBits(c.node.rep)}
	c.defs = hybrid{b: levelBytes[h.repBytes:], width: levelBits(c.node.def)}
	c.begin(h, c.page)
}

// begin prepares reading a page's values, which start at b.
func (c *column) begin(h *pageHeader, b []byte) {
	if int64(h.values) > c.left {
		fail("a page of %d values, but only %d are left in the chunk", h.values, c.left)
	}
	c.inPage = h.values
	c.values = c.newValues(h.encoding, b, h.values)
}

func (c *column) dictionary(h *pageHeader) {
	if c.dict != nil || h.encoding != plain && h.encoding != plainDictionary || h.size > maxDictionary || h.values > h.size || physical(c.node.physical) == boolean {
		fail("unsupported or second dictionary: %d values and %d bytes in encoding %d; the limit is %d bytes", h.values, h.size, h.encoding, maxDictionary)
	}
	must(c.unpack(c.raw, h.size, false))
	v := plains{b: c.page, n: c.node}
	c.dict = make([]string, h.values)
	for i := range c.dict {
		c.dict[i] = v.next()
	}
}

// unpack decompresses b into a page of size bytes. It never produces more than that.
func (c *column) unpack(b []byte, size int, plain bool) (err error) {
	c.page = sized(c.page, size)
	codec := c.codec
	if plain || size == 0 && len(b) == 0 {
		codec = 0
	}
	switch codec {
	case 0:
		if len(b) != size {
			return fmt.Errorf("a page of %d bytes has %d bytes in the file", size, len(b))
		}
		copy(c.page, b)
	case 1:
		n, err := s2.DecodedLen(b)
		if err != nil || n != size {
			return fmt.Errorf("a page of %d bytes unpacks to %d: %w", size, n, errors.Join(err, errEnds))
		}
		_, err = s2.Decode(c.page, b)
		return err
	case 2:
		if c.gzip == nil {
			c.gzip = new(gzip.Reader)
		}
		if err := c.gzip.Reset(bytes.NewReader(b)); err != nil {
			return err
		}
		return whole(c.gzip, c.page)
	case 6:
		if c.zstd == nil {
			if c.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxPage)); err != nil {
				return err
			}
		}
		if err := c.zstd.Reset(bytes.NewReader(b)); err != nil {
			return err
		}
		return whole(c.zstd, c.page)
	default:
		name, known := codecs[codec]
		if !known {
			name = fmt.Sprintf("codec %d", codec)
		}
		return fmt.Errorf("compression with %s is not supported; write the file with zstd, gzip, snappy or none", name)
	}
	return nil
}

// whole reads exactly one page.
func whole(r io.Reader, page []byte) error {
	if _, err := io.ReadFull(r, page); err != nil {
		return err
	}
	var more [1]byte
	if n, err := io.ReadFull(r, more[:]); n > 0 || err != io.EOF {
		return errors.Join(fmt.Errorf("a page of %d bytes unpacks to more", len(page)), err)
	}
	return nil
}

// sized returns a slice of n bytes, reusing b if possible.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// close frees the decoder.
func (c *column) close() {
	if c.zstd != nil {
		c.zstd.Close()
	}
}
