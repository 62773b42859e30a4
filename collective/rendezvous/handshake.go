package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	helloLen  = 48
	nonceLen  = 32
	macLen    = sha256.Size
	shake     = 5 * time.Second // timeout of a handshake
	family    = "ZEROTH-"
	magicWord = family + "3"
)

// ErrRefused reports that the two sides have different tokens.
var ErrRefused = errors.New("the tokens of the two sides differ")

var (
	errStranger = errors.New("the listener there is not zeroth")
	errVersion  = errors.New("it runs another version of zeroth; use the same version everywhere")
)

// transcript contains the exchanged messages, on which both sides base their proofs.
type transcript struct {
	hello [helloLen]byte
	nonce [nonceLen]byte
}

func (t *transcript) mac(token []byte, side, about string) []byte {
	h := hmac.New(sha256.New, token)
	for _, s := range []string{side, about} {
		_, _ = io.WriteString(h, s+"\x00") // hashes do not fail
	}
	_, _ = h.Write(t.hello[:])
	_, _ = h.Write(t.nonce[:])
	return h.Sum(nil)
}

// Greet performs the dialing side's handshake.
func Greet(c net.Conn, token []byte, about string, process int) error {
	_ = c.SetDeadline(time.Now().Add(shake))
	var t transcript
	copy(t.hello[:], magicWord)
	binary.LittleEndian.PutUint32(t.hello[8:], uint32(process))
	_, _ = rand.Read(t.hello[helloLen-nonceLen:]) // never fails
	if _, err := c.Write(t.hello[:]); err != nil {
		return err
	}
	if n, err := io.ReadFull(c, t.nonce[:]); err != nil {
		_, secure := c.(*tls.Conn)
		return untrusted(err, secure, t.nonce[:n])
	}
	if string(t.nonce[:len(family)]) == family { // no random bytes
		return errVersion
	}
	if _, err := c.Write(t.mac(token, "client", about)); err != nil {
		return err
	}
	var answer [1 + macLen]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	switch {
	case answer[0] > 1:
		return errStranger
	case answer[0] == 0 || !hmac.Equal(answer[1:], t.mac(token, "server", about)):
		return ErrRefused
	}
	return c.SetDeadline(time.Time{})
}

// admit performs the accepting side's handshake and returns the peer's process. With an error, it
// returns the process that the peer claims to be, or -1.
func admit(c net.Conn, token []byte, about string) (process int, err error) {
	_ = c.SetDeadline(time.Now().Add(shake))
	var t transcript
	if _, err := io.ReadFull(c, t.hello[:]); err != nil {
		return -1, err
	}
	switch word := string(t.hello[:len(magicWord)]); {
	case word[:len(family)] != family:
		return -1, untrusted(errors.New("it is not zeroth"), false, t.hello[:])
	case word != magicWord:
		copy(t.nonce[:], magicWord)
		_, _ = c.Write(t.nonce[:]) // it is refused even if it does not receive this
		return -1, errVersion
	}
	process = int(binary.LittleEndian.Uint32(t.hello[8:]))
	_, _ = rand.Read(t.nonce[:]) // never fails
	if _, err := c.Write(t.nonce[:]); err != nil {
		return process, err
	}
	var proof [macLen]byte
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return process, err
	}
	answer := [1 + macLen]byte{}
	if !hmac.Equal(proof[:], t.mac(token, "client", about)) {
		_, _ = c.Write(answer[:]) // it is refused even if it does not receive this
		return process, ErrRefused
	}
	answer[0] = 1
	copy(answer[1:], t.mac(token, "server", about))
	if _, err := c.Write(answer[:]); err != nil {
		return process, err
	}
	return process, c.SetDeadline(time.Time{})
}

// Guest is an authenticated connection and the process that the peer claims to be.
type Guest struct {
	net.Conn
	Process int
}

