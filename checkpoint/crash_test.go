package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/tests/nightly"
)

var errCrash = errors.New("crashed")

// afterN lets n changes through; the following ones fail as determined by fail.
type afterN struct {
	mu   sync.Mutex
	n    int
	fail func(left int, o vfstest.Op) error // left: 0 at the first, then -1, -2, ...
}

func (a *afterN) before(o vfstest.Op) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !o.Changes() {
		if a.n < 0 {
			return a.fail(a.n, o)
		}
		return nil
	}
	a.n--
	if a.n < 0 {
		return a.fail(a.n+1, o)
	}
	return nil
}

// sharing is what two saves have in common.
type sharing int

const (
	nothing  sharing = iota
	oneBase          // a base folder
	twoBases         // each has a base folder of its own
)

// withSharing runs a test for saves of each kind.
func withSharing(t *testing.T, f func(t *testing.T, how sharing)) {
	for how, name := range []string{"nothing", "one base", "two bases"} {
		t.Run(name, func(t *testing.T) { f(t, sharing(how)) })
	}
}

// twoSaves commits the old model in fsys, and returns options for the next save.
func twoSaves(t *testing.T, fsys vfs.FS, how sharing) (older, newer *model, opt Options) {
	older, newer = newModel(1), newModel(2)
	older.shares, newer.shares = how != nothing, how != nothing
	opt = Options{headerBytes: 4096, Workers: 1, Compress: Auto}
	older.mustSave(t, fsys, "/c", 1, 2, opt)
	if how == oneBase {
		newer.base = older.base
		for _, t := range older.shared() {
			newer.data[t.key()] = older.data[t.key()]
		}
	}
	return older, newer, opt
}

// TestCrashAtEveryOperation crashes the process before each operation of a save and of the
// following deletion. Afterwards the old or the new checkpoint must exist, complete, and another
// save must work.
func TestCrashAtEveryOperation(t *testing.T) {
	nightly.Long(t)
	withSharing(t, crashAtEveryOperation)
}

func crashAtEveryOperation(t *testing.T, how sharing) {
	sawOld, sawNew := 0, 0
	for n := 0; ; n++ {
		mem := &vfstest.Mem{}
		older, newer, opt := twoSaves(t, mem, how)
		crash := &afterN{n: n, fail: func(int, vfstest.Op) error { return errCrash }}
		fsys := vfstest.Hook{FS: mem, Before: crash.before}
		_, err := newer.save(fsys, "/c", 2, 2, 3, opt)
		committed := err == nil
		if committed {
			_, err = PruneIn(fsys, "/c", Keep{Last: 1})
		}
		disk := mem.AfterPowerLoss(mem.Ops(), func(vfstest.Change) vfstest.Outcome { return vfstest.Kept }) // locks are gone, all writes survive
		what, e := oldOrNew(disk, older, newer, committed)
		if e != nil {
			t.Fatalf("crash before change %d: %v", n, e)
		}
		if what == "new" {
			sawNew++
		} else {
			sawOld++
		}
		if e := nextSaveWorks(disk, opt); e != nil {
			t.Fatalf("crash before change %d: %v", n, e)
		}
		if err == nil {
			break // n is past the last operation
		}
	}
	if sawOld < 20 || sawNew < 10 {
		t.Errorf("%d crashes left the old checkpoint, %d the new one: too few operations were seen", sawOld, sawNew)
	}
}

// oldOrNew checks that the latest checkpoint is one of the two, to the bit, and the new one if it
// was committed.
func oldOrNew(fsys vfs.FS, older, newer *model, committed bool) (string, error) {
	list, err := ListIn(fsys, "/c")
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if e.Status == Damaged {
			return "", fmt.Errorf("%+v", e)
		}
	}
	path, err := ResolveIn(fsys, "/c", "latest")
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(filepath.Base(path), "step-00000002") {
		return "new", newer.holds(fsys, path)
	}
	if committed {
		return "", fmt.Errorf("committed, but the latest is %s", path)
	}
	return "old", older.holds(fsys, path)
}

