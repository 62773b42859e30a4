package rendezvous_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/tests/nightly"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "job"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var der []byte
	der, a.key = signed(t, tmpl, nil)
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

// signed returns a certificate signed by an authority, or self-signed if it is nil, and its key.
func signed(t testing.TB, tmpl *x509.Certificate, by *authority) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, with := tmpl, key
	if by != nil {
		parent, with = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, with)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// member returns a certificate of the authority, modified by change.
func (a *authority) member(t testing.TB, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(tmpl)
	}
	der, key := signed(t, tmpl, a)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) mutual(t testing.TB) *tls.Config {
	return rendezvous.Mutual(a.member(t, nil), a.pool)
}

// TestMutual checks that processes with certificates of one authority join, with a token or
// without.
func TestMutual(t *testing.T) {
	ca := newAuthority(t)
	for _, secret := range [][]byte{nil, token} {
		stars := joined(t, 3, func(_ int, c *rendezvous.Config) { c.Token, c.TLS = secret, ca.mutual(t) })
		for p, err := range agree(t, stars, func(int) []rendezvous.Fact { return []rendezvous.Fact{{Name: "job", Value: "a"}} }) {
			if err != nil || stars[p].Session != stars[0].Session {
				t.Errorf("process %d: %v", p, err)
			}
		}
		closeAll(stars)
	}
}

// TestUntrusted checks that a process without a certificate, or with one that is from another
// authority, expired or for another usage, is refused, and that both sides report why.
func TestUntrusted(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	expired := ca.member(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	server := ca.member(t, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] })
	for name, c := range map[string]struct {
		host, guest *tls.Config
		says, notes string // on the guest; note on process 0
	}{
		"authority":   {ca.mutual(t), other.mutual(t), "its certificate: ", "rejected this process's certificate"},
		"half":        {ca.mutual(t), rendezvous.Mutual(other.member(t, nil), ca.pool), "it rejected this process's certificate", "signed by unknown authority"},
		"expired":     {ca.mutual(t), rendezvous.Mutual(expired, ca.pool), "it rejected this process's certificate", "has expired"},
		"for servers": {ca.mutual(t), rendezvous.Mutual(server, ca.pool), "it rejected this process's certificate", "incompatible key usage"},
		"plain guest": {ca.mutual(t), nil, "it uses TLS, but this process does not", "it does not use TLS"},
		"plain host":  {nil, ca.mutual(t), "it does not use TLS", "it uses TLS, but this process does not"},
	} {
		ln, notes, hosted := listen(t), make(chan string, 16), make(chan error, 1)
		ctx, enough := context.WithCancel(t.Context())
		host, guest := config(0, 2, ln), config(1, 2, ln)
		host.TLS, host.Wait, guest.TLS, guest.Wait = c.host, time.Minute, c.guest, time.Minute
		host.Note = func(text string) { notes <- text }
		go func() { _, err := rendezvous.Join(ctx, host); hosted <- err }()
		if _, err := rendezvous.Join(t.Context(), guest); !errors.Is(err, rendezvous.ErrUntrusted) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: the guest: %v", name, err)
		}
		if said := <-notes; !strings.Contains(said, "refused a connection from 127.0.0.1:") || !strings.Contains(said, c.notes) {
			t.Errorf("%s: process 0 tells %q", name, said)
		}
		enough()
		if err := <-hosted; err == nil || !strings.Contains(err.Error(), "ranks 2,3 have not joined") {
			t.Errorf("%s: process 0: %v", name, err)
		}
	}
}

// connected returns both ends of a connection through a door.
func connected(t testing.TB, c *tls.Config) (dials, accepts net.Conn) {
	t.Helper()
	ln := listen(t)
	door := rendezvous.NewDoor(rendezvous.Over(ln, c), token, "data", 2, nil)
	defer door.Close()
	come := make(chan net.Conn, 1)
	go func() {
		g, err := door.Next(context.Background())
		if err != nil {
			t.Error(err)
		}
		come <- g.Conn
	}()
	a, err := rendezvous.Caller{Process: 1, Token: token, TLS: c}.Dial(t.Context(), "tcp", []string{ln.Addr().String()}, "data")
	if err != nil {
		t.Fatal(err)
	}
	return a, <-come
}

