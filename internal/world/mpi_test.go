//go:build mpi && cgo

package world_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/collective/mpi"
	"zeroth/collective/rendezvous"
	"zeroth/internal/launch"
	"zeroth/internal/world"
)

// TestCarriersAgree checks that a world in which only some processes have MPI fails before
// anything waits.
func TestCarriersAgree(t *testing.T) {
	if err := mpi.Open([]string{"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"}); err != nil {
		t.Skip(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for p, transport := range []string{"mpi", "auto"} {
		all.Go(func() {
			c := world.Config{
				Process:    launch.Process{Rank: p, World: 2, Host: "127.0.0.1", Ports: []int{ln.Addr().(*net.TCPAddr).Port}},
				PerProcess: 1, Transport: transport, Token: []byte("0123456789abcdef"), Heartbeat: 100 * time.Millisecond, DeadAfter: 20 * time.Second,
			}
			if p == 0 {
				c.Listener = ln
			}
			_, err := world.Enter(t.Context(), c)
			if differ := rendezvous.Differences(""); !errors.As(err, &differ) || !strings.Contains(err.Error(), "the transport of data") {
				t.Errorf("process %d: %v", p, err)
			}
		})
	}
	all.Wait()
}
