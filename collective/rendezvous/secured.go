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

	"zeroth/internal/input"
)

// Mutual returns a configuration of TLS 1.3 in which both sides must present a certificate signed
// by the job's own authority. That alone establishes membership: names in certificates are not
// compared, as the addresses of processes change from run to run.
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
		InsecureSkipVerify: true, // skips only the name: VerifyConnection checks the rest on both sides
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("it sent no certificate")
			}
			return errors.Join(check(s, x509.ExtKeyUsageServerAuth), check(s, x509.ExtKeyUsageClientAuth))
		},
	}
}

// Over wraps a listener with TLS, unless c is nil.
func Over(ln net.Listener, c *tls.Config) net.Listener {
	if c == nil {
		return ln
	}
	return tls.NewListener(ln, c)
}

// ErrUntrusted reports that two processes cannot connect because of TLS or its absence.
var ErrUntrusted = errors.New("parallel.tls differs between the two sides")

// untrusted explains a failed handshake if it is due to TLS, naming the side that lacks it.
func untrusted(err error, secure bool, heard []byte) error {
	var remote *net.OpError
	var bad *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &remote) && remote.Op == "remote error" && strings.Contains(err.Error(), "protocol version"):
		return fmt.Errorf("%w: it does not use TLS", ErrUntrusted)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: it rejected this process's certificate: %v", ErrUntrusted, err)
	case errors.As(err, &bad), errors.As(err, &unknown), errors.As(err, &invalid):
		return fmt.Errorf("%w: its certificate: %v", ErrUntrusted, err)
	case secure && errors.As(err, new(tls.RecordHeaderError)):
		return fmt.Errorf("%w: it does not use TLS", ErrUntrusted)
	case !secure && len(heard) > 1 && heard[1] == 3 && (heard[0] == 21 || heard[0] == 22): // an alert or a handshake of TLS
		return fmt.Errorf("%w: it uses TLS, but this process does not", ErrUntrusted)
	}
	return err
}

// tlsAlert is the fatal alert protocol_version in the format of TLS 1.2. Nothing else here sends
// it.
var tlsAlert = []byte{21, 3, 3, 0, 2, 2, 70}

// explain notifies a peer that only one side uses TLS.
func explain(c net.Conn, err error) {
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain) && plain.Conn != nil:
		_, _ = plain.Conn.Write(tlsAlert) // it is refused even if it does not receive this
	case errors.Is(err, ErrUntrusted):
		_, _ = c.Write(tlsAlert)
	}
}

// secured is a TLS connection whose writes can be interrupted and resumed, which tls.Conn does not
// support: Write copies to a buffer of the connection, from which a goroutine sends. A deadline
// only ends the wait for space in the buffer.
type secured struct {
	*tls.Conn
	mu      sync.Mutex
	more    sync.Cond // signals changes of the fields below
	filling []byte    // data to be sent, at most securedBytes bytes
	busy    bool      // the goroutine is sending
	until   time.Time // deadline of writes
	wake    *time.Timer
	closing bool
	err     error // error of sending
	done    chan struct{}
}

const (
	securedBytes = 256 << 10
	// farewell is how long Close waits for pending data to be sent.
	farewell = time.Second
)

// secure takes over an authenticated connection. Connections other than TLS are returned unchanged.
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

// send sends buffered data until Close.
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

// Write implements net.Conn. Written data may still be in the buffer.
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

// drain waits until everything is sent, or until the timeout.
func (s *secured) drain(most time.Duration) {
	timer := time.AfterFunc(most, func() { _ = s.NetConn().SetWriteDeadline(time.Unix(1, 0)) }) // ends send
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for (len(s.filling) > 0 || s.busy) && s.err == nil {
		s.more.Wait()
	}
}

// CloseWrite notifies the peer that no more data follows.
func (s *secured) CloseWrite() error {
	s.drain(farewell)
	return s.Conn.CloseWrite()
}

// Close sends pending data, waiting up to a second. It may be called again.
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

// LoadMutual returns Mutual for files: a certificate with its intermediates, its key, and the
// authority's certificate. It reports all problems at once.
func LoadMutual(cert, key, authority string) (*tls.Config, error) {
	own, err := pair(cert, key)
	pool := x509.NewCertPool()
	text, wrong := input.Read(authority, mostPEM)
	if wrong == nil && !pool.AppendCertsFromPEM(text) {
		wrong = fmt.Errorf("%s: contains no PEM certificate", authority)
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

// mostPEM is the maximum size of a file of certificates or keys in bytes.
const mostPEM = 1 << 20

// pair loads a certificate with its key.
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

// shakeTLS dials an address, with TLS if c is not nil.
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
