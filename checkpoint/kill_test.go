package checkpoint

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/tests/nightly"
)

// TestMain also runs the process that TestKill kills, which saves step after step.
func TestMain(m *testing.M) {
	root := os.Getenv("CHECKPOINT_KILL_ROOT")
	if root == "" {
		os.Exit(m.Run())
	}
	first, err := strconv.Atoi(os.Getenv("CHECKPOINT_KILL_FIRST"))
	base := ""
	for step := int64(first); err == nil; step++ {
		m := killedModel(step)
		m.base = base
		if _, err = m.save(vfs.OS{}, root, step, 2, 3, Options{headerBytes: 4096}); err == nil {
			base = m.base
			fmt.Println(step)
			_, err = Prune(root, Keep{Last: 2})
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// killedModel returns the state that the process saves in a step. Its parameters are the same in
// all steps: each process saves them once.
func killedModel(step int64) *model {
	m, all := newModel(uint64(step)), newModel(0)
	m.shares = true
	for _, t := range m.shared() {
		m.data[t.key()] = all.data[t.key()]
	}
	return m
}

// TestKill kills a process that saves and prunes at random instants. Each time the latest
// checkpoint must be intact and at least as new as the last one reported as committed, and the
// next process must continue from there.
func TestKill(t *testing.T) {
	root := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	kills, partial, first := 15, 0, int64(1)
	if !nightly.All() {
		kills = 4
	}
	for range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CHECKPOINT_KILL_ROOT="+root, fmt.Sprintf("CHECKPOINT_KILL_FIRST=%d", first))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		reported := int64(0)
		if lines.Scan() { // after the first commit, at any instant
			fmt.Sscan(lines.Text(), &reported)
		}
		time.Sleep(time.Duration(rnd.IntN(30000)) * time.Microsecond)
		cmd.Process.Kill()
		for lines.Scan() {
			fmt.Sscan(lines.Text(), &reported)
		}
		cmd.Wait()
		list, err := List(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Status == Damaged {
				t.Fatalf("%+v", e)
			}
			if e.Status != Complete {
				partial++
			}
		}
		path, err := Resolve(root, "latest")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if reported == 0 || c.Step < reported {
			t.Fatalf("step %d was committed, the latest is %d", reported, c.Step)
		}
		if err := killedModel(c.Step).holds(vfs.OS{}, path); err != nil {
			t.Fatal(err)
		}
		first = c.Step + 1
	}
	t.Logf("%d kills, %d left something partial, %d steps", kills, partial, first-1)
}
