package data

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"zeroth/internal/parallel"
)

// block is a unit of hashing and checking: at most blockBytes of one segment.
type block struct {
	segment int
	at      int // tokens before it in the segment
	data    []byte
}

const blockBytes = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// scan reads every token once. It returns the fingerprint and the largest id, or an error
// that names the first id outside [0, limit); a limit of 0 allows every int32.
//
// The fingerprint is the SHA-256 of, for each block of each segment in order,
// its id width and length (2 and 4 bytes) and its CRC-32C: a checksum against
// accidents that runs at the speed of memory, not against an adversary.
func (c *Corpus) scan(ctx context.Context, limit int, progress func(done, total int64)) (fingerprint string, largest int, err error) {
	limit = cmp.Or(limit, math.MaxInt32)
	blocks := c.blocks()
	type result struct {
		sum     uint32
		largest uint64
	}
	results, faults := make([]result, len(blocks)), make([]error, len(blocks))
	m := meter{report: progress}
	for _, b := range blocks {
		m.total += int64(len(b.data))
	}
	_ = parallel.For(ctx, len(blocks), 0, func(_ context.Context, i int) error {
		b := blocks[i]
		faults[i] = c.guard(func() error {
			results[i] = result{crc32.Checksum(b.data, castagnoli), largestID(b.data, c.segments[b.segment].width)}
			return nil
		})
		m.add(int64(len(b.data)))
		return nil
	})
	if err := errors.Join(faults...); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	for i, r := range results {
		b := blocks[i]
		if r.largest >= uint64(limit) {
			return "", 0, c.outOfRange(b, limit)
		}
		largest = max(largest, int(r.largest))
		var entry [10]byte
		binary.LittleEndian.PutUint16(entry[0:], uint16(c.segments[b.segment].width))
		binary.LittleEndian.PutUint32(entry[2:], uint32(len(b.data)))
		binary.LittleEndian.PutUint32(entry[6:], r.sum)
		h.Write(entry[:])
	}
	return hex.EncodeToString(h.Sum(nil)), largest, nil
}

func (c *Corpus) blocks() (blocks []block) {
	for i, s := range c.segments {
		for lo := 0; lo < len(s.data); lo += blockBytes {
			blocks = append(blocks, block{i, lo / s.width, s.data[lo:min(lo+blockBytes, len(s.data))]})
		}
	}
	return blocks
}

// largestID returns the largest id in b, where negative ids are larger than all others. It
// does not examine ids of one byte: every vocabulary has at least 256.
func largestID(b []byte, width int) (largest uint64) {
	switch width {
	case 1:
		return math.MaxUint8
	case 2:
		for ; len(b) >= 2; b = b[2:] {
			largest = max(largest, uint64(binary.LittleEndian.Uint16(b)))
		}
	case 4:
		for ; len(b) >= 4; b = b[4:] {
			largest = max(largest, uint64(binary.LittleEndian.Uint32(b)))
		}
	case 8:
		for ; len(b) >= 8; b = b[8:] {
			largest = max(largest, binary.LittleEndian.Uint64(b))
		}
	}
	return largest
}

// outOfRange returns an error that names the first bad id of a block.
func (c *Corpus) outOfRange(b block, limit int) error {
	s := c.segments[b.segment]
	for i := b.at; i < s.len(); i++ {
		at := i * s.width
		if id := largestID(s.data[at:at+s.width], s.width); id >= uint64(limit) {
			return fmt.Errorf("%s: token %d, at byte %d, has id %d, but the vocabulary has ids 0 to %d; another tokenizer made these tokens, they do not have %d bytes each (data.dtype), or the model's vocabulary is too small",
				s.name, i, s.at+at, int64(id), limit-1, s.width)
		}
	}
	panic(fmt.Sprintf("data: no id >= %d in a block that has one", limit))
}