// nextSaveWorks saves step 3, prunes, and checks that nothing else remains.
func nextSaveWorks(fsys vfs.FS, opt Options) error {
	m := newModel(3)
	if _, err := m.save(fsys, "/c", 3, 1, 3, opt); err != nil {
		return err
	}
	if _, err := PruneIn(fsys, "/c", Keep{Last: 1}); err != nil {
		return err
	}
	in, err := fsys.List("/c")
	if err != nil {
		return err
	}
	for _, e := range in {
		if e.Name != lockName && e.Name != "step-00000003" {
			return fmt.Errorf("%s remains", e.Name)
		}
	}
	return m.holds(fsys, "/c/step-00000003")
}

// TestPowerLossAtEveryOperation cuts the power after each operation of a save and of the deletion
// of the old checkpoint, with any part of the unsynced changes surviving, and checks the same.
func TestPowerLossAtEveryOperation(t *testing.T) {
	nightly.Long(t)
	withSharing(t, powerLossAtEveryOperation)
}

func powerLossAtEveryOperation(t *testing.T, how sharing) {
	mem := &vfstest.Mem{}
	older, newer, opt := twoSaves(t, mem, how)
	start := mem.Ops()
	if _, err := newer.save(mem, "/c", 2, 2, 3, opt); err != nil {
		t.Fatal(err)
	}
	committed := mem.Ops()
	if _, err := PruneIn(mem, "/c", Keep{Last: 1}); err != nil {
		t.Fatal(err)
	}
	states, seeds := 0, nightly.Of(1, 12)
	for n := start; n <= mem.Ops(); n++ {
		for name, outcome := range outcomes(seeds) {
			disk := mem.AfterPowerLoss(n, outcome)
			if _, err := oldOrNew(disk, older, newer, n >= committed); err != nil {
				t.Fatalf("power loss after operation %d of %d to %d, %s: %v", n, start, mem.Ops(), name, err)
			}
			states++
		}
		if !nightly.Every(2, n) {
			continue
		}
		disk := mem.AfterPowerLoss(n, outcomes(1)["random 0"])
		if err := nextSaveWorks(disk, opt); err != nil {
			t.Fatalf("power loss after operation %d: next save: %v", n, err)
		}
	}
	t.Logf("%d states of the disk", states)
}

// outcomes returns different ways in which a disk loses changes.
func outcomes(random int) map[string]func(vfstest.Change) vfstest.Outcome {
	all := func(name, content vfstest.Outcome) func(vfstest.Change) vfstest.Outcome {
		return func(c vfstest.Change) vfstest.Outcome {
			if c.Name {
				return name
			}
			return content
		}
	}
	out := map[string]func(vfstest.Change) vfstest.Outcome{
		"nothing survives": all(vfstest.Lost, vfstest.Lost), "all survives": all(vfstest.Kept, vfstest.Kept),
		"names without contents": all(vfstest.Kept, vfstest.Lost), "contents without names": all(vfstest.Lost, vfstest.Kept),
		"torn writes": all(vfstest.Kept, vfstest.Torn),
	}
	for i := range random {
		out[fmt.Sprintf("random %d", i)] = func(c vfstest.Change) vfstest.Outcome { // deterministic for each change
			return vfstest.Outcome(rand.New(rand.NewPCG(uint64(c.Index), uint64(i))).IntN(3))
		}
	}
	return out
}

// TestEveryOperationFailsOnce makes each operation fail once on one rank. Every rank must get the
// error, nothing may be committed or left behind, and the next save must work.
func TestEveryOperationFailsOnce(t *testing.T) {
	nightly.Long(t)
	withSharing(t, everyOperationFailsOnce)
}

