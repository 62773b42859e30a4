package bench

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective"
	"zeroth/internal/launch"
	"zeroth/internal/world"
)

// worlds returns the processes of a world, here within one process.
func worlds(t *testing.T, n int, transport string) []*world.World {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	all, errs := make([]*world.World, n), make([]error, n)
	each(n, func(p int) {
		c := world.Config{
			Process:    launch.Process{Rank: p, World: n, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
			PerProcess: 1, Transport: transport, Token: []byte("0123456789abcdef"), Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second,
		}
		if p == 0 {
			c.Listener = ln
		}
		all[p], errs[p] = world.Enter(t.Context(), c)
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return all
}

func each(n int, f func(p int)) {
	var all sync.WaitGroup
	for p := range n {
		all.Go(func() { f(p) })
	}
	all.Wait()
}

// TestLinks checks that all processes get the same connection measurements and facts about each
// process.
func TestLinks(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, by := range []string{"unix", "tcp"} {
		all := worlds(t, 3, by)
		var found [3]string
		each(3, func(p int) {
			defer all[p].Close()
			links, said, err := Links(all[p], []float64{float64(p), 7})
			if err != nil || len(links) != 1 || len(said) != 3 {
				t.Errorf("process %d: %v, %v, %v", p, links, said, err)
				return
			}
			l := links[0]
			if l.A != 0 || l.B != 1 || !l.SameHost || l.By != by || !(l.RoundTrip > 0) || !(l.Rate > 0) || said[2][0] != 2 || said[1][1] != 7 {
				t.Errorf("%s: process %d: %+v, %v", by, p, l, said)
			}
			found[p] = fmt.Sprint(links, said)
		})
		if found[0] != found[1] || found[0] != found[2] {
			t.Errorf("%s: the processes learn different things: %q", by, found)
		}
	}
}

// TestLinksOfALostProcess checks that the loss of a process ends the measurement on the others.
func TestLinksOfALostProcess(t *testing.T) {
	defer goleak.VerifyNone(t)
	all := worlds(t, 3, "tcp")
	each(3, func(p int) {
		defer all[p].Close()
		if p == 2 {
			f, err := join(all[p])
			if err != nil {
				t.Error(err)
				return
			}
			f.close()
			return
		}
		if _, _, err := Links(all[p], []float64{1}); !errors.Is(err, collective.ErrClosed) || !strings.Contains(err.Error(), "peer 2 lost") {
			t.Errorf("process %d: %v", p, err)
		}
	})
}

func TestPairs(t *testing.T) {
	for hosts, want := range map[string]string{
		"a": "[]", "a a": "[[0 1]]", "a a a": "[[0 1]]", "a b": "[[0 1]]", "a a b b c": "[[0 1] [0 2] [2 3] [0 4]]", "a b a b": "[[0 1] [0 2] [1 3]]",
	} {
		var numbers []int
		for _, name := range strings.Fields(hosts) {
			numbers = append(numbers, int(name[0]))
		}
		if got := fmt.Sprint(pairs(numbers)); got != want {
			t.Errorf("%s: %s, want %s", hosts, got, want)
		}
	}
	var many []int
	for h := range 1000 {
		many = append(many, h)
	}
	if n := len(pairs(many)); n != mostLinks {
		t.Errorf("%d connections of 1,000 hosts, want %d", n, mostLinks)
	}
}

// TestAcross checks that bandwidths count the bytes that a rank must send, compared with those of
// a stream.
func TestAcross(t *testing.T) {
	defer goleak.VerifyNone(t)
	all := worlds(t, 3, "auto")
	each(3, func(p int) {
		defer all[p].Close()
		f, err := join(all[p])
		if err != nil {
			t.Error(err)
			return
		}
		defer f.close()
		r := &Report{}
		if err := f.size(t.Context(), r, 100_000, Options{Seconds: 0.01}); err != nil || len(r.Lines) != 4 {
			t.Errorf("process %d: %v, %+v", p, err, r)
			return
		}
		const sent = 4 * 8333 * 2 // 8,333 elements to each of two
		for i, l := range r.Lines {
			want := sent / l.Seconds
			if strings.HasPrefix(l.Name, "all-reduce") {
				want *= 2
			}
			if math.Abs(l.Rate/want-1) > 1e-9 || l.Samples < 2 || !strings.HasSuffix(l.Name, ", 3 processes, 97.7 KiB") || i > 0 && l.Limit != r.Lines[0].Rate {
				t.Errorf("process %d: %+v, want %g B/s", p, l, want)
			}
		}
		if between := f.between(); between != "3 processes on one host, over unix" {
			t.Error(between)
		}
	})
}
