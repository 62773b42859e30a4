//go:build unix

package collective

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/tests/nightly"
)

// TestLost checks that only time without questions counts, beyond what a busy machine explains.
func TestLost(t *testing.T) {
	a, at := &Awake{Period: time.Second}, time.Now()
	for i, x := range []struct{ after, want time.Duration }{{0, 0}, {1, 0}, {2, 0}, {7, 6}, {1, 6}, {-1, 6}, {4, 8}} {
		at = at.Add(x.after * time.Second)
		if got := a.lostAt(at); got != x.want*time.Second {
			t.Errorf("question %d: %v, want %ds", i, got, x.want)
		}
	}
}

// A process that was stopped for longer than a deadline does not blame the rank that was computing.
func TestWatchdogOfStoppedProcess(t *testing.T) {
	if os.Getenv("ZEROTH_TEST_STOPPED") != "" {
		compute(t)
		return
	}
	nightly.Long(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWatchdogOfStoppedProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "ZEROTH_TEST_STOPPED=1")
	var said bytes.Buffer
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %v, %v\n%s", status, err, said.String())
	}
	time.Sleep(3 * time.Second)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
}

// compute makes a rank wait for one that needs the processor for a while, after both were stopped.
func compute(t *testing.T) {
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	ranks := NewLocal(2)
	var queues []device.Queue
	broadcast := func(g Group) {
		q := cpu.NewHost(1).NewQueue("comm")
		g.Broadcast(q, device.OfF32(make([]float32, 1)))
		queues = append(queues, q)
	}
	broadcast(Watchdog(ranks[0], 2*time.Second))
	for ranks[0].Missing() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for begin := used(); used() < begin+2e8; {
	}
	broadcast(ranks[1])
	for _, q := range queues {
		if err := q.Wait(); err != nil {
			t.Error(err)
		}
	}
}