func everyOperationFailsOnce(t *testing.T, how sharing) {
	for i, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		if !nightly.Every(2, i+int(how)) {
			continue
		}
		failed := 0
		for n := 0; ; n++ {
			mem := &vfstest.Mem{}
			older, newer, opt := twoSaves(t, mem, how)
			var what string
			once := &afterN{n: n, fail: func(left int, o vfstest.Op) error {
				if left == 0 && o.Changes() && what == "" {
					what = o.Do + " " + o.Name
					return errno
				}
				return nil
			}}
			_, err := newer.save(vfstest.Hook{FS: mem, Before: once.before}, "/c", 2, 2, 3, opt)
			if what == "" {
				break
			}
			if err == nil {
				t.Fatalf("%s failed with %v, but the save did not", what, errno)
			}
			if !strings.Contains(err.Error(), errno.Error()) {
				t.Fatalf("%s failed: %v", what, err)
			}
			failed++
			got, err := oldOrNew(mem, older, newer, false)
			if err != nil || got == "new" && what != "syncdir /c" {
				t.Fatalf("%s failed: %s checkpoint, %v", what, got, err)
			}
			if err := nextSaveWorks(mem, opt); err != nil {
				t.Fatalf("%s failed: next save: %v", what, err)
			}
		}
		if failed < 20 {
			t.Errorf("%d operations failed", failed)
		}
	}
}

// TestReadErrorNamesTensor checks that the error for a block that the disk cannot read names
// tensor and range.
func TestReadErrorNamesTensor(t *testing.T) {
	mem := &vfstest.Mem{}
	m := newModel(1)
	path := m.mustSave(t, mem, "/c", 1, 1, Options{})
	bad := vfstest.Hook{FS: mem, Before: func(o vfstest.Op) error {
		if o.Do == "read" && strings.Contains(o.Name, "data-") && o.Off >= headerBytes {
			return syscall.EIO
		}
		return nil
	}}
	c, err := OpenIn(bad, path)
	if err != nil {
		t.Fatal(err)
	}
	err = m.equals(c)
	var d *Damage
	if !errors.Is(err, syscall.EIO) || !errors.As(err, &d) || d.Name == "" || d.File != "data-00000-000.safetensors" || d.Range.Len() == 0 {
		t.Errorf("got %v", err)
	}
	all, err := Verify(context.Background(), path, Walk{FS: bad})
	if err != nil || len(all) < 10 || !strings.Contains(all[0].Error(), "input/output error") {
		t.Errorf("verify: %v, %v", all, err)
	}
}

// TestRankFailures checks that if a rank fails, dies or is slow, the others get an error and
// nothing is committed.
func TestRankFailures(t *testing.T) {
	broken := errors.New("out of luck")
	for _, c := range []struct {
		what string
		put  func(g *gather, rank int) error
	}{
		{"rank 1 fails", func(_ *gather, rank int) error {
			if rank == 1 {
				return broken
			}
			return nil
		}},
		{"rank 0 fails", func(_ *gather, rank int) error {
			if rank == 0 {
				return broken
			}
			return nil
		}},
		{"rank 2 dies", func(g *gather, rank int) error {
			if rank == 2 {
				g.die()
				return errDead
			}
			return nil
		}},
	} {
		mem := &vfstest.Mem{}
		older, newer, opt := twoSaves(t, mem, nothing)
		opt.FS = mem
		g := newGather(3)
		errs := make([]error, 3)
		for rank := range 3 {
			g.wg.Go(func() {
				r := g.rank(rank)
				_, errs[rank] = r.Together("/c", 2, opt, func(w *Writer) error {
					if err := newer.put(w, rank, 3, 3); err != nil {
						return err
					}
					return c.put(g, rank)
				}, func() (Commit, error) { return Commit{Tensors: newer.tensors, State: []byte(newer.state)}, nil })
			})
		}
		g.wg.Wait()
		for rank, err := range errs {
			// After a death, a rank that is still writing may find that rank 0 has removed the
			// folder.
			if err == nil || c.what != "rank 2 dies" && !strings.Contains(err.Error(), broken.Error()) {
				t.Errorf("%s: rank %d: %v", c.what, rank, err)
			}
		}
		if what, err := oldOrNew(mem, older, newer, false); err != nil || what != "old" {
			t.Errorf("%s: %s, %v", c.what, what, err)
		}
		if err := nextSaveWorks(mem, opt); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
