package socket

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/collective"
)

const (
	magic     = 0x3148545a // "ZTH1"
	headerLen = 24
	endLen    = 4                                                   // follows data: 1, or givenUp
	lentLen   = 8                                                   // position of lent data
	spanLen   = lentLen + 8                                         // position and length of data lent with a note
	smallLen  = headerLen + collective.NoteLen + spanLen + 2*sumLen // maximum length of frames other than data and reasons
	readerLen = 16 << 10
)

const (
	kindNote = iota + 1
	kindData
	kindLeft
	kindLent
	kindDone
	kindLending
	kindWord
)

// out is a frame to be sent.
type out struct {
	kind    uint32
	p       *port // sender
	to      int   // rank of p's group
	note    collective.Note
	data    []byte
	at      int64  // for lent data, its position in this process's shared memory
	reason  []byte // or a word
	channel uint32 // of a word, which has no port
}

// link is the connection to another process, with a goroutine that reads and one that writes.
type link struct {
	net     *Net
	process int
	conn    net.Conn
	in      *bufio.Reader // interruptible reads
	w       *bufio.Writer // everything except data; used by the writer, or by push while the writer waits
	raw     rawWriter
	sums    bool // frames carry checksums

	mu      sync.Mutex
	more    sync.Cond // signals changes of queue, ending and broken, and data in w for a waiting writer
	waits   bool      // the writer is waiting
	queue   queue[out]
	reading *port // port whose memory is being read into, or nil
	writing *port // port whose memory is being sent, or nil
	ending  bool  // the writer ends when everything is sent
	broken  bool
	deaf    bool          // the reader has ended
	sent    chan struct{} // closed when the writer has ended

	heard  atomic.Int64 // nanoseconds since 1970 when something was read last
	shares bool         // the peer has received this process's shared memory
	theirs peerMemory
}

func newLink(n *Net, process int, c net.Conn) *link {
	l := &link{net: n, process: process, conn: c, sent: make(chan struct{})}
	l.more.L = &l.mu
	l.heard.Store(time.Now().UnixNano())
	l.in, l.w = bufio.NewReaderSize(reads{l}, readerLen), bufio.NewWriterSize(writes{l}, readerLen)
	l.raw.open(c)
	_, l.sums = c.(*net.TCPConn)
	return l
}

// lends returns the position of b in shared memory, if the peer can read it there.
func (l *link) lends(b []byte) (int64, bool) {
	if !l.shares || len(b) < l.net.cfg.Share.Least {
		return 0, false
	}
	return l.net.cfg.Share.at(b)
}

// push sends a frame immediately if it is small and none is queued, else queues it. Frames pushed
// after the connection broke are dropped.
func (l *link) push(o out) {
	l.mu.Lock()
	broken := l.broken
	switch {
	case broken:
	case l.waits && l.queue.len() == 0 && l.w.Buffered() == 0 && l.raw.works() && o.isSmall():
		if !l.now(o) {
			l.more.Signal()
		}
	default:
		l.queue.push(o)
		l.more.Signal()
	}
	l.mu.Unlock()
	if broken {
		o.drop()
	}
}

// now sends as much of a small frame as possible without blocking and leaves the rest to the
// writer. The caller holds l.mu.
func (l *link) now(o out) bool {
	b := l.small(l.w.AvailableBuffer(), o)
	n := l.raw.write(b)
	_, _ = l.w.Write(b[n:]) // w is empty and has enough space
	return n == len(b)
}

// drop discards a frame and releases its memory.
func (o out) drop() {
	switch o.kind {
	case kindData:
		o.p.sent(o.to)
	case kindLent, kindLending:
		o.p.returned(o.to)
	}
}

// write sends queued frames until finish, or until the connection breaks.
func (l *link) write() {
	defer close(l.sent)
	for {
		o, ok := l.next()
		if !ok {
			return
		}
		if err := l.send(o); err != nil {
			l.fail(err)
			return
		}
	}
}

