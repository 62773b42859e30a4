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
	aheadLen = 4 << 10 // bytes that are read before they are summed
	lineLen  = 64      // bytes of a line of the cache
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// update returns the CRC32C of b after bytes whose CRC32C is sum.
//
// crc32 reads three streams at once, which processors do not fetch ahead. So every few
// KiB are read once in order before they are summed: from memory that halves the time.
func update(sum uint32, b []byte) uint32 {
	for len(b) > 0 {
		some := b[:min(len(b), aheadLen)]
		touch(some)
		sum = crc32.Update(sum, castagnoli, some)
		b = b[len(some):]
	}
	return sum
}

// touch reads every line of the cache that b is in.
//
//go:noinline
func touch(b []byte) (x byte) {
	for i := 0; i < len(b); i += lineLen {
		x ^= b[i]
	}
	return x
}

// sumLen is the bytes of a checksum on this connection: frames carry them where TCP alone
// protects them. Unix sockets do not leave the host, and TLS authenticates every record.
func (l *link) sumLen() int {
	if l.sums {
		return sumLen
	}
	return 0
}

// seal appends the checksum of b[from:], where frames carry one.
func (l *link) seal(b []byte, from int) []byte {
	if !l.sums {
		return b
	}
	return binary.LittleEndian.AppendUint32(b, update(0, b[from:]))
}

// sealed reads n bytes and their checksum. The bytes are valid until the next read. The
// error is a mismatch if they are not what was sent.
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

// compare returns a mismatch if sum is not the one that was received.
func compare(sum uint32, received []byte) error {
	if sent := binary.LittleEndian.Uint32(received); sent != sum {
		return mismatch{sum, sent}
	}
	return nil
}

// mismatch is the checksum of what has arrived, and the one that was sent with it.
type mismatch struct{ is, sent uint32 }

func (m mismatch) Error() string {
	return fmt.Sprintf("its CRC32C is %08x and was sent as %08x", m.is, m.sent)
}

// Damaged reports a frame that is not what its sender sent.
type Damaged struct {
	From, To int    // world ranks; the first ones of their processes if the damage is in the header
	During   string // the operation of the receiving rank; empty if there was none
	mismatch
}

func (d Damaged) Error() string {
	during := ""
	if d.During != "" {
		during = " during " + d.During
	}
	return fmt.Sprintf("a frame from rank %d to rank %d arrived damaged%s: %v", d.From, d.To, during, d.mismatch)
}

// damaged returns err, or a Damaged if it is the mismatch of a frame. The header is empty
// if the mismatch is in the header itself.
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
