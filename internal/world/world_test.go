package world_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/internal/launch"
	"zeroth/internal/world"
	"zeroth/shard"
)

// TestMain runs many tests in parallel, because they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// enter opens a world with all of its processes in this one.
func enter(t *testing.T, processes, perProcess int, transport string) []*world.World {
	t.Helper()
	worlds, _ := enterAt(t, processes, perProcess, transport)
	return worlds
}

// selfSigned returns mutual TLS with one self-signed certificate for all processes.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return rendezvous.Mutual(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool)
}

// enterAt is like enter and also returns all addresses that were listened on.
func enterAt(t *testing.T, processes, perProcess int, transport string) (worlds []*world.World, addrs []string) {
	t.Helper()
	return enterWith(t, processes, perProcess, transport, nil)
}

// enterWith is like enterAt with a function that changes each process's configuration; set may be
// nil.
func enterWith(t *testing.T, processes, perProcess int, transport string, set func(*world.Config)) (worlds []*world.World, addrs []string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	worlds = make([]*world.World, processes)
	secure := selfSigned(t)
	errs := make([]error, processes)
	var all sync.WaitGroup
	for p := range processes {
		all.Go(func() {
			c := world.Config{
				Process:    launch.Process{Rank: p, World: processes, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
				PerProcess: perProcess, Transport: transport, Token: []byte("0123456789abcdef"), Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second,
			}
			if p == 0 {
				c.Listener = ln
			}
			if transport == "tls" {
				c.Transport, c.TLS = "tcp", secure
			}
			if set != nil {
				set(&c)
			}
			worlds[p], errs[p] = world.Enter(t.Context(), c)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	addrs = append(addrs, ln.Addr().String())
	for p := range processes {
		if at := worlds[0].At(p); at != "" {
			addrs = append(addrs, at)
		}
	}
	return worlds, addrs
}

// ends holds the groups of a process's ranks.
type ends struct {
	ranks  []collective.Ranks
	saves  []collective.Group
	onLate func([]*collective.Recorder)
	err    error
}

func connect(worlds []*world.World, m shard.Mesh) []ends {
	all := make([]ends, len(worlds))
	var done sync.WaitGroup
	for p, w := range worlds {
		done.Go(func() {
			e := &all[p]
			with, err := w.Connect(m)
			if err != nil {
				e.err = err
				w.Fail(err)
				return
			}
			e.ranks, e.saves, e.onLate = with.Groups, with.Saves(), with.OnLate
		})
	}
	done.Wait()
	return all
}

func closeAll(worlds []*world.World) {
	var all sync.WaitGroup
	for _, w := range worlds {
		all.Go(w.Close)
	}
	all.Wait()
}

// sum returns the sum of the world ranks over a group.
func sum(g collective.Group, rank int) (float32, error) {
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	x := make([]float32, g.Size())
	for i := range x {
		x[i] = float32(rank)
	}
	collective.AllReduce(g, q, device.OfF32(x))
	err := q.Wait()
	return x[0], err
}

// TestGroups checks that every rank has its groups, and that closing a world leaves no goroutine,
// socket or folder.
func TestGroups(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, transport := range []string{"auto", "unix", "tcp", "tls"} {
		t.Setenv("TMPDIR", t.TempDir())
		worlds, addrs := enterAt(t, 3, 2, transport)
		m := shard.Mesh{Shard: 3, Replicate: 2}
		ctx, enough := context.WithCancel(t.Context())
		plain := make(chan error, 1)
		go func() { // a client with the token but without a certificate
			var err error = rendezvous.ErrUntrusted
			if transport == "tls" {
				_, err = rendezvous.Caller{Process: 2, Token: []byte("0123456789abcdef")}.Dial(ctx, "tcp", addrs[1:2], "data "+worlds[0].Self().Session)
			}
			plain <- err
		}()
		got := connect(worlds, m)
		enough()
		if err := <-plain; err == nil {
			t.Error("data connections are not by TLS alone")
		}
		var all sync.WaitGroup
		for p, e := range got {
			if e.err != nil {
				t.Fatal(e.err)
			}
			at := worlds[p].Self().At
			if !slices.Equal(at.Local, []int{2 * p, 2*p + 1}) || at.HostRanks != 6 || worlds[p].Self().Process != p {
				t.Errorf("process %d has ranks %v, beside %d", p, at.Local, at.HostRanks)
			}
			for i, r := range e.ranks {
				rank := 2*p + i
				for g, want := range map[collective.Group]float32{r.World: 15, e.saves[i]: 15, r.Shard: float32(3*(rank/3*3) + 3), r.Replica: float32(2*(rank%3) + 3)} {
					all.Go(func() {
						if s, err := sum(g, rank); err != nil || s != want {
							t.Errorf("%s: rank %d: sum %g of %d ranks, want %g (%v)", transport, rank, s, g.Size(), want, err)
						}
					})
				}
			}
		}
		all.Wait()
		if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left in the folder for temporary files: %v %v", transport, left, err)
		}
		closeAll(worlds)
	}
}

// TestDoneBeforeDataCloses checks that others know that a process is done before it closes its data
// connections: a process that still listens may see them break.
func TestDoneBeforeDataCloses(t *testing.T) {
	worlds := enter(t, 3, 1, "tcp")
	for _, e := range connect(worlds, shard.Mesh{Shard: 3}) {
		if e.err != nil {
			t.Fatal(e.err)
		}
	}
	for p, w := range worlds {
		w.BeforeNetCloses(func() {
			for by, other := range worlds {
				if by != p {
					other.Broke(p)
				}
			}
		})
	}
	closeAll(worlds)
	for p, w := range worlds {
		if w.Err() != nil {
			t.Errorf("process %d: %v", p, w.Err())
		}
	}
}

// TestNameIsWaitedFor checks that joining retries while the name of process 0 does not resolve.
func TestNameIsWaitedFor(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	waits := errors.New("it waits")
	_, err := world.Enter(ctx, world.Config{
		Process: launch.Process{Rank: 0, World: 2, Host: "pod-0.zeroth.invalid", Ports: []int{29400}}, PerProcess: 1, Transport: "auto",
		Token: []byte("0123456789abcdef"), Join: time.Hour, Heartbeat: time.Second, DeadAfter: 20 * time.Second,
		Note: func(string) { cancel(waits) },
	})
	if !errors.Is(err, waits) || !strings.Contains(err.Error(), "pod-0.zeroth.invalid") {
		t.Errorf("error %v", err)
	}
}

// TestFailureIsExplained checks that after a process fails, the others' collectives fail and
// Explain gives its name and reason.
func TestFailureIsExplained(t *testing.T) {
	defer goleak.VerifyNone(t)
	worlds := enter(t, 3, 1, "auto")
	got := connect(worlds, shard.Mesh{Shard: 3, Replicate: 1})
	worlds[1].Fail(errors.New("disk full"))
	var all sync.WaitGroup
	for _, p := range []int{0, 2} {
		all.Go(func() {
			_, err := sum(got[p].ranks[0].World, p)
			var lost collective.ErrPeerLost
			if !errors.As(err, &lost) || lost.Rank != 1 {
				t.Errorf("rank %d: %v, want the loss of rank 1", p, err)
			}
			if why := worlds[p].Explain(err); !strings.HasSuffix(why.Error(), ": disk full") || !errors.Is(why, lost) {
				t.Errorf("rank %d: %v", p, why)
			}
		})
	}
	all.Wait()
	closeAll(worlds)
}

// TestSafe checks that a world reachable from other hosts needs a token that cannot be guessed.
func TestSafe(t *testing.T) {
	token := []byte("0123456789abcdef")
	for _, c := range []struct {
		host, bind string
		token      []byte
		insecure   bool
		want       string
	}{
		{"127.0.0.1", "", nil, false, ""}, {"localhost", "", nil, false, ""}, {"::1", "", nil, false, ""},
		{"192.0.2.1", "", nil, false, "has no token"}, {"127.0.0.1", "192.0.2.1", nil, false, "has no token"}, {"0.0.0.0", "", nil, false, "all addresses of a host"}, {"::", "", token, true, "all addresses of a host"}, {"127.0.0.1", "0.0.0.0", token, false, "all addresses of a host"},
		{"192.0.2.1", "", nil, true, ""}, {"192.0.2.1", "", token, false, ""}, {"127.0.0.1", "", token[:5], false, "has 5 bytes"},
	} {
		err := world.Config{Process: launch.Process{Host: c.host}, Bind: c.bind, Token: c.token, Insecure: c.insecure}.Safe(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestLateConnections checks that nothing listens once a world is training, and that
// connection attempts do not disturb it.
func TestLateConnections(t *testing.T) {
	defer goleak.VerifyNone(t)
	worlds, addrs := enterAt(t, 3, 1, "tcp")
	got := connect(worlds, shard.Mesh{Shard: 3, Replicate: 1})
	over := make(chan struct{})
	var strangers, ranks sync.WaitGroup
	for range 4 {
		strangers.Go(func() {
			for i := range 2500 {
				c, err := net.DialTimeout("tcp", addrs[i%len(addrs)], 20*time.Second)
				if err != nil {
					continue
				}
				about := "data " + worlds[0].Self().Session
				if i%len(addrs) == 0 {
					about = "control "
				}
				if rendezvous.Greet(c, []byte("0123456789abcdef"), about, 1) == nil { // the port may by now belong to another world
					t.Errorf("a rank that is there came in again at %s", addrs[i%len(addrs)])
				}
				c.Close()
			}
		})
	}
	go func() { strangers.Wait(); close(over) }()
	for p, e := range got {
		if e.err != nil {
			t.Fatal(e.err)
		}
		ranks.Go(func() {
			for range 50 {
				if s, err := sum(e.ranks[0].World, p); err != nil || s != 3 {
					t.Errorf("rank %d: sum %g (%v)", p, s, err)
					return
				}
			}
		})
	}
	ranks.Wait()
	<-over
	closeAll(worlds)
}

// TestLateHasAllDump checks that when an operation is late, all processes are asked to dump
// before any of them fails.
func TestLateHasAllDump(t *testing.T) {
	defer goleak.VerifyNone(t)
	worlds := enter(t, 3, 1, "auto")
	got := connect(worlds, shard.Mesh{Shard: 3, Replicate: 1})
	rec := collective.NewRecorder()
	got[1].onLate([]*collective.Recorder{rec})
	g := rec.Watchdog(got[1].ranks[0].World, 100*time.Millisecond, "world", false)
	if _, err := sum(g, 1); !errors.As(err, new(collective.ErrLate)) {
		t.Errorf("error %v, want that the others are late", err)
	}
	for p, w := range worlds {
		select {
		case <-w.Self().Dumps:
		case <-time.After(20 * time.Second):
			t.Errorf("process %d was not asked", p)
		}
	}
	_ = g.Close()
	closeAll(worlds)
}