// next waits for a frame. Before waiting, it flushes.
func (l *link) next() (o out, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.queue.len() == 0 && !l.broken && (l.w.Buffered() > 0 || !l.ending) {
		if l.w.Buffered() == 0 {
			l.waits = true
			l.more.Wait()
			l.waits = false
		} else if err := l.flush(); err != nil {
			return o, false
		}
	}
	if l.broken || l.queue.len() == 0 {
		return o, false
	}
	return l.queue.pop(), true
}

// flush flushes w. The caller holds l.mu, which is released while writing.
func (l *link) flush() error {
	l.mu.Unlock()
	defer l.mu.Lock()
	err := l.w.Flush()
	if err != nil {
		l.fail(err)
	}
	return err
}

// send writes a frame.
func (l *link) send(o out) error {
	switch {
	case o.kind == kindData:
		return l.sendData(o)
	case o.lends() && o.p.Ended() != nil: // Ended reclaims what was lent
		o.drop()
		return nil
	}
	return errors.Join(l.sendSmall(o), l.reason(o))
}

// sendSmall writes a small frame or a header.
func (l *link) sendSmall(o out) error {
	if l.w.Available() < smallLen { // keeps the buffer from growing
		if err := l.w.Flush(); err != nil {
			return err
		}
	}
	_, err := l.w.Write(l.small(l.w.AvailableBuffer(), o))
	return err
}

// reason writes the body of a left frame or a word.
func (l *link) reason(o out) error {
	if o.kind != kindLeft && o.kind != kindWord {
		return nil
	}
	_, err := l.w.Write(l.seal(slices.Clip(o.reason), 0)) // clipped, because other links seal the same reason
	return err
}

// lends reports whether the frame contains the position of its data.
func (o out) lends() bool { return o.kind == kindLent || o.kind == kindLending }

// isSmall reports whether small writes the whole frame.
func (o out) isSmall() bool { return o.kind != kindData && o.kind != kindLeft && o.kind != kindWord }

// small appends a frame to b, which must be empty; for data and reasons, only the header.
func (l *link) small(b []byte, o out) []byte {
	n := len(o.data)
	switch o.kind {
	case kindNote:
		n = len(o.note)
	case kindLending:
		n = len(o.note) + spanLen
	case kindLeft, kindWord:
		n = len(o.reason)
	}
	group, from := o.channel, uint32(0)
	if o.p != nil {
		group, from = uint32(o.p.group), uint32(o.p.rank)
	}
	for _, x := range [...]uint32{magic, o.kind, group, from, uint32(o.to), uint32(n)} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	b = l.seal(b, 0)
	body := len(b)
	switch o.kind {
	case kindNote:
		b = append(b, o.note[:]...)
	case kindLent:
		b = binary.LittleEndian.AppendUint64(b, uint64(o.at))
	case kindLending:
		b = binary.LittleEndian.AppendUint64(append(b, o.note[:]...), uint64(o.at))
		b = binary.LittleEndian.AppendUint64(b, uint64(len(o.data)))
	default:
		return b
	}
	return l.seal(b, body)
}

// zeros replaces data that was given up.
var zeros [1 << 14]byte

// sendData writes a frame from the memory of a port. If the port ends meanwhile, its memory is no
// longer read, and the end of the frame marks it as given up.
func (l *link) sendData(o out) error {
	if o.p.Ended() != nil {
		return nil
	}
	if err := errors.Join(l.sendSmall(o), l.w.Flush()); err != nil {
		o.drop()
		return err
	}
	n, sum, err := l.from(o.p, o.data)
	whole := err == nil
	for errors.Is(err, errInterrupted) && n < len(o.data) {
		var some int
		some, _ = writes{l}.Write(zeros[:min(len(zeros), len(o.data)-n)])
		if n += some; some == 0 {
			return io.ErrShortWrite
		}
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		o.drop() // also releases operations that need nothing more from the peer
		return err
	}
	if whole {
		o.p.sent(o.to)
	}
	if !whole {
		return l.end(givenUp, 0)
	}
	return l.end(1, sum)
}

// end writes the end of a data frame with checksum sum.
func (l *link) end(word, sum uint32) error {
	b := binary.LittleEndian.AppendUint32(l.w.AvailableBuffer(), word)
	if l.sums {
		b = binary.LittleEndian.AppendUint32(b, update(sum, b))
	}
	_, err := l.w.Write(b)
	return err
}

