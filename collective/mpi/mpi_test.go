//go:build mpi && cgo

package mpi_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zeroth/collective"
	"zeroth/collective/conformance"
	"zeroth/collective/mpi"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
)

// launchers start processes under an MPI.
var launchers = []struct {
	name, library string
	args          []string
	rank, size    string
}{
	{"mpirun.openmpi", "libmpi.so.40", []string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"mpiexec.mpich", "libmpich.so.12", nil, "PMI_RANK", "PMI_SIZE"},
}

// part is which process this is of a world under MPI; size 0: none.
func part() (rank, size int, library string) {
	if os.Getenv("ZEROTH_MPI_TEST") == "" {
		return 0, 0, ""
	}
	for _, l := range launchers {
		rank, err := strconv.Atoi(os.Getenv(l.rank))
		size, bad := strconv.Atoi(os.Getenv(l.size))
		if err == nil && bad == nil {
			return rank, size, l.library
		}
	}
	return 0, 0, ""
}

// TestMain is also a process of a world under MPI.
func TestMain(m *testing.M) {
	rank, size, library := part()
	if size == 0 {
		os.Exit(m.Run())
	}
	if err := errors.Join(mpi.Open([]string{library}), mpi.Join(rank, size)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	code := m.Run()
	if code == 0 {
		mpi.Leave(nil)
	}
	os.Exit(code)
}

// under runs tests of this program in so many processes under each MPI that is here.
func under(t *testing.T, tests string, sizes ...int) {
	for _, l := range launchers {
		path, err := exec.LookPath(l.name)
		if err != nil {
			t.Logf("left out: no %s", l.name)
			continue
		}
		for _, n := range sizes {
			t.Run(fmt.Sprint(l.name, n), func(t *testing.T) {
				args := append(l.args, "-n", strconv.Itoa(n), os.Args[0], "-test.run", tests, "-test.short="+strconv.FormatBool(testing.Short()))
				cmd := exec.Command(path, args...)
				cmd.Env = append(os.Environ(), "ZEROTH_MPI_TEST=1")
				out, err := cmd.CombinedOutput()
				if err != nil || strings.Count(string(out), "PASS") < n {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			})
		}
	}
}

// A library of the standard ABI is refused by name; one that has MPI 5's functions and
// another ABI is looked at further.
func TestStandardABIIsRefused(t *testing.T) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	for major, want := range map[int]string{1: "has the standard ABI of MPI 5", -1: "has no MPI_Get_library_version"} {
		lib := filepath.Join(t.TempDir(), "libmpi_abi.so")
		cmd := exec.Command(cc, "-shared", "-fPIC", "-o", lib, "-xc", "-")
		cmd.Stdin = strings.NewReader(fmt.Sprintf("int MPI_Abi_get_version(int *major, int *minor) { *major = *minor = %d; return 0; }", major))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := mpi.Open([]string{lib}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ABI %d: %v, want %q", major, err, want)
		}
	}
}

func TestConforms(t *testing.T) {
	sizes := []int{1, 2, 3, 4}
	if testing.Short() {
		sizes = []int{3} // some processes have several ranks, some one, some none
	}
	under(t, "^TestRankConforms$", sizes...)
}

func TestMesh(t *testing.T) { under(t, "^TestRankMesh$", 2, 4) }

// ending is a group that closes its Net when all of the Net's have closed.
type ending struct {
	collective.Inspectable
	net     *mpi.Net
	open    *atomic.Int32
	once    sync.Once
	closing *sync.WaitGroup
}

func (e *ending) Close() error {
	err := e.Inspectable.Close()
	e.once.Do(func() {
		if e.open.Add(-1) == 0 {
			e.closing.Go(func() { e.net.Close() })
		}
	})
	return err
}

// TestRankConforms is one process's part of the conformance tests: the ranks of a
// group are spread over the processes, several to each where there are more.
func TestRankConforms(t *testing.T) {
	me, processes, _ := part()
	if processes == 0 {
		t.Skip("not under MPI")
	}
	var closing sync.WaitGroup
	conformance.Run(t, func(size int) []collective.Group {
		closing.Wait()
		per := (size + processes - 1) / processes
		names := make([]int, size)
		for r := range names {
			names[r] = r
		}
		n := mpi.New(mpi.Config{Process: me, PerProcess: per, Groups: [][]int{names}})
		groups, open := make([]collective.Group, size), new(atomic.Int32)
		for r := me * per; r < min(size, (me+1)*per); r++ {
			open.Add(1)
			groups[r] = &ending{Inspectable: collective.NewWired(n.Wire(0, r)), net: n, open: open, closing: &closing}
		}
		return groups
	})
}

// TestRankMesh sums world ranks in all groups of a mesh at once.
func TestRankMesh(t *testing.T) {
	me, processes, _ := part()
	if processes == 0 {
		t.Skip("not under MPI")
	}
	for _, m := range []shard.Mesh{{Shard: 2, Replicate: 4}, {Shard: 1, Replicate: 8}, {Shard: 8, Replicate: 1}} {
		per := m.World() / processes
		n := mpi.New(mpi.Config{Process: me, PerProcess: per, Groups: collective.MeshGroups(m)})
		var all sync.WaitGroup
		for r := me * per; r < (me+1)*per; r++ {
			mine, saves := collective.WiredWorld(m, r, n.Wire), collective.NewWired(n.Wire(collective.SavesGroup, r))
			for g, want := range map[collective.Group]float32{mine.World: 28, saves: 28, mine.Shard: sum(m.ShardGroup(r)), mine.Replica: sum(m.ReplicaGroup(r))} {
				all.Go(func() { reduces(t, g, float32(r), want) })
			}
		}
		all.Wait()
		if !n.Close() {
			t.Error("a peer is missed, and none was lost")
		}
	}
}

func sum(ranks []int) (s float32) {
	for _, r := range ranks {
		s += float32(r)
	}
	return s
}

func reduces(t *testing.T, g collective.Group, mine, want float32) {
	d := cpu.NewHost(1)
	defer d.Close()
	q := d.NewQueue("comm")
	defer q.Close()
	for range 20 {
		b := make([]float32, 10*g.Size())
		for i := range b {
			b[i] = mine
		}
		collective.AllReduce(g, q, device.OfF32(b))
		if err := q.Wait(); err != nil || b[0] != want || b[len(b)-1] != want {
			t.Errorf("rank %g: sum %g, want %g (%v)", mine, b[0], want, err)
		}
	}
}
