package vfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zeroth/input"
)

// TestMain lets the test binary be a process that holds a lock until it is
// killed.
func TestMain(m *testing.M) {
	if name := os.Getenv("VFS_LOCK"); name != "" {
		if _, err := (OS{}).Lock(name); err != nil {
			panic(err)
		}
		os.Stdout.WriteString("held\n")
		time.Sleep(time.Minute)
	}
	os.Exit(m.Run())
}

// Who finds a folder locked is told by which process and on which host, and a
// process that was killed is in nobody's way.
func TestLockNamesItsHolder(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), ".lock")
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "VFS_LOCK="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	var held *Locked
	_, err = OS{}.Lock(name)
	if !errors.As(err, &held) || !errors.Is(err, ErrLocked) || held.PID != cmd.Process.Pid || held.Host != host {
		t.Errorf("error %v", err)
	} else if want := "process " + strconv.Itoa(cmd.Process.Pid) + " on host " + strconv.Quote(host); !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	cmd.Process.Kill()
	cmd.Wait()
	lock, err := OS{}.Lock(name)
	if err != nil {
		t.Fatalf("the lock of a process that is dead: %v", err)
	}
	lock.Close()
}

// A lock that its holder removes is not taken by one who had opened it before.
func TestLockOfAFileThatIsGone(t *testing.T) {
	name := filepath.Join(t.TempDir(), ".lock")
	first, err := OS{}.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	late, err := openLock(name)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if there, err := input.Still(late, name); !there || err != nil {
		t.Errorf("the file is there, and is said to be gone (%v)", err)
	}
	if _, err := input.Still(late, strings.Repeat("x", 5000)); err == nil { // or Lock would try for ever
		t.Error("what cannot be looked at is said to be gone")
	}
	os.Remove(name)
	first.Close()
	if err := input.Lock(late); err != nil {
		t.Error(err)
	}
	if there, err := input.Still(late, name); there || err != nil {
		t.Errorf("the file is gone, and is said to be there (%v)", err)
	}
	second, err := OS{}.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := (OS{}).Lock(name); !errors.Is(err, ErrLocked) {
		t.Errorf("two holders: %v", err)
	}
}

// A lock's name on something else is no reason to write into that.
func TestLockTouchesNothingElse(t *testing.T) {
	dir := t.TempDir()
	precious, name := filepath.Join(dir, "precious"), filepath.Join(dir, ".lock")
	if err := os.WriteFile(precious, []byte("words"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, name); err != nil {
		t.Fatal(err)
	}
	if _, err := (OS{}).Lock(name); err == nil {
		t.Error("a link was locked")
	}
	if b, err := os.ReadFile(precious); err != nil || string(b) != "words" {
		t.Errorf("what the link leads to is %q (%v)", b, err)
	}
	long := filepath.Join(dir, "long")
	text := strings.Repeat("words ", 1000)
	if err := os.WriteFile(long, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (OS{}).Lock(long); err == nil || !strings.Contains(err.Error(), "is no lock file of ours") {
		t.Errorf("a long file was locked: %v", err)
	}
	if b, err := os.ReadFile(long); err != nil || string(b) != text {
		t.Error("a long file was written to")
	}
}