// TestSecuredWritesAreInterrupted checks that a write interrupted by a deadline can be resumed, and
// that Close sends the rest.
func TestSecuredWritesAreInterrupted(t *testing.T) {
	nightly.Long(t)
	a, b := connected(t, newAuthority(t).mutual(t))
	defer b.Close()
	want := make([]byte, 32<<20) // more than sockets buffer
	_, _ = rand.Read(want)
	if err := a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := a.Write(want)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == len(want) {
		t.Fatalf("a peer that does not read: %d bytes, %v", n, err)
	}
	if some, err := a.Write(want[n:]); some != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("after the deadline: %d bytes, %v", some, err)
	}
	_ = a.SetWriteDeadline(time.Time{})
	go func() {
		if some, err := a.Write(want[n:]); some != len(want)-n || err != nil {
			t.Errorf("the rest: %d bytes, %v", some, err)
		}
		_ = a.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes arrive (%v), or others", len(got), err)
	}
	if _, err := b.Write([]byte("bye")); err != nil {
		t.Error(err)
	}
	_ = b.Close()
	if got, err := io.ReadAll(a); err != nil || string(got) != "bye" {
		t.Errorf("before the end: %q, %v", got, err)
	}
	_ = a.Close()
	if _, err := a.Write(want); err == nil {
		t.Error("a closed connection takes bytes")
	}
}

// TestSecuredCloses checks that Close does not wait for a peer that does not read.
func TestSecuredCloses(t *testing.T) {
	a, b := connected(t, newAuthority(t).mutual(t))
	defer b.Close()
	_ = a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	_, _ = a.Write(make([]byte, 32<<20))
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("it waits")
	}
	_ = a.Close()
}

// TestLoadMutual checks that unsuitable files are refused when loaded.
func TestLoadMutual(t *testing.T) {
	t.Chdir(t.TempDir())
	ca, other := newAuthority(t), newAuthority(t)
	write := func(name string, c tls.Certificate) {
		key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, ".key": {Type: "PRIVATE KEY", Bytes: key}} {
			if err := os.WriteFile(name+ext, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("good", ca.member(t, nil))
	write("foreign", other.member(t, nil))
	write("old", ca.member(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }))
	write("ca", tls.Certificate{Certificate: [][]byte{ca.cert.Raw}, PrivateKey: ca.key})
	if err := os.WriteFile("huge", make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][4]string{
		{"good.crt", "good.key", "ca.crt", ""},
		{"good.crt", "foreign.key", "ca.crt", "good.crt and foreign.key: tls: private key does not match"},
		{"foreign.crt", "foreign.key", "ca.crt", "foreign.crt: the other processes would refuse it"},
		{"old.crt", "old.key", "ca.crt", "has expired"},
		{"good.crt", "good.key", "good.key", "good.key: contains no PEM certificate"},
		{"none.crt", "good.key", "none", "none.crt"},
		{"good.crt", "good.key", "none", "open none"},
		{"good.crt", "good.key", "huge", "huge: it is larger than the limit of 1048576 bytes"},
		{"huge", "good.key", "ca.crt", "huge: it is larger than the limit of 1048576 bytes"},
		{"good.crt", "/dev/zero", "ca.crt", "/dev/zero: it is a device, not a regular file"},
	} {
		got, err := rendezvous.LoadMutual(c[0], c[1], c[2])
		if (err == nil) != (c[3] == "") || err != nil && !strings.Contains(err.Error(), c[3]) || (got == nil) != (err != nil) {
			t.Errorf("%v: %v", filepath.Join(c[:3]...), err)
		}
	}
}

// BenchmarkWire sends over loopback in one direction, with and without TLS: the cost of
// parallel.tls over TCP.
func BenchmarkWire(b *testing.B) {
	for name, c := range map[string]*tls.Config{"plain": nil, "tls": newAuthority(b).mutual(b)} {
		b.Run(name, func(b *testing.B) {
			from, to := connected(b, c)
			defer to.Close()
			defer from.Close()
			chunk, in := make([]byte, 1<<20), make([]byte, 1<<20)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				done := make(chan error, 1)
				go func() { _, err := io.ReadFull(to, in); done <- err }()
				if _, err := from.Write(chunk); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
