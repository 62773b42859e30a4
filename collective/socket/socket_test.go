package socket_test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// world holds the processes of a test, all in this one.
type world struct {
	nets []*socket.Net
	open atomic.Int32 // groups
}

// pair returns both ends of a connection.
func pair(t testing.TB, ln net.Listener) (a, b net.Conn) {
	t.Helper()
	a, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func listen(t testing.TB, network string) net.Listener {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// newWorld connects processes with perProcess ranks each.
func newWorld(t testing.TB, network string, processes, perProcess int, groups [][]int, hosts ...int) *world {
	t.Helper()
	ln := listen(t, network)
	defer ln.Close()
	return newSharedWorld(t, ln, processes, perProcess, groups, hosts, make([]*socket.Memory, processes))
}

// newSharedWorld connects processes that share memory.
func newSharedWorld(t testing.TB, ln net.Listener, processes, perProcess int, groups [][]int, hosts []int, mem []*socket.Memory) *world {
	t.Helper()
	w := &world{}
	for p := range processes {
		w.nets = append(w.nets, socket.New(socket.Config{Process: p, Processes: processes, PerProcess: perProcess, Groups: groups, Hosts: hosts, Share: mem[p]}))
		for q := range p {
			a, b := pair(t, ln)
			w.nets[p].Add(q, a)
			w.nets[q].Add(p, b)
		}
	}
	return w
}

// close closes all processes concurrently.
func (w *world) close() {
	var all sync.WaitGroup
	for _, n := range w.nets {
		all.Go(n.Close)
	}
	all.Wait()
}

func count(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// ending is a group that closes its world when all of the world's groups have closed.
type ending struct {
	collective.Inspectable
	w    *world
	once sync.Once
}

func (e *ending) Close() error {
	err := e.Inspectable.Close()
	e.once.Do(func() {
		if e.w.open.Add(-1) == 0 {
			go e.w.close()
		}
	})
	return err
}

// opener returns a function that opens groups in a new world, with perProcess ranks per process if
// that divides them.
func opener(t testing.TB, network string, perProcess int, hosts ...int) func(size int) []collective.Group {
	return sharing(t, nil, network, perProcess, hosts...)
}

// sharing is like opener for processes that share memory, unless mem is nil.
func sharing(t testing.TB, mem *socket.Memory, network string, perProcess int, hosts ...int) func(size int) []collective.Group {
	return func(size int) []collective.Group {
		per, how := perProcess, collective.Cheapest
		if size%per != 0 {
			per = 1
		}
		if hosts != nil {
			how = collective.ByHost
		}
		ln := listen(t, network)
		defer ln.Close()
		w := newSharedWorld(t, ln, size/per, per, [][]int{count(size)}, hosts[:min(len(hosts), size/per)], slices.Repeat([]*socket.Memory{mem}, size/per))
		w.open.Store(int32(size))
		var groups []collective.Group
		for r := range size {
			groups = append(groups, &ending{Inspectable: collective.NewWiredBy(w.nets[r/per].Wire(0, r), how), w: w})
		}
		return groups
	}
}

// conforms runs the conformance suite on a group. Only Unix sockets and shared memory run all of it
// by default; other transports skip tests that are long or wait.
func conforms(t *testing.T, open func(size int) []collective.Group) {
	var except []string
	if !nightly.All() {
		except = []string{"Large", "Interleaved", "Reuse", "AbortAnytime", "CloseWhenDone", "Late"}
	}
	collectivetest.Run(t, open, except...)
}

func TestUnixConforms(t *testing.T) {
	nightly.Long(t)
	collectivetest.Run(t, opener(t, "unix", 1))
}

func TestTCPConforms(t *testing.T) { conforms(t, opener(t, "tcp", 1)) }

func TestMixedConforms(t *testing.T) {
	nightly.Long(t)
	conforms(t, opener(t, "unix", 2))
}

func TestMemoryConforms(t *testing.T) {
	nightly.Long(t)
	conforms(t, func(size int) []collective.Group { return opener(t, "unix", size)(size) })
}

// TestLinksConform runs the conformance suite for links, between processes, within one, and over
// shared memory.
func TestLinksConform(t *testing.T) {
	nightly.Long(t)
	for name, per := range map[string]int{"unix": 1, "tcp": 1, "two a process": 2, "one process": 4, "shared": 1} {
		if !nightly.All() && name != "tcp" && name != "shared" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			network, mem := "unix", (*socket.Memory)(nil)
			switch name {
			case "tcp":
				network = name
			case "shared":
				mem = lentFrom(t, 500)
			}
			collectivetest.RunLinks(t, func(m shard.Mesh) (ranks []collective.Ranks, end func()) {
				ln := listen(t, network)
				defer ln.Close()
				processes := (m.World() + per - 1) / per
				w := newSharedWorld(t, ln, processes, per, collective.MeshGroups(m), nil, slices.Repeat([]*socket.Memory{mem}, processes))
				for r := range m.World() {
					ranks = append(ranks, collective.WiredWorld(m, r, w.nets[r/per].Wire))
				}
				return ranks, w.close
			})
		})
	}
}

// TestHostsConform checks that ranks on several hosts give the same bits as on one, for any
// distribution.
func TestHostsConform(t *testing.T) {
	nightly.Long(t)
	for name, hosts := range map[string][]int{
		"pairs": {0, 0, 1, 1, 2, 2, 3, 3}, "one and three and more": {0, 1, 1, 1, 2, 2, 2, 2}, "scattered": {0, 1, 1, 0, 2, 2, 0, 0},
		"five and three": {0, 0, 0, 0, 0, 1, 1, 1}, "in turns": {0, 1, 0, 1, 0, 1, 0, 1}, "threes": {4, 4, 4, 9, 9, 9, 1, 1},
	} {
		if !nightly.All() && name != "one and three and more" && name != "scattered" {
			continue
		}
		t.Run(name, func(t *testing.T) { conforms(t, opener(t, "unix", 1, hosts...)) })
	}
	t.Run("two a process", func(t *testing.T) { conforms(t, opener(t, "tcp", 2, 0, 0, 1, 1, 2, 2, 3, 3)) })
}

// TestMeshOverWires sums world ranks in all groups of a mesh concurrently.
func TestMeshOverWires(t *testing.T) {
	for _, m := range []shard.Mesh{{Shard: 2, Replicate: 2}, {Shard: 1, Replicate: 4}, {Shard: 4, Replicate: 1}} {
		for _, per := range []int{1, 2, 4} {
			w := newWorld(t, "unix", 4/per, per, collective.MeshGroups(m))
			errs := make(chan error)
			jobs := 0
			for r := range 4 {
				n := w.nets[r/per]
				mine, saves := collective.WiredWorld(m, r, n.Wire), collective.NewWired(n.Wire(collective.SavesGroup, r))
				for g, members := range map[collective.Group][]int{mine.World: count(4), saves: count(4), mine.Shard: m.Group(r, shard.Shard), mine.Replica: m.Group(r, shard.Replicate)} {
					jobs++
					go func() { errs <- sumsNames(g, r, members) }()
				}
			}
			for range jobs {
				if err := <-errs; err != nil {
					t.Errorf("%v, %d ranks a process: %v", m, per, err)
				}
			}
			w.close()
		}
	}
}

func sumsNames(g collective.Group, rank int, members []int) error {
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	var want float32
	for _, m := range members {
		want += float32(m)
	}
	for range 20 {
		b := slices.Repeat([]float32{float32(rank)}, 10*g.Size())
		collective.AllReduce(g, q, device.OfF32(b))
		if err := q.Wait(); err != nil {
			return err
		}
		if b[0] != want || b[len(b)-1] != want {
			return fmt.Errorf("rank %d: sum over %v is %g, want %g", rank, members, b[0], want)
		}
	}
	return nil
}
