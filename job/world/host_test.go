package world_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"zeroth/collective/rendezvous"
	"zeroth/job/world"
	"zeroth/shard"
)

// A host is processes of which each sees what another does.
func TestHosts(t *testing.T) {
	for sees, want := range map[string]string{
		"ab ab ab":    "[0 0 0]",   // one machine
		"ab cd ab":    "[0 1 0]",   // two
		"ax bx cy dy": "[0 0 2 2]", // containers; two of them share one folder, two another
		"ax bx by c":  "[0 0 0 3]", // by one in between
		"- - ab":      "[0 1 2]",   // who does not know is by itself
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

// Folders of one process are told apart, and what it sees beside them is one thing.
func TestSees(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	one, same, other := world.Sees(t.TempDir()), world.Sees(os.TempDir()), world.Sees(t.TempDir())
	if len(one) != 2 || one[0] != same[0] || one[0] != other[0] || one[1] == other[1] || !slices.Equal(same, world.Sees(os.TempDir())) {
		t.Errorf("sees %v, %v, %v", one, same, other)
	}
}

// A socket that is not there, and a folder in which there can be none, have TCP carry the
// data, and a line says so; who wants Unix sockets alone hears why not.
func TestSocketOutOfReach(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range []struct {
		transport string
		spoil     func(*world.World)
		want      string
	}{
		{"auto", func(w *world.World) { _ = os.RemoveAll(filepath.Dir(w.Members()[0].Unix)) }, "process 0 is on this host, and its Unix socket cannot be reached: TCP carries data to it"},
		{"auto", nil, "no Unix socket: "},
		{"unix", func(w *world.World) { _ = os.RemoveAll(filepath.Dir(w.Members()[0].Unix)) }, "no such file"},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		if c.spoil == nil {
			t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
		}
		var mu sync.Mutex
		var notes []string
		worlds, _ := enterWith(t, 2, 1, c.transport, func(text string) { mu.Lock(); defer mu.Unlock(); notes = append(notes, text) })
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
