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
	"sync"
	"time"
)

const (
	helloLen  = 48
	nonceLen  = 32
	macLen    = sha256.Size
	shake     = 5 * time.Second // a handshake may take
	magicWord = "ZEROTH-1"
)

// ErrRefused is that the other side does not accept this process's token, or
// that this process does not accept its.
var ErrRefused = errors.New("the token is not the other side's")

// transcript is all that a handshake has said, by which both sides prove what
// they know.
type transcript struct {
	hello [helloLen]byte
	nonce [nonceLen]byte
}

func (t *transcript) mac(token []byte, side, about string) []byte {
	h := hmac.New(sha256.New, token)
	for _, s := range []string{side, about} {
		_, _ = io.WriteString(h, s+"\x00") // a hash does not fail
	}
	_, _ = h.Write(t.hello[:])
	_, _ = h.Write(t.nonce[:])
	return h.Sum(nil)
}

// Greet is the dialling side's handshake.
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
	if _, err := c.Write(t.mac(token, "client", about)); err != nil {
		return err
	}
	var answer [1 + macLen]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[0] != 1 || !hmac.Equal(answer[1:], t.mac(token, "server", about)) {
		return ErrRefused
	}
	return c.SetDeadline(time.Time{})
}

// admit is the accepting side's handshake; it returns which process it is.
func admit(c net.Conn, token []byte, about string) (process int, err error) {
	_ = c.SetDeadline(time.Now().Add(shake))
	var t transcript
	if _, err := io.ReadFull(c, t.hello[:]); err != nil {
		return 0, err
	}
	if string(t.hello[:8]) != magicWord {
		return 0, untrusted(errors.New("no client of this version"), false, t.hello[:])
	}
	_, _ = rand.Read(t.nonce[:]) // never fails
	if _, err := c.Write(t.nonce[:]); err != nil {
		return 0, err
	}
	var proof [macLen]byte
	if _, err := io.ReadFull(c, proof[:]); err != nil {
		return 0, err
	}
	answer := [1 + macLen]byte{}
	if !hmac.Equal(proof[:], t.mac(token, "client", about)) {
		_, _ = c.Write(answer[:]) // it is refused, whether it hears that or not
		return 0, ErrRefused
	}
	answer[0] = 1
	copy(answer[1:], t.mac(token, "server", about))
	if _, err := c.Write(answer[:]); err != nil {
		return 0, err
	}
	return int(binary.LittleEndian.Uint32(t.hello[8:])), c.SetDeadline(time.Time{})
}

// Guest is a connection whose other side has proved that it knows the token, and
// the process it says it is.
type Guest struct {
	net.Conn
	Process int
}

// Door lets in who knows the token.
type Door struct {
	ln    net.Listener
	token []byte
	about string
	in    chan Guest
	slots chan struct{}   // handshakes at once
	open  context.Context // until Close
	shut  context.CancelFunc
	all   sync.WaitGroup

	refused func(from string, err error) // hears of who was not let in; may be nil
}

// NewDoor opens a door for a world of so many processes, which Close closes, and
// the listener with it. refused may be nil.
func NewDoor(ln net.Listener, token []byte, about string, processes int, refused func(from string, err error)) *Door {
	d := &Door{ln: ln, token: token, about: about, in: make(chan Guest), slots: make(chan struct{}, max(16, 2*processes)), refused: refused}
	d.open, d.shut = context.WithCancel(context.Background())
	d.all.Go(d.accept)
	return d
}

func (d *Door) accept() {
	for {
		c, err := d.ln.Accept()
		if err != nil {
			select {
			case <-d.open.Done():
				return
			case <-time.After(10 * time.Millisecond): // out of descriptors, say: the handshakes at once bound those that are ours
				continue
			}
		}
		select {
		case d.slots <- struct{}{}:
			d.all.Go(func() { d.receive(c); <-d.slots })
		default: // as many as there may be: who belongs here tries again
			_ = c.Close()
		}
	}
}

func (d *Door) receive(c net.Conn) {
	stop := context.AfterFunc(d.open, func() { _ = c.Close() })
	process, err := 0, sameUser(c)
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
			d.refused(c.RemoteAddr().String(), untrusted(err, true, nil))
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

// Close lets nobody in any more.
func (d *Door) Close() {
	d.shut()
	_ = d.ln.Close() // closing twice is fine
	d.all.Wait()
}

// Caller is who dials.
type Caller struct {
	Process int
	Token   []byte
	TLS     *tls.Config // nil: none
}

// Dial connects to a door, which is at one of the addresses. It tries them again and
// again until ctx ends, unless the only one refuses it.
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
		if err := errors.Join(wrong...); len(addrs) == 1 && (errors.Is(err, ErrRefused) || errors.Is(err, ErrUntrusted)) {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", wrong[0], context.Cause(ctx))
		}
	}
}
