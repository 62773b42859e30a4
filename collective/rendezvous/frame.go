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

	"zeroth/internal/input/jsonread"
)

// Kinds of frames.
const (
	kindMember = iota + 1
	kindTable
	kindRefuse
	kindFacts
	kindVerdict
	kindShare
	kindBeat
	kindEnd
	kindLate  // a rank has exceeded its deadline: what blocks all ranks?
	kindAsk   // process 0 asks for waits
	kindWaits // a process's answer
	kindStuck // process 0's conclusion from all answers
	kindDump  // to process 0: make all processes write dumps; from it: write dumps
	kindBroke // the data connection between two processes broke: see Broke
	kinds
)

// most returns the maximum number of bytes in a frame of a kind.
func (s *Star) most(kind uint32) int {
	switch kind {
	case kindTable:
		return 4096 + 1024*s.cfg.Processes
	case kindFacts, kindVerdict, kindShare: // facts contain every key of a job, about 150 bytes each
		return 64 << 10
	case kindMember:
		return 1000
	case kindWaits:
		return mostWaits * s.cfg.PerProcess * (waitBytes + 8*s.ranksInAll())
	case kindRefuse, kindEnd, kindStuck, kindBroke:
		return 16 << 10 // up to six bytes per byte of text
	}
	return 0
}

type table struct {
	Session string   `json:"session"`
	Members []Member `json:"members"`
}

type message struct {
	Text    string `json:"text"`
	Missing bool   `json:"missing,omitempty"` // the refusal is because some processes are missing
}

// end reports why a process ended; Why is empty if it is done.
type end struct {
	Process int    `json:"process"`
	Why     string `json:"why"`
	After   bool   `json:"after,omitempty"`
}

// peer is the connection to a process.
type peer struct {
	process int
	conn    net.Conn
	in      *bufio.Reader // buffers conn
	mu      sync.Mutex    // guards writing
	done    bool          // it has announced that it is done
}

func newPeer(process int, c net.Conn) *peer {
	return &peer{process: process, conn: c, in: bufio.NewReaderSize(c, 512)}
}

func (p *peer) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// send writes a frame. A peer that does not read it within five seconds is given up.
func (p *peer) send(kind uint32, body []byte) error { return p.sendWithin(shake, kind, body) }

// sendWithin is like send, with another time limit for the peer to read.
func (p *peer) sendWithin(limit time.Duration, kind uint32, body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	_ = p.conn.SetWriteDeadline(time.Now().Add(limit))
	_, err := p.conn.Write(append(b, body...))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = p.conn.Close() // half a frame may have been sent
	}
	return err
}

// receive reads a frame and checks its length.
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

// encode returns JSON without HTML escapes, so that most strings keep their length.
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

// printable makes foreign text safe to print, with a bounded length.
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
