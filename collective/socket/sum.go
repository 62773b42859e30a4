package socket

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	sumLen   = 4       // bytes of a checksum
	givenUp  = 0       // the end of data that the sender gave up
	aheadLen = 4 << 10 // bytes that are loaded before they are summed
	lineLen  = 64      // bytes of a cache line
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// update returns the CRC32C of b after bytes whose CRC32C is sum.
//
// crc32 reads three streams at once, which hardware does not prefetch. Touching a few KiB in order
// before summing them halves the time for data in memory.
func update(sum uint32, b []byte) uint32 {
	for len(b) > 0 {
		some := b[:min(len(b), aheadLen)]
		touch(some)
		sum = crc32.Update(sum, castagnoli, some)
		b = b[len(some):]
	}
	return sum
}

// touch reads every cache line of b.
//
//go:noinline
func touch(b []byte) (x byte) {
	for i := 0; i < len(b); i += lineLen {
		x ^= b[i]
	}
	return x
}

// sumLen returns the length of a checksum on this connection. Frames carry checksums only on plain
// TCP: Unix sockets do not leave the host, and TLS authenticates every record.
func (l *link) sumLen() int {
	if l.sums {
		return sumLen
	}
	return 0
}

// seal appends the checksum of b[from:], if frames carry checksums.
func (l *link) seal(b []byte, from int) []byte {
	if !l.sums {
		return b
	}
	return binary.LittleEndian.AppendUint32(b, update(0, b[from:]))
}

// sealed reads n bytes and verifies their checksum. The bytes are valid until the next read. It
// returns a mismatch if they are damaged.
func (l *link) sealed(n int) ([]byte, error) {
	b, err := l.in.Peek(n + l.sumLen())
	if err == io.EOF && len(b) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && l.sums {
		err = compare(update(0, b[:n]), b[n:])
	}
	if err != nil {
		return nil, err
	}
	_, err = l.in.Discard(len(b))
	return b[:n], err
}

// compare returns a mismatch unless sum equals the received checksum.
func compare(sum uint32, received []byte) error {
	if sent := binary.LittleEndian.Uint32(received); sent != sum {
		return mismatch{sum, sent}
	}
	return nil
}

// mismatch holds the computed and the received checksum.
type mismatch struct{ is, sent uint32 }

func (m mismatch) Error() string {
	return fmt.Sprintf("its CRC32C is %08x but was sent as %08x", m.is, m.sent)
}

// Damaged reports a frame that was damaged in transit.
type Damaged struct {
	From, To int    // world ranks; the first of their processes if the header is damaged
	During   string // operation of the receiving rank, or empty
	mismatch
}

func (d Damaged) Error() string {
	during := ""
	if d.During != "" {
		during = " during " + d.During
	}
	return fmt.Sprintf("a frame from rank %d to rank %d arrived damaged%s: %v", d.From, d.To, during, d.mismatch)
}

// damaged converts a mismatch to a Damaged and returns other errors unchanged. h is zero if the
// header itself is damaged.
func (l *link) damaged(err error, h header) error {
	m, ok := err.(mismatch)
	if !ok {
		return err
	}
	n := l.net.cfg
	d := Damaged{From: l.process * n.PerProcess, To: n.Process * n.PerProcess, mismatch: m}
	ports := l.net.portsWith(l.process)
	if h.p != nil {
		d.From, d.To = h.p.names[h.from], h.p.names[h.p.rank]
		ports = []*port{h.p}
	}
	for _, p := range ports {
		if d.During == "" {
			d.During = p.doing()
		}
	}
	return d
}
