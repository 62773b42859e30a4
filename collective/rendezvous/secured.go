package rendezvous

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"zeroth/input"
)

// Mutual is TLS 1.3 by which both sides prove that they have a certificate of the
// job's own authority, which is all of what makes a member: names in certificates
// are not compared, as processes are known by addresses that change from run to run.
func Mutual(own tls.Certificate, authority *x509.CertPool) *tls.Config {
	check := func(s tls.ConnectionState, usage x509.ExtKeyUsage) error {
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authority, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, SessionTicketsDisabled: true,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority,
		InsecureSkipVerify: true, // of the name alone: VerifyConnection checks the rest, on both sides
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("it shows no certificate")
			}
			return errors.Join(check(s, x509.ExtKeyUsageServerAuth), check(s, x509.ExtKeyUsageClientAuth))
		},
	}
}

// Over is the listener with TLS on what it accepts, or as it is where c is nil.
func Over(ln net.Listener, c *tls.Config) net.Listener {
	if c == nil {
		return ln
	}
	return tls.NewListener(ln, c)
}

// ErrUntrusted is that TLS, or its lack, lets two processes not come together.
var ErrUntrusted = errors.New("parallel.tls is not the other side's")

// untrusted says which side has what, of an error of a handshake, where that is it.
func untrusted(err error, secure bool, heard []byte) error {
	var remote *net.OpError
	var bad *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &remote) && remote.Op == "remote error" && strings.Contains(err.Error(), "protocol version"):
		return fmt.Errorf("%w: it does not speak TLS", ErrUntrusted)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: it refuses this process's certificate: %v", ErrUntrusted, err)
	case errors.As(err, &bad), errors.As(err, &unknown), errors.As(err, &invalid):
		return fmt.Errorf("%w: its certificate: %v", ErrUntrusted, err)
	case secure && errors.As(err, new(tls.RecordHeaderError)):
		return fmt.Errorf("%w: it does not speak TLS", ErrUntrusted)
	case !secure && len(heard) > 1 && heard[1] == 3 && (heard[0] == 21 || heard[0] == 22): // an alert or a handshake of TLS
		return fmt.Errorf("%w: it speaks TLS, and this process does not", ErrUntrusted)
	}
	return err
}

// tlsAlert is a fatal alert of TLS 1.2's form that no other case here sends:
// protocol_version.
var tlsAlert = []byte{21, 3, 3, 0, 2, 2, 70}

// explain lets a peer that speaks TLS where nobody does, or does not where all do,
// know that it is that.
func explain(c net.Conn, err error) {
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain) && plain.Conn != nil:
		_, _ = plain.Conn.Write(tlsAlert) // it is refused, whether it hears that or not
	case errors.Is(err, ErrUntrusted):
		_, _ = c.Write(tlsAlert)
	}
}

// secured is TLS whose writes may be interrupted and taken up again, which those of
// TLS may not: a write copies into memory of the connection's own, from where a
// goroutine sends, and a deadline ends no more than the wait for space there.
type secured struct {
	*tls.Conn
	mu      sync.Mutex
	more    sync.Cond // any of what follows changed
	filling []byte    // to be sent, at most securedBytes bytes
	busy    bool      // the goroutine sends
	until   time.Time // deadline of writes
	wake    *time.Timer
	closing bool
	err     error // of sending
	done    chan struct{}
}

const (
	securedBytes = 256 << 10
	// farewell is how long Close waits for what is still to be sent.
	farewell = time.Second
)

// secure takes over a connection whose handshake is done; what is no TLS stays as it
// is.
func secure(c net.Conn) net.Conn {
	t, ok := c.(*tls.Conn)
	if !ok {
		return c
	}
	s := &secured{Conn: t, filling: make([]byte, 0, securedBytes), done: make(chan struct{})}
	s.more.L = &s.mu
	go s.send()
	return s
}