// from writes memory of a port, unless the port ends, and returns its checksum.
func (l *link) from(p *port, b []byte) (n int, sum uint32, err error) {
	l.at(&l.writing, p)
	defer l.at(&l.writing, nil)
	if !p.hold() {
		return 0, 0, errInterrupted
	}
	defer p.drop()
	if l.sums {
		sum = update(0, b)
	}
	n, err = writes{l}.Write(b)
	return n, sum, err
}

// at records the port whose memory the reader or the writer uses.
func (l *link) at(which **port, p *port) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*which = p
}

// interrupt makes reader and writer stop using the memory of a port that has ended.
func (l *link) interrupt(p *port) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reading == p {
		_ = l.conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
	}
	if l.writing == p {
		_ = l.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

// errInterrupted is the error of reads and writes whose port has ended.
var errInterrupted = errors.New("socket: the wire has ended")

// goOn decides whether to continue after a deadline interrupted a read or write. It returns false
// if its port has ended or the connection is finishing.
func (l *link) goOn(which **port, clear func(time.Time) error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending { // the deadline was set by finish
		return false
	}
	_ = clear(time.Time{})
	p := *which
	return p == nil || p.Ended() == nil
}

// reads and writes wrap the connection to allow interruptions.
type reads struct{ *link }
type writes struct{ *link }

func (l reads) Read(b []byte) (int, error) {
	for {
		n, err := l.conn.Read(b)
		if n > 0 && l.net.cfg.DeadAfter > 0 {
			l.heard.Store(time.Now().UnixNano())
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if !l.goOn(&l.reading, l.conn.SetReadDeadline) {
			return n, errInterrupted
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (l writes) Write(b []byte) (n int, err error) {
	for {
		some, err := l.conn.Write(b[n:])
		n += some
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if !l.goOn(&l.writing, l.conn.SetWriteDeadline) {
			return n, errInterrupted
		}
	}
}

// read receives frames until the connection breaks.
func (l *link) read() {
	err := l.meet()
	for err == nil {
		err = l.receive()
	}
	l.fail(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = true
}

// hears reports whether the reader may still use the peer's memory.
func (l *link) hears() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.deaf
}

// header is the header of a received frame.
type header struct {
	kind    uint32
	p       *port
	from    int
	n       int
	channel uint32 // of a word
}

func (l *link) receive() error {
	h, err := l.readHeader()
	if err != nil {
		return err
	}
	switch {
	case h.kind == kindNote && h.n == collective.NoteLen, h.kind == kindLending && h.n == collective.NoteLen+spanLen && l.theirs.any():
		return l.readNote(h)
	case h.kind == kindData:
		return l.readData(h)
	case h.kind == kindLeft && h.n <= collective.ReasonLen:
		return l.readLeft(h)
	case h.kind == kindLent && l.theirs.any():
		return l.readLent(h)
	case h.kind == kindDone && h.n == 0:
		h.p.returned(h.from)
		return nil
	case h.kind == kindWord:
		return l.readWord(h)
	}
	return unexpected{fmt.Sprintf("a frame of kind %d and %d bytes", h.kind, h.n)}
}

// readHeader reads and validates a header.
func (l *link) readHeader() (h header, err error) {
	b, err := l.sealed(headerLen)
	if err != nil {
		return h, l.damaged(err, header{})
	}
	var x [headerLen / 4]uint32
	for i := range x {
		x[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	if x[0] != magic {
		return h, unexpected{"an invalid frame"}
	}
	if x[1] == kindWord && l.net.cfg.Told != nil && x[5] <= WordLen {
		return header{kind: kindWord, n: int(x[5]), channel: x[2]}, nil
	}
	h = header{x[1], l.net.ports()[end{int(x[2]), int(x[4])}], int(x[3]), int(x[5]), 0}
	if h.p == nil || h.from >= len(h.p.names) || l.net.processOf(h.p.names[h.from]) != l.process {
		return h, unexpected{fmt.Sprintf("a frame for rank %d of group %d from rank %d", x[4], x[2], x[3])}
	}
	return h, nil
}

// body reads the n bytes after a header. They are valid until the next read.
func (l *link) body(h header, n int) ([]byte, error) {
	b, err := l.sealed(n)
	return b, l.damaged(err, h)
}

// readNote reads a note, and the position of memory lent with it.
func (l *link) readNote(h header) error {
	b, err := l.body(h, h.n)
	if err != nil {
		return err
	}
	var lends []byte
	if h.kind == kindLending {
		span := b[collective.NoteLen:]
		at, n := binary.LittleEndian.Uint64(span), binary.LittleEndian.Uint64(span[lentLen:])
		if lends, err = l.theirs.at(int64(at), int(n)); err != nil || n == 0 {
			return unexpected{fmt.Sprintf("%d bytes lent with a note (%v)", n, err)}
		}
	}
	return h.p.noted(h.from, collective.Note(b), lends)
}

func (l *link) readLeft(h header) error {
	b, err := l.body(h, h.n)
	if err == nil {
		h.p.left(h.from, collective.DecodeReason(b))
	}
	return err
}

// readLent reads the position of a frame in the peer's memory.
func (l *link) readLent(h header) error {
	b, err := l.body(h, lentLen)
	if err != nil {
		return err
	}
	data, err := l.theirs.at(int64(binary.LittleEndian.Uint64(b)), h.n)
	if err != nil {
		return unexpected{err.Error()}
	}
	if err := h.p.borrow(h.from, data); errors.As(err, new(unexpected)) {
		return err
	} else if err != nil {
		h.p.giveBack(h.from) // the port has ended
	}
	return nil
}

// readData reads a frame into posted memory, or skips the rest if the port has ended.
func (l *link) readData(h header) error {
	n, err := l.into(h)
	if errors.Is(err, errInterrupted) {
		_, err = l.in.Discard(h.n + endLen + l.sumLen() - n)
	}
	return err
}

// into reads the data and the end of a frame. It returns the number of bytes read.
func (l *link) into(h header) (n int, err error) {
	l.at(&l.reading, h.p)
	defer l.at(&l.reading, nil)
	b, err := h.p.take(h.from, h.n)
	if err != nil {
		if !errors.As(err, new(unexpected)) {
			err = errInterrupted
		}
		return 0, err
	}
	filled := false
	defer func() { h.p.give(h.from, filled) }()
	var sum uint32
	for n < len(b) {
		some, err := l.in.Read(b[n:])
		if l.sums {
			sum = update(sum, b[n:n+some])
		}
		if n += some; err != nil {
			return n, err
		}
	}
	word, err := l.readEnd(sum)
	filled = err == nil && word != givenUp
	return n, l.damaged(err, h)
}

// readEnd reads the end of a data frame with checksum sum.
func (l *link) readEnd(sum uint32) (word uint32, err error) {
	b, err := l.in.Peek(endLen + l.sumLen())
	if err != nil {
		return 0, err
	}
	if word = binary.LittleEndian.Uint32(b); word == givenUp {
		sum = 0
	}
	if l.sums {
		err = compare(update(sum, b[:endLen]), b[endLen:])
	}
	_, wrong := l.in.Discard(len(b))
	return word, cmp.Or(err, wrong)
}

// fail closes the connection; only the first error counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := !l.broken
	l.broken = true
	rest := l.queue
	l.queue = queue[out]{}
	l.more.Broadcast()
	l.mu.Unlock()
	if first {
		l.net.lose(l.process, err) // before closing, so that the reason may reach the peer first
	}
	_ = l.conn.Close() // already broken
	for rest.len() > 0 {
		rest.pop().drop()
	}
}

// finish sends queued frames and lets the peer send its own until the timeout, then closes the
// connection.
func (l *link) finish(most time.Duration) {
	l.mu.Lock()
	l.ending = true
	l.more.Broadcast()
	l.mu.Unlock()
	_ = l.conn.SetDeadline(time.Now().Add(most))
	select {
	case <-l.sent:
		if c, ok := l.conn.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // the peer receives everything before the end
		}
	case <-time.After(most):
	}
}
