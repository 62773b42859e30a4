package rendezvous

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"zeroth/input/jsonread"
)

// kinds of frames.
const (
	kindMember = iota + 1
	kindTable
	kindRefuse
	kindFacts
	kindVerdict
	kindShare
	kindBeat
	kindEnd
	kindLate  // a rank of a process has waited too long: whom for do all wait?
	kindAsk   // process 0 asks that
	kindWaits // the answer of a process
	kindStuck // what process 0 makes of all answers
	kindDump  // to process 0: have all dump what their ranks did last; from it: dump
	kindBroke // the data connection between two processes broke: see Broke
	kinds
)

// most is the bytes that a frame of a kind may have.
func (s *Star) most(kind uint32) int {
	switch kind {
	case kindTable:
		return 4096 + 1024*s.cfg.Processes
	case kindFacts, kindVerdict, kindShare: // facts are those of every key of a job, of about 150 bytes each
		return 64 << 10
	case kindMember:
		return 1000
	case kindWaits:
		return mostWaits * s.cfg.PerProcess * (waitBytes + 8*s.ranksInAll())
	case kindRefuse, kindEnd, kindStuck, kindBroke:
		return 16 << 10 // six bytes for each of a text, at worst
	}
	return 0
}

type table struct {
	Session string   `json:"session"`
	Members []Member `json:"members"`
}

type message struct {
	Text    string `json:"text"`
	Missing bool   `json:"missing,omitempty"` // a refusal because not all have come
}

// end is why a process ends, or another has; Why is empty for one that is done.
type end struct {
	Process int    `json:"process"`
	Why     string `json:"why"`
	After   bool   `json:"after,omitempty"`
}

// peer is the connection to one process.
type peer struct {
	process int
	conn    net.Conn
	in      *bufio.Reader // of conn
	mu      sync.Mutex    // of writing
	done    bool          // it has said that it is
}

func newPeer(process int, c net.Conn) *peer {
	return &peer{process: process, conn: c, in: bufio.NewReaderSize(c, 512)}
}

func (p *peer) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// send writes a frame; who does not take it within five seconds never will.
func (p *peer) send(kind uint32, body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	_ = p.conn.SetWriteDeadline(time.Now().Add(shake))
	_, err := p.conn.Write(append(b, body...))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = p.conn.Close() // half a frame may be out
	}
	return err
}

// receive reads a frame whose length its kind allows.
func (s *Star) receive(c io.Reader) (kind uint32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if kind == 0 || kind >= kinds || int64(n) > int64(s.most(kind)) {
		return 0, nil, fmt.Errorf("a frame of kind %d and %d bytes", kind, n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(c, body)
	return kind, body, err
}

// encode is JSON whose texts take as many bytes as they have, but for quotes and what
// cannot be printed.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func decode(kind, want uint32, body []byte, v any) error {
	if kind != want {
		return fmt.Errorf("a frame of kind %d, want %d", kind, want)
	}
	return jsonread.Into(body, v)
}

// printable is text from elsewhere as it may be shown, of bounded length.
func printable(s string) string {
	if len(s) > 2000 {
		s = s[:2000] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || strconv.IsGraphic(r) {
			return r
		}
		return '?'
	}, s)
}
