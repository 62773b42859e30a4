package vfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zeroth/internal/input"
)

// TestMain lets the test binary act as a process that holds a lock until it is killed.
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

// The error for a locked folder names the process and host that hold the lock, and a killed
// process no longer holds it.
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

// A lock file removed by its holder is not acquired by someone who opened it before.
func TestLockOfARemovedFile(t *testing.T) {
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
		t.Errorf("the file exists, but is reported as gone (%v)", err)
	}
	if _, err := input.Still(late, strings.Repeat("x", 5000)); err == nil { // otherwise Lock would retry forever
		t.Error("a file that cannot be examined is reported as gone")
	}
	os.Remove(name)
	first.Close()
	if err := input.Lock(late); err != nil {
		t.Error(err)
	}
	if there, err := input.Still(late, name); there || err != nil {
		t.Errorf("the file is gone, but is reported as existing (%v)", err)
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

// Look neither makes another process's Lock fail nor writes to the file.
func TestLook(t *testing.T) {
	name := filepath.Join(t.TempDir(), ".lock")
	if err := (OS{}).Look(name); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(name, []byte("left"), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := (OS{}).Look(name); err != nil {
		t.Errorf("a lock that nobody holds: %v", err)
	}
	if text, err := os.ReadFile(name); string(text) != "left" {
		t.Errorf("a look wrote %q, %v", text, err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	over, looks := make(chan struct{}), sync.WaitGroup{}
	for range 4 {
		looks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					if err := (OS{}).Look(name); err != nil && !errors.Is(err, ErrLocked) {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	for range 100 {
		l, err := OS{}.Lock(name)
		if err != nil {
			t.Fatalf("while others look: %v", err)
		}
		held := (*Locked)(nil)
		if err := (OS{}).Look(name); !errors.As(err, &held) || held.PID != os.Getpid() {
			t.Errorf("a lock that is held: %v", err)
		}
		l.Close()
	}
	close(over)
	looks.Wait()
}

// Lock writes only to a lock file with the given name.
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
		t.Errorf("the target of the link is %q (%v)", b, err)
	}
	long := filepath.Join(dir, "long")
	text := strings.Repeat("words ", 1000)
	if err := os.WriteFile(long, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (OS{}).Lock(long); err == nil || !strings.Contains(err.Error(), "is not one of our lock files") {
		t.Errorf("a long file was locked: %v", err)
	}
	if b, err := os.ReadFile(long); err != nil || string(b) != text {
		t.Error("a long file was written to")
	}
}
