package world_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"zeroth/collective/rendezvous"
	"zeroth/internal/world"
	"zeroth/shard"
)

// TestHosts checks that processes that see each other's files are grouped into hosts.
func TestHosts(t *testing.T) {
	for sees, want := range map[string]string{
		"ab ab ab":    "[0 0 0]",   // one machine
		"ab cd ab":    "[0 1 0]",   // two
		"ax bx cy dy": "[0 0 2 2]", // containers; two of them share one folder, two another
		"ax bx by c":  "[0 0 0 3]", // connected through the process between them
		"- - ab":      "[0 1 2]",   // without information, each process is a host of its own
	} {
		var all []rendezvous.Member
		for _, names := range strings.Fields(sees) {
			m := rendezvous.Member{}
			if names != "-" {
				m.Sees = strings.Split(names, "")
			}
			all = append(all, m)
		}
		if got := fmt.Sprint(world.Numbers(all)); got != want {
			t.Errorf("%s: hosts %s, want %s", sees, got, want)
		}
	}
}

// TestRanksPerHost checks that ranks are counted per host by what processes see, whatever the host's
// name is and even if several such hosts share a kernel. Without that information the name
// decides. Two ranks with the same GPU are reported in any case.
func TestRanksPerHost(t *testing.T) {
	for name, c := range map[string]struct {
		all            []rendezvous.Member
		beside, before string // ranks per host and before this process, for each process
		gpus           string // expected error about GPUs
	}{
		"one host":                            {members("h boot xa 0000:01", "h boot xa 0000:01"), "[4 4]", "[0 2]", "ranks 0 and 1 of host \"h\" share its GPU 0000:01"},
		"one host, four GPUs":                 {members("h boot xa 1,2,3,4", "h boot xa 1,2,3,4"), "[4 4]", "[0 2]", ""},
		"containers that share a folder":      {members("c1 boot xa 1,2,3,4", "c2 boot ya 1,2,3,4"), "[4 4]", "[0 2]", ""},
		"containers that share nothing":       {members("c1 boot xa 1,2", "c2 boot yb 3,4"), "[2 2]", "[0 0]", ""},
		"containers with the same GPUs":       {members("h boot xa 1,2", "h boot yb 1,2"), "[2 2]", "[0 0]", "ranks 0 and 2 of host \"h\" share its GPU 1"},
		"machines of one name":                {members("h boot1 xa 1,2", "h boot2 yb 1,2"), "[2 2]", "[0 0]", ""},
		"one name, and nothing else is known": {members("h - - 1,2,3,4", "h - - 1,2,3,4", "g - - 1,2"), "[4 4 2]", "[0 2 0]", ""},
		"no GPU":                              {members("h boot xa -"), "[2]", "[0]", "process 0 has no GPU"},
	} {
		var beside, before []int
		for p := range c.all {
			w := world.Of(p, 2, c.all)
			at := w.Self().At
			beside, before = append(beside, at.HostRanks), append(before, at.HostOffset)
		}
		err := world.Of(0, 2, c.all).AGPUEach()
		if fmt.Sprint(beside) != c.beside || fmt.Sprint(before) != c.before || c.gpus == "" && err != nil || c.gpus != "" && (err == nil || !strings.Contains(err.Error(), c.gpus)) {
			t.Errorf("%s: beside %v before %v, want %s and %s; GPUs: %v, want %q", name, beside, before, c.beside, c.before, err, c.gpus)
		}
	}
}

// members returns processes, each given as host name, kernel, what it sees, and GPUs, where -
// stands for unknown or none.
func members(lines ...string) (all []rendezvous.Member) {
	some := func(text, between string) []string {
		if text == "-" {
			return nil
		}
		return strings.Split(text, between)
	}
	for _, line := range lines {
		f := strings.Fields(line)
		all = append(all, rendezvous.Member{Host: f[0], Boot: strings.Trim(f[1], "-"), Sees: some(f[2], ""), GPUs: some(f[3], ",")})
	}
	return all
}

// TestDeadSocketsAreRemoved checks that only folders with sockets of killed processes are
// removed.
func TestDeadSocketsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	socket := func(name string, age time.Duration) *net.UnixListener {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, name, "data")
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		then := time.Now().Add(-age)
		if err := os.Chtimes(at, then, then); err != nil {
			t.Fatal(err)
		}
		return ln
	}
	socket("zeroth-1", time.Hour).Close()
	socket("zeroth-2", 0).Close() // so recent that its process may be about to listen
	defer socket("zeroth-3", time.Hour).Close()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "zeroth-4"), 0o700), os.WriteFile(filepath.Join(dir, "zeroth-4", "data"), nil, 0o600), os.Chtimes(filepath.Join(dir, "zeroth-4", "data"), time.Unix(1, 0), time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	socket("other", time.Hour).Close()
	world.RemoveDead(dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 4 || left[0].Name() != "other" || left[1].Name() != "zeroth-2" {
		t.Errorf("left are %v (%v), want all but zeroth-1", left, err)
	}
}

// TestSees checks that a process sees its own folder and the host's, and that only the former
// differs between folders.
func TestSees(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	one, same, other := world.Sees(t.TempDir()), world.Sees(os.TempDir()), world.Sees(t.TempDir())
	if len(one) != 2 || one[0] != same[0] || one[0] != other[0] || one[1] == other[1] || !slices.Equal(same, world.Sees(os.TempDir())) {
		t.Errorf("sees %v, %v, %v", one, same, other)
	}
}

// TestSocketOutOfReach checks that TCP is used, with a notice, if a Unix socket cannot be reached
// or created, and that transport unix fails with the reason.
func TestSocketOutOfReach(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range []struct {
		transport string
		spoil     func(*world.World)
		want      string
	}{
		{"auto", func(w *world.World) { _ = os.RemoveAll(filepath.Dir(w.Members()[0].Unix)) }, "process 0 is on this host, but its Unix socket cannot be reached, so TCP carries data to it"},
		{"auto", nil, "no Unix socket: "},
		{"unix", func(w *world.World) { _ = os.RemoveAll(filepath.Dir(w.Members()[0].Unix)) }, "no such file"},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		if c.spoil == nil {
			t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
		}
		var mu sync.Mutex
		var notes []string
		worlds, _ := enterWith(t, 2, 1, c.transport, func(c *world.Config) {
			c.Note = func(text string) { mu.Lock(); defer mu.Unlock(); notes = append(notes, text) }
		})
		if c.spoil != nil {
			c.spoil(worlds[0])
		}
		got := connect(worlds, shard.Mesh{Shard: 2, Replicate: 1})
		if c.transport == "unix" {
			if err := got[1].err; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			closeAll(worlds)
			continue
		}
		var all sync.WaitGroup
		for p, e := range got {
			if e.err != nil {
				t.Fatal(e.err)
			}
			all.Go(func() {
				if s, err := sum(e.ranks[0].World, p); err != nil || s != 1 || worlds[p].Carrier(1-p) != "tcp" {
					t.Errorf("sum %g over %s: %v", s, worlds[p].Carrier(1-p), err)
				}
			})
		}
		all.Wait()
		closeAll(worlds)
		mu.Lock()
		if !strings.Contains(strings.Join(notes, "\n"), c.want) {
			t.Errorf("told %q, want %q", notes, c.want)
		}
		mu.Unlock()
	}
}
