//go:build mpi && cgo

package mpi_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zeroth/collective"
	"zeroth/collective/collectivetest"
	"zeroth/collective/mpi"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/shard"
	"zeroth/tests/nightly"
)

// launcher starts processes under an MPI.
type launcher struct {
	path, library string
	args          []string
}

var openMPI = []string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}

// launchers returns Debian's Open MPI and MPICH or, instead, one from PyPI installed in a virtual
// environment, with each of its ABIs.
func launchers() (all []launcher) {
	dir := os.Getenv("ZEROTH_MPI_WHEEL")
	if dir == "" {
		return []launcher{{"mpirun.openmpi", "libmpi.so.40", openMPI}, {"mpiexec.mpich", "libmpich.so.12", nil}}
	}
	for name, args := range map[string][]string{"libmpi.so.40": openMPI, "libmpi.so.12": nil, "libmpi_abi.so.1": nil} {
		library := filepath.Join(dir, "lib", name)
		if _, err := os.Stat(library); err == nil {
			all = append(all, launcher{filepath.Join(dir, "bin", "mpiexec"), library, args})
		}
	}
	return all
}

// part returns the rank of this process and the size of its world under MPI; size 0 means none.
func part() (rank, size int) {
	if os.Getenv("ZEROTH_MPI_TEST") == "" {
		return 0, 0
	}
	for _, by := range []string{"OMPI_COMM_WORLD_", "PMI_"} {
		rank, err := strconv.Atoi(os.Getenv(by + "RANK"))
		size, bad := strconv.Atoi(os.Getenv(by + "SIZE"))
		if err == nil && bad == nil {
			return rank, size
		}
	}
	return 0, 0
}

// TestMain also runs processes of a world under MPI.
func TestMain(m *testing.M) {
	rank, size := part()
	if size == 0 {
		os.Exit(m.Run())
	}
	err := mpi.Open([]string{os.Getenv("ZEROTH_MPI")})
	if err == nil {
		err = mpi.Join(rank, size)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	code := m.Run()
	if code == 0 {
		mpi.Leave(nil)
	}
	time.AfterFunc(time.Minute, func() { panic("MPI hangs while it shuts down") })
	mpi.Exit(code)
	os.Exit(code)
}

// under runs tests of this program under each available MPI, in worlds of these sizes.
func under(t *testing.T, tests string, sizes ...int) {
	for _, l := range launchers() {
		path, err := exec.LookPath(l.path)
		if err != nil {
			t.Logf("left out: no %s", l.path)
			continue
		}
		for _, n := range sizes {
			t.Run(fmt.Sprint(filepath.Base(l.path), " ", filepath.Base(l.library), " ", n), func(t *testing.T) {
				// A process that hangs, whose stacks tell where, is distinguished from a launcher that does.
				args := append(l.args[:len(l.args):len(l.args)], "-n", strconv.Itoa(n), os.Args[0], "-test.run", tests, "-test.timeout", "4m")
				limit, stop := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("the launcher hangs"))
				defer stop()
				cmd := exec.CommandContext(limit, path, args...)
				cmd.WaitDelay = time.Second
				cmd.Env = append(os.Environ(), "ZEROTH_MPI_TEST=1", "ZEROTH_MPI="+l.library)
				out, err := cmd.CombinedOutput()
				if err != nil || strings.Count(string(out), "PASS") < n {
					t.Errorf("%v: %v %v\n%s", args, err, context.Cause(limit), out)
				}
			})
		}
	}
}

// TestProcessWithoutALibrary checks that a process whose library cannot be loaded reports it and
// exits like other failures; joining without a library is a bug and panics.
func TestProcessWithoutALibrary(t *testing.T) {
	if rank, size := part(); size > 0 {
		t.Skipf("under MPI (rank %d)", rank)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), "ZEROTH_MPI_TEST=1", "PMI_RANK=0", "PMI_SIZE=1", "ZEROTH_MPI=/none/libmpi.so")
	out, _ := cmd.CombinedOutput() // the exit code is checked
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(out), "no MPI library: /none/libmpi.so: cannot open") {
		t.Errorf("exit code %d: %s", code, out)
	}
	defer func() {
		if why := recover(); why != "mpi: Join before Open" {
			t.Errorf("join without a library: %v", why)
		}
	}()
	_ = mpi.Join(0, 1)
}

// TestUnknownABIIsRefused checks that libraries with unknown handle types are refused by name:
// another version of the standard ABI, or an unknown implementation.
func TestUnknownABIIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ code, want string }{
		"no MPI":           {"int x;", "has no MPI_Get_library_version"},
		"another standard": {says("Strange MPI 1") + "int MPI_Abi_get_version(int *a, int *b) { *a = 2; *b = 1; return 0; }", `is "Strange MPI 1", with the standard ABI 2.1: want Open MPI`},
		"before it":        {says("MPICH 4.3") + "int MPI_Abi_get_version(int *a, int *b) { *a = 0; *b = 1; return 0; }", "with the standard ABI 0.1"},
		"none":             {says("Strange MPI") + "int MPI_Abi_get_version(int *a, int *b) { *a = *b = -1; return 0; }", "with an ABI of its own"},
		"half an Open MPI": {says("Open MPI") + "int ompi_mpi_comm_world;", "with Open MPI's ABI"},
		"says nothing":     {functions + "int MPI_Get_library_version(char *s, int *n) { return 1; }", "does not say what it is"},
	} {
		if err := mpi.Open([]string{library(t, c.code)}); err == nil || !strings.Contains(err.Error(), c.want) || mpi.Version() != "" {
			t.Errorf("%s: %v, want %q; version %q", name, err, c.want, mpi.Version())
		}
	}
}

