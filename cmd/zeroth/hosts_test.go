//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/internal/input/s3/s3test"
	"zeroth/internal/launch/launchtest"
	"zeroth/tests/nightly"
)

// TestLaunchOnHosts checks that processes on several hosts, to which the program is copied, give
// the bits of one process, that their output names them, and that the token is in no process's
// arguments.
func TestLaunchOnHosts(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	ssh := "--ssh=" + launchtest.SSH(t, ".")
	t.Setenv("ZEROTH_TOKEN", strings.Repeat("secret-token", 3))
	sets := append(append([]string(nil), launched4...), "--set", "train.steps=4")
	zeroth(t, 0, append(append([]string(nil), sets...), "--out", "one")...)
	if err := os.WriteFile("hosts", []byte("localhost slots=1 # the first\n\n127.0.0.1:3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	done, saw := make(chan struct{}), make(chan string, 1)
	go func() {
		found := ""
		for {
			all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, file := range all {
				if text, _ := os.ReadFile(file); strings.Contains(string(text), "secret-token") {
					found = string(text)
				}
			}
			select {
			case <-done:
				saw <- found
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	out, errs := process(t, 0, append(append([]string{"launch", "--hostfile", "hosts", "--copy", ssh, "--"}, sets...), "--out", "four", "--log-all-ranks")...)
	close(done)
	if found := <-saw; found != "" {
		t.Errorf("the token is in the arguments %q", found)
	}
	if outcomeOf(t, "four") != outcomeOf(t, "one") {
		t.Error("other bits than one process")
	}
	if strings.Count(out, "done: 4 steps") != 1 || strings.Contains(out+errs, "secret-token") {
		t.Errorf("%s%s", out, errs)
	}
	contains(t, out, "[1 on 127.0.0.1] ranks   4", "[3 on 127.0.0.1] ranks   4")
	if copies, err := filepath.Glob(".cache/zeroth/*"); err != nil || len(copies) != 1 {
		t.Errorf("copies of the program: %v, %v", copies, err)
	}
}

// TestHostsWithout checks that a host without the program, the folder or a connection is named.
func TestHostsWithout(t *testing.T) {
	nightly.Long(t)
	inFolder(t)
	ssh := "--ssh=" + launchtest.SSH(t, ".")
	run := func(code int, with ...string) string {
		_, errs := process(t, code, append(append([]string{"launch", "--hosts", "localhost"}, with...), "--", "train", "tiny.yaml", "--out", "r")...)
		return errs
	}
	t.Setenv("HOME", t.TempDir())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(read(t, "reach"), `sh -c "$2"`, `cp `+exe+` other; echo >>other; sh -c "./other agent"`, 1)
	if err := os.WriteFile("another", []byte(other), 0o755); err != nil {
		t.Fatal(err)
	}
	contains(t, run(2, "--ssh=./another"), "has another version of zeroth", "install the same, or use launch --copy")
	if err := os.WriteFile("down-localhost", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, run(1, ssh), "No route to host", "process 0 of 1 on localhost ended by a lost connection")
	contains(t, run(1, ssh, "--copy"), "host localhost: exit status 255: connect to host localhost: No route to host")
}

// TestLostHost checks that a lost host is left out with --min-ranks, even if it ran process 0.
func TestLostHost(t *testing.T) {
	nightly.Long(t)
	for _, lost := range []string{"localhost", "127.0.0.1"} {
		t.Run(lost, func(t *testing.T) {
			s := inShell(t, "ZEROTH_FAULT=0 clock 5ms")
			ssh := "--ssh=" + launchtest.SSH(t, s.dir)
			cmd := s.command("launch", "--hosts", "localhost:2,127.0.0.1:2", ssh, "--restarts", "1", "--min-ranks", "2", "--", "train", "tiny.yaml",
				"--set", "parallel={ranks: null, heartbeat: 200ms, dead_after: 8s}", "--set", "train.batch=8", "--set", "checkpoint={every: 20, keep: 2}", "--set", "sample.tokens=0", "--set", fmt.Sprint("train.steps=", endless), "--out", "r")
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			steps := func() string { b, _ := os.ReadFile(s.path("r", "metrics.jsonl")); return string(b) }
			await(t, func() bool { return strings.Contains(steps(), `{"step":21,"loss"`) })
			if err := os.WriteFile(s.path("down-"+lost), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, pid := range strings.Fields(read(t, s.path("pids-"+lost))) {
				_ = exec.Command("kill", "-9", pid).Run()
			}
			await(t, func() bool { return strings.Count(steps(), `"start":`) > 1 && strings.Contains(steps(), `"ranks":2,`) })
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != exitAgain {
				t.Errorf("%s: exit code %d", lost, code)
			}
			contains(t, said.String(), "without hosts that do not answer: "+lost, "continuing with 2 of 4 processes")
		})
	}
}

// TestLostHostSharesNothing checks that a run whose hosts share only object storage continues after
// the host of process 0 is lost. It needs root, for a folder of each host at the same path.
func TestLostHostSharesNothing(t *testing.T) {
	if !nightly.All() {
		t.Skip("takes over a minute, in which the lease expires; .ci/nightly runs it")
	}
	if exec.Command("unshare", "--mount", "true").Run() != nil {
		t.Skip("it needs root and unshare")
	}
	s3test.Serve(t)
	inFolder(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ssh := "--ssh=" + launchtest.SSH(t, ".")
	for _, host := range []string{"localhost", "127.0.0.1"} {
		if text, err := exec.Command("sh", "-c", fmt.Sprintf("mkdir %[1]s-%[2]s && cp %[1]s/*.yaml %[1]s/*.txt %[1]s-%[2]s", dir, host)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	reach := strings.Replace(read(t, "reach"), `sh -c "$2"`, `exec unshare --mount --kill-child sh -c 'mount --bind "$PWD-$0" "$PWD" && cd "$PWD" && exec sh -c "$1"' "$1" "$2"`, 1)
	if err := os.WriteFile("reach", []byte(reach), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "launch", "--hosts", "localhost,127.0.0.1", ssh, "--restarts", "1", "--min-ranks", "1", "--", "train", "tiny.yaml",
		"--set", "parallel={ranks: null, heartbeat: 200ms, dead_after: 8s}", "--set", "train.batch=8", "--set", "checkpoint={every: 20, keep: 2, dir: s3://runs/a}", "--set", "sample.tokens=0", "--set", fmt.Sprint("train.steps=", endless), "--out", "r")
	var said strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ZEROTH_MAIN=main"), &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	steps := func(host string) string { b, _ := os.ReadFile(dir + "-" + host + "/r/metrics.jsonl"); return string(b) }
	await(t, func() bool { return strings.Contains(steps("localhost"), `{"step":41,"loss"`) })
	if err := os.WriteFile("down-localhost", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(read(t, "pids-localhost")) {
		_ = exec.Command("kill", "-9", pid).Run()
	}
	await(t, func() bool { return strings.Contains(steps("127.0.0.1"), `"loss"`) })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitAgain {
		t.Errorf("exit code %d", code)
	}
	contains(t, said.String(), "without hosts that do not answer: localhost", "continuing with 1 of 2 processes")
	if strings.Contains(said.String(), "damaged") {
		t.Errorf("a checkpoint whose upload is not finished is reported:\n%s", said.String())
	}
}

// await waits until a condition holds.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for until := time.Now().Add(5 * time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it does not come")
		}
	}
}

// TestNetworkNamespaces launches on two network namespaces of this machine, each with its own
// sshd. It kills all processes of a host, which comes back later, and takes links down. It needs
// root, ip and sshd.
func TestNetworkNamespaces(t *testing.T) {
	if !nightly.All() {
		t.Skip("takes five minutes; .ci/nightly runs it")
	}
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil || os.Getuid() != 0 {
		t.Skip("it needs root and sshd")
	}
	inFolder(t)
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	sh := func(script string) {
		t.Helper()
		if text, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	t.Cleanup(func() {
		_ = exec.Command("sh", "-c", `for i in 1 2; do kill $(cat pid$i); ip netns del zhost$i; ip link del zlink$i; done; ip link del zbridge`).Run()
	})
	sh(`ip link add zbridge type bridge; ip addr add 10.77.9.254/24 dev zbridge; ip link set zbridge up
ssh-keygen -q -t ed25519 -N '' -f id; mkdir -p /run/sshd
for i in 1 2; do
	ip netns add zhost$i; ip link add zlink$i type veth peer name eth0 netns zhost$i; ip link set zlink$i master zbridge up
	ip netns exec zhost$i ip addr add 10.77.9.$i/24 dev eth0; ip netns exec zhost$i ip link set eth0 up; ip netns exec zhost$i ip link set lo up
	ssh-keygen -q -t ed25519 -N '' -f host$i
	printf 'Port 2222\nHostKey %s\nAuthorizedKeysFile %s\nPidFile %s\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPermitUserEnvironment yes\nSetEnv ZEROTH_MAIN=main\n' $PWD/host$i $PWD/id.pub $PWD/pid$i >sshd$i
	ip netns exec zhost$i /usr/sbin/sshd -f $PWD/sshd$i
done`)
	launch := []string{"launch", "--hosts", "10.77.9.1:2,10.77.9.2:2", "--ssh=ssh -p 2222 -i " + folder + "/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=" + folder + "/known"}
	sets := append(append([]string(nil), launched4...), "--set", "train.steps=4", "--set", "parallel.transport=tcp")
	zeroth(t, 0, append(append([]string(nil), sets...), "--out", "one")...)
	process(t, 0, append(append(append([]string(nil), launch...), append([]string{"--"}, sets...)...), "--out", "four")...)
	if outcomeOf(t, "four") != outcomeOf(t, "one") {
		t.Error("other bits than one process")
	}

	killed := append(slices.Clone(sets), "--set", "train.steps=400", "--set", "checkpoint={every: 20, keep: 2}", "--set", "sample.tokens=0")
	zeroth(t, 0, append(append([]string(nil), killed...), "--out", "whole")...)
	go func() {
		for { // t may have ended
			if text, _ := os.ReadFile("again/metrics.jsonl"); strings.Contains(string(text), `{"step":41,"loss"`) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = exec.Command("sh", "-c", "ip netns pids zhost2 | xargs kill -9; sleep 5; ip netns exec zhost2 /usr/sbin/sshd -f $PWD/sshd2").Run()
	}()
	_, errs := process(t, 0, append(append(append([]string(nil), launch...), append([]string{"--restarts", "1", "--"}, killed...)...), "--out", "again")...)
	contains(t, errs, "waiting for hosts that do not answer: 10.77.9.2", "restart 1 of 1")
	if outcomeOf(t, "again") != outcomeOf(t, "whole") {
		t.Error("other bits than one process after a host was killed and came back")
	}

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append(launch, "--restarts", "2", "--min-ranks", "2", "--", "train", "tiny.yaml",
		"--set", "parallel={ranks: null, transport: tcp, heartbeat: 500ms, dead_after: 5s}", "--set", "train.batch=8", "--set", "checkpoint={every: 20, keep: 2}", "--set", "sample.tokens=0", "--set", fmt.Sprint("train.steps=", endless), "--out", "r")...)
	var said strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ZEROTH_MAIN=main"), &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	continues := func(ranks int) func() bool {
		return func() bool {
			text, _ := os.ReadFile("r/metrics.jsonl")
			all := strings.Split(string(text), `"start":`)
			last := all[len(all)-1]
			return strings.Contains(last, fmt.Sprintf(`"ranks":%d,`, ranks)) && strings.Contains(last, `"loss"`)
		}
	}
	await(t, continues(4))
	sh("ip link set zlink2 down")
	await(t, continues(2))
	sh("ip link set zlink2 up")
	await(t, continues(4))
	sh("ip link set zlink1 down") // the host of process 0
	await(t, continues(2))
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitAgain {
		t.Errorf("exit code %d\n%s", code, said.String())
	}
}