// Door accepts authenticated connections.
type Door struct {
	ln    net.Listener
	token []byte
	about string
	in    chan Guest
	slots chan struct{}   // limits concurrent handshakes
	open  context.Context // cancelled by Close
	shut  context.CancelFunc
	all   sync.WaitGroup
	fails atomic.Pointer[error] // of the last attempt to accept a connection; nil if it succeeded

	refused func(from string, process int, err error) // called for each refused connection with the process it claims to be, or -1; may be nil
}

// NewDoor starts accepting connections for a world with that number of processes. Close closes the door
// and the listener. refused may be nil.
func NewDoor(ln net.Listener, token []byte, about string, processes int, refused func(from string, process int, err error)) *Door {
	d := &Door{ln: ln, token: token, about: about, in: make(chan Guest), slots: make(chan struct{}, max(16, 2*processes)), refused: refused}
	d.open, d.shut = context.WithCancel(context.Background())
	d.all.Go(d.accept)
	return d
}

func (d *Door) accept() {
	for {
		c, err := d.ln.Accept()
		if err != nil {
			d.fails.Store(&err)
			select {
			case <-d.open.Done():
				return
			case <-time.After(10 * time.Millisecond): // for example, out of descriptors, whose number limits handshakes
				continue
			}
		}
		d.fails.Store(nil)
		select {
		case d.slots <- struct{}{}:
			d.all.Go(func() { d.receive(c); <-d.slots })
		default: // too many handshakes: legitimate processes try again
			_ = c.Close()
		}
	}
}

func (d *Door) receive(c net.Conn) {
	stop := context.AfterFunc(d.open, func() { _ = c.Close() })
	process, err := -1, sameUser(c)
	if err == nil {
		process, err = admit(c, d.token, d.about)
	}
	explain(c, err)
	if !stop() && err == nil {
		err = net.ErrClosed
	}
	if err != nil {
		_ = c.Close()
		if d.refused != nil {
			d.refused(c.RemoteAddr().String(), process, untrusted(err, true, nil))
		}
		return
	}
	select {
	case d.in <- Guest{secure(c), process}:
	case <-d.open.Done():
		_ = c.Close()
	}
}

// Next waits for the next guest.
func (d *Door) Next(ctx context.Context) (Guest, error) {
	select {
	case g := <-d.in:
		return g, nil
	case <-ctx.Done():
		return Guest{}, context.Cause(ctx)
	}
}

// Trouble explains why connections cannot be accepted at present, or returns "".
func (d *Door) Trouble() string {
	if err := d.fails.Load(); err != nil {
		return fmt.Sprintf("; connections cannot be accepted: %v", *err)
	}
	return ""
}

// Close stops accepting connections.
func (d *Door) Close() {
	d.shut()
	_ = d.ln.Close() // may be closed already
	d.all.Wait()
}

// Caller describes the dialing process.
type Caller struct {
	Process int
	Token   []byte
	TLS     *tls.Config // nil: no TLS
	Once    bool        // Dial does not retry
}

// Dial connects to a door at one of the addresses. It retries until ctx ends, unless there is only
// one address and it refuses the process. It returns the most informative error of all addresses.
func (me Caller) Dial(ctx context.Context, network string, addrs []string, about string) (net.Conn, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var wrong []error
		for _, addr := range addrs {
			c, err := shakeTLS(ctx, network, addr, me.TLS)
			if err == nil {
				if err = Greet(c, me.Token, about, me.Process); err == nil {
					return secure(c), nil
				}
				_ = c.Close()
			}
			wrong = append(wrong, fmt.Errorf("%s: %w", addr, err))
		}
		slices.SortStableFunc(wrong, func(a, b error) int { return informative(b) - informative(a) })
		if me.Once || len(addrs) == 1 && Wrong(wrong[0]) {
			return nil, wrong[0]
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", wrong[0], context.Cause(ctx))
		}
	}
}

// informative ranks an error: a refusal is more informative than an unreachable address.
func informative(err error) int {
	var nobody *net.OpError
	switch {
	case Wrong(err):
		return 2
	case errors.As(err, &nobody) && nobody.Op == "dial":
		return 0
	}
	return 1
}