// send sends what is written until Close.
func (s *secured) send() {
	defer close(s.done)
	sending := make([]byte, 0, securedBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.filling) == 0 && !s.closing {
			s.more.Wait()
		}
		if len(s.filling) == 0 || s.err != nil {
			return
		}
		sending, s.filling = s.filling, sending[:0]
		s.busy = true
		s.more.Broadcast()
		s.mu.Unlock()
		_, err := s.Conn.Write(sending)
		s.mu.Lock()
		s.busy = false
		s.err = err
		s.more.Broadcast()
		if err != nil {
			return
		}
	}
}

// Write implements net.Conn: what it returns as written is on its way.
func (s *secured) Write(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(b) {
		switch {
		case s.err != nil:
			return n, s.err
		case s.closing:
			return n, net.ErrClosed
		case !s.until.IsZero() && !time.Now().Before(s.until):
			return n, os.ErrDeadlineExceeded
		case len(s.filling) == securedBytes:
			s.more.Wait()
			continue
		}
		some := min(len(b)-n, securedBytes-len(s.filling))
		s.filling = append(s.filling, b[n:n+some]...)
		n += some
		s.more.Broadcast()
	}
	return n, nil
}

// SetWriteDeadline implements net.Conn.
func (s *secured) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = t
	if s.wake != nil {
		s.wake.Stop()
	}
	if s.wake = nil; !t.IsZero() {
		s.wake = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.more.Broadcast()
		})
	}
	s.more.Broadcast()
	return nil
}

// SetDeadline implements net.Conn.
func (s *secured) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// drain waits until all is sent, for so long at most.
func (s *secured) drain(most time.Duration) {
	timer := time.AfterFunc(most, func() { _ = s.NetConn().SetWriteDeadline(time.Unix(1, 0)) }) // which ends send
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for (len(s.filling) > 0 || s.busy) && s.err == nil {
		s.more.Wait()
	}
}

// CloseWrite tells the peer that nothing more comes.
func (s *secured) CloseWrite() error {
	s.drain(farewell)
	return s.Conn.CloseWrite()
}

// Close sends what is left, for a second at most. It may be called again.
func (s *secured) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	if s.wake != nil {
		s.wake.Stop()
	}
	s.more.Broadcast()
	s.mu.Unlock()
	if first {
		s.drain(farewell)
		defer func() { <-s.done }()
	}
	return s.Conn.Close()
}

// LoadMutual is Mutual of files: a certificate with those between it and the
// authority's, its key, and the authority's. What is wrong with any is told at once.
func LoadMutual(cert, key, authority string) (*tls.Config, error) {
	own, err := pair(cert, key)
	pool := x509.NewCertPool()
	text, wrong := input.Read(authority, mostPEM)
	if wrong == nil && !pool.AppendCertsFromPEM(text) {
		wrong = fmt.Errorf("%s: no certificate is in it; want PEM", authority)
	}
	if err := errors.Join(err, wrong); err != nil {
		return nil, err
	}
	c := Mutual(own, pool)
	var chain []*x509.Certificate
	for _, der := range own.Certificate {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cert, err)
		}
		chain = append(chain, one)
	}
	if err := c.VerifyConnection(tls.ConnectionState{PeerCertificates: chain}); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%s: the other processes would refuse it: %s; want one of %s, for servers and clients (extendedKeyUsage serverAuth, clientAuth)", cert, first, authority)
	}
	return c, nil
}

// mostPEM is the most bytes of a file of certificates or keys.
const mostPEM = 1 << 20

// pair is a certificate with its key.
func pair(cert, key string) (own tls.Certificate, err error) {
	certs, err := input.Read(cert, mostPEM)
	keys, wrong := input.Read(key, mostPEM)
	if err := errors.Join(err, wrong); err != nil {
		return own, err
	}
	if own, err = tls.X509KeyPair(certs, keys); err != nil {
		err = fmt.Errorf("%s and %s: %w", cert, key, err)
	}
	return own, err
}

// shakeTLS dials to an address, by TLS if that is wanted.
func shakeTLS(ctx context.Context, network, addr string, c *tls.Config) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil || c == nil {
		return conn, err
	}
	t := tls.Client(conn, c)
	_ = t.SetDeadline(time.Now().Add(shake))
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, untrusted(err, true, nil)
	}
	return t, nil
}