// TestLibraryAborts checks that a library that calls abort ends its process as a failure, with one
// line instead of the goroutines' stacks, which a SIGABRT from elsewhere still prints.
func TestLibraryAborts(t *testing.T) {
	if rank, size := part(); size > 0 {
		t.Skipf("under MPI (rank %d)", rank)
	}
	for does, stacks := range map[string]bool{"abort()": false, "puts(\"here\"); fflush(stdout); for (;;) pause()": true} {
		code := "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n" + says("MPICH 4.3")
		code = strings.Replace(code, "F(Initialized)", "int MPI_Initialized(int *x) { "+does+"; }", 1)
		cmd := exec.Command(os.Args[0], "-test.run", "^$")
		cmd.Env = append(os.Environ(), "ZEROTH_MPI_TEST=1", "PMI_RANK=0", "PMI_SIZE=1", "ZEROTH_MPI="+library(t, code))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 5)); err == nil { // it has started
			err = cmd.Process.Signal(syscall.SIGABRT)
		}
		_ = cmd.Wait() // the exit code is checked
		quiet := cmd.ProcessState.ExitCode() == 1 && strings.Contains(said.String(), "the MPI library aborted this process")
		if hasStacks := strings.Contains(said.String(), "goroutine "); hasStacks != stacks || quiet == stacks {
			t.Errorf("%s: %v, with stacks: %v\n%s", does, cmd.ProcessState, hasStacks, &said)
		}
	}
}

// functions defines the functions that a library must have, of which only the version is called.
const functions = `#define F(f) int MPI_##f(void) { return 1; }
F(Init_thread) F(Initialized) F(Finalize) F(Comm_rank) F(Comm_size) F(Comm_set_errhandler) F(Error_string)
F(Isend) F(Irecv) F(Cancel) F(Test) F(Test_cancelled) F(Get_count)
`

// says returns an MPI with that version string.
func says(version string) string {
	return functions + fmt.Sprintf("int MPI_Get_library_version(char *s, int *n) { *n = __builtin_sprintf(s, \"%%s\", %q); return 0; }\n", version)
}

// library compiles C code.
func library(t *testing.T, code string) string {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "libmpi.so")
	cmd := exec.Command(cmp.Or(os.Getenv("CC"), "cc"), "-shared", "-fPIC", "-o", lib, "-xc", "-")
	cmd.Stdin = strings.NewReader(code)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return lib
}

func TestConforms(t *testing.T) {
	sizes := []int{1, 2, 3, 4}
	if !nightly.All() {
		sizes = []int{3} // some processes have several ranks, some one, some none
	}
	under(t, "^TestRankConforms$", sizes...)
}

func TestMesh(t *testing.T) { under(t, "^TestRankMesh$", []int{4, 2}[:nightly.Of(1, 2)]...) }

// ending is a group that closes its Net when all of the Net's groups have closed.
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

// TestRankConforms runs one process's part of the conformance suite, with the ranks of a group
// distributed over the processes.
func TestRankConforms(t *testing.T) {
	me, processes := part()
	if processes == 0 {
		t.Skip("not under MPI")
	}
	var closing sync.WaitGroup
	collectivetest.Run(t, func(size int) []collective.Group {
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

// TestRankMesh sums world ranks in all groups of a mesh concurrently.
func TestRankMesh(t *testing.T) {
	me, processes := part()
	if processes == 0 {
		t.Skip("not under MPI")
	}
	for _, m := range []shard.Mesh{{Shard: 2, Replicate: 4}, {Shard: 1, Replicate: 8}, {Shard: 8, Replicate: 1}} {
		per := m.World() / processes
		n := mpi.New(mpi.Config{Process: me, PerProcess: per, Groups: collective.MeshGroups(m)})
		var all sync.WaitGroup
		for r := me * per; r < (me+1)*per; r++ {
			mine, saves := collective.WiredWorld(m, r, n.Wire), collective.NewWired(n.Wire(collective.SavesGroup, r))
			for g, want := range map[collective.Group]float32{mine.World: 28, saves: 28, mine.Shard: sum(m.Group(r, shard.Shard)), mine.Replica: sum(m.Group(r, shard.Replicate))} {
				all.Go(func() { reduces(t, g, float32(r), want) })
			}
		}
		all.Wait()
		if !n.Close() {
			t.Error("a peer is missed, and none was lost")
		}
	}
}

func TestLinks(t *testing.T) { under(t, "^TestRankLinks$", []int{3, 2, 4}[:nightly.Of(1, 3)]...) }

// TestRankLinks runs one process's part of the conformance suite for links.
func TestRankLinks(t *testing.T) {
	me, processes := part()
	if processes == 0 {
		t.Skip("not under MPI")
	}
	collectivetest.RunLinks(t, func(m shard.Mesh) ([]collective.Ranks, func()) {
		size := m.World()
		per := (size + processes - 1) / processes
		n := mpi.New(mpi.Config{Process: me, PerProcess: per, Groups: collective.MeshGroups(m)})
		ranks := make([]collective.Ranks, size)
		for r := me * per; r < min(size, (me+1)*per); r++ {
			ranks[r] = collective.WiredWorld(m, r, n.Wire)
		}
		return ranks, func() { n.Close() }
	})
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
