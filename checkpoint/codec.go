package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
)

// Constants of the codec planes; the package comment describes its format.
const (
	methodRaw    = 0
	methodPlanes = 1

	pieceRaw  = 0
	pieceRun  = 1
	pieceHuff = 2
	pieceZstd = 3

	pieceBytes = 1 << 17 // huff0 takes at most 2^18-1
	pieceLeast = 1024    // shorter pieces stay raw: a table would cost more
)

// coder is the work space of one goroutine that encodes or decodes blocks.
type coder struct {
	plane [blockBytes]byte // concatenated planes of a block
	huff  huff0.Scratch
	table *huff0.Scratch // for decoding
	enc   *zstd.Encoder
	dec   *zstd.Decoder
	zbuf  []byte
}

func newCoder() *coder {
	// Literal entropy coding is off by default below the better levels, and
	// without it tensors do not shrink at all.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithAllLitEntropyCompression(true), zstd.WithEncoderCRC(false), zstd.WithWindowSize(pieceBytes))
	if err != nil {
		panic("checkpoint: zstd options: " + err.Error())
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(8*pieceBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("checkpoint: zstd options: " + err.Error())
	}
	c := &coder{enc: enc, dec: dec}
	c.huff.Reuse = huff0.ReusePolicyNone
	return c
}

// encode appends an encoded block to dst, with at most len(src)+1 bytes.
func (c *coder) encode(dst, src []byte, t DType) []byte {
	size, start := t.Size(), len(dst)
	dst = append(dst, methodPlanes)
	split(c.plane[:len(src)], src, size, rotates(t))
	n := len(src) / size
	for p := range size {
		plane := c.plane[p*n : (p+1)*n]
		for lo := 0; lo < n; lo += pieceBytes {
			dst = c.encodePiece(dst, plane[lo:min(n, lo+pieceBytes)])
		}
		if len(dst)-start > len(src) {
			break
		}
	}
	if len(dst)-start > len(src) {
		dst = append(append(dst[:start], methodRaw), src...)
	}
	return dst
}

func (c *coder) encodePiece(dst, b []byte) []byte {
	if len(b) < pieceLeast || noise(b) {
		return appendPiece(dst, pieceRaw, b)
	}
	out, _, err := huff0.Compress4X(b, &c.huff)
	if errors.Is(err, huff0.ErrUseRLE) {
		return appendPiece(dst, pieceRun, b[:1])
	}
	if err != nil || len(out) >= len(b) {
		return appendPiece(dst, pieceRaw, b)
	}
	if len(out) < len(b)/4 { // with so few symbols there may be repetitions, such as unused rows
		c.zbuf = c.enc.EncodeAll(b, c.zbuf[:0])
		if len(c.zbuf) < len(out) {
			return appendPiece(dst, pieceZstd, c.zbuf)
		}
	}
	return appendPiece(dst, pieceHuff, out)
}

func appendPiece(dst []byte, kind byte, b []byte) []byte {
	n := len(b)
	return append(append(dst, kind, byte(n), byte(n>>8), byte(n>>16)), b...)
}

// noise reports whether the bytes in a sample of a piece look equally probable: then the sum of
// squares of their counts is near n²/256 + n.
func noise(b []byte) bool {
	const n = 4096
	if len(b) < 2*n {
		return false
	}
	var count [256]int
	step := len(b) / n
	for i := range n {
		count[b[i*step]]++
	}
	sum := -n
	for _, c := range count {
		sum += c * c
	}
	return sum < n*n/200
}

// decode decodes the block src to dst.
func (c *coder) decode(dst, src []byte, t DType) error {
	if len(src) == 0 {
		return errors.New("empty block")
	}
	method, src := src[0], src[1:]
	switch method {
	case methodRaw:
		if len(src) != len(dst) {
			return fmt.Errorf("raw block of %d bytes, %d expected", len(src), len(dst))
		}
		copy(dst, src)
		return nil
	case methodPlanes:
		return c.decodePlanes(dst, src, t)
	}
	return fmt.Errorf("unknown block method %d", method)
}

func (c *coder) decodePlanes(dst, src []byte, t DType) error {
	size := t.Size()
	n := len(dst) / size
	for p := range size {
		plane := c.plane[p*n : (p+1)*n]
		for lo := 0; lo < n; lo += pieceBytes {
			var err error
			hi := min(n, lo+pieceBytes)
			if src, err = c.decodePiece(plane[lo:hi:hi], src); err != nil {
				return fmt.Errorf("plane %d: %w", p, err)
			}
		}
	}
	if len(src) > 0 {
		return fmt.Errorf("%d bytes after the last plane", len(src))
	}
	merge(dst, c.plane[:len(dst)], size, rotates(t))
	return nil
}

// decodePiece decodes the piece at the start of src into dst and returns the rest of src.
func (c *coder) decodePiece(dst, src []byte) ([]byte, error) {
	if len(src) < 4 {
		return nil, errors.New("truncated piece")
	}
	kind, n := src[0], int(src[1])|int(src[2])<<8|int(src[3])<<16
	if n > len(src)-4 {
		return nil, fmt.Errorf("piece of %d bytes, %d left", n, len(src)-4)
	}
	b, rest := src[4:4+n], src[4+n:]
	switch kind {
	case pieceRaw:
		if n != len(dst) {
			return nil, fmt.Errorf("raw piece of %d bytes, %d expected", n, len(dst))
		}
		copy(dst, b)
		return rest, nil
	case pieceRun:
		if n != 1 {
			return nil, fmt.Errorf("run piece of %d bytes", n)
		}
		for i := range dst {
			dst[i] = b[0]
		}
		return rest, nil
	case pieceHuff:
		return rest, c.unhuff(dst, b)
	case pieceZstd:
		out, err := c.dec.DecodeAll(b, dst[:0])
		if err == nil && len(out) != len(dst) {
			err = fmt.Errorf("zstd piece of %d bytes, %d expected", len(out), len(dst))
		}
		return rest, err
	}
	return nil, fmt.Errorf("unknown piece kind %d", kind)
}

func (c *coder) unhuff(dst, b []byte) error {
	table, streams, err := huff0.ReadTable(b, c.table)
	if err != nil {
		return err
	}
	c.table = table
	out, err := table.Decoder().Decompress4X(dst[:0:len(dst)], streams)
	if err == nil && len(out) != len(dst) {
		err = fmt.Errorf("huffman piece of %d bytes, %d expected", len(out), len(dst))
	}
	return err
}

// rotates reports whether elements of a dtype are rotated before they are split.
func rotates(t DType) bool { return t == F32 || t == BF16 || t == F16 || t == "F64" }

// split puts byte p of every element of size bytes into the p-th of size equal parts of dst.
func split(dst, src []byte, size int, rotate bool) {
	n := len(src) / size
	switch {
	case size == 4 && rotate:
		p0, p1, p2, p3 := dst[:n], dst[n:2*n], dst[2*n:3*n], dst[3*n:4*n]
		for i := range p0 {
			u := binary.LittleEndian.Uint32(src[4*i : 4*i+4])
			u = u<<1 | u>>31
			p0[i], p1[i], p2[i], p3[i] = byte(u), byte(u>>8), byte(u>>16), byte(u>>24)
		}
	case size == 2 && rotate:
		p0, p1 := dst[:n], dst[n:2*n]
		for i := range p0 {
			u := binary.LittleEndian.Uint16(src[2*i : 2*i+2])
			u = u<<1 | u>>15
			p0[i], p1[i] = byte(u), byte(u>>8)
		}
	default:
		for i := range n {
			u := element(src[i*size:(i+1)*size], rotate)
			for p := range size {
				dst[p*n+i] = byte(u >> (8 * p))
			}
		}
	}
}

// merge reverses split.
func merge(dst, src []byte, size int, rotate bool) {
	n := len(dst) / size
	switch {
	case size == 4 && rotate:
		p0, p1, p2, p3 := src[:n], src[n:2*n], src[2*n:3*n], src[3*n:4*n]
		for i := range p0 {
			u := uint32(p0[i]) | uint32(p1[i])<<8 | uint32(p2[i])<<16 | uint32(p3[i])<<24
			binary.LittleEndian.PutUint32(dst[4*i:4*i+4], u>>1|u<<31)
		}
	case size == 2 && rotate:
		p0, p1 := src[:n], src[n:2*n]
		for i := range p0 {
			u := uint16(p0[i]) | uint16(p1[i])<<8
			binary.LittleEndian.PutUint16(dst[2*i:2*i+2], u>>1|u<<15)
		}
	default:
		for i := range n {
			u := uint64(0)
			for p := range size {
				u |= uint64(src[p*n+i]) << (8 * p)
			}
			if rotate {
				u = u>>1 | u<<(8*size-1)
			}
			for p := range size {
				dst[i*size+p] = byte(u >> (8 * p))
			}
		}
	}
}

// element returns the element in b, rotated left by one bit if rotate is set.
func element(b []byte, rotate bool) uint64 {
	u := uint64(0)
	for p, x := range b {
		u |= uint64(x) << (8 * p)
	}
	if rotate {
		u = u<<1 | u>>(8*len(b)-1)
	}
	return u
}
