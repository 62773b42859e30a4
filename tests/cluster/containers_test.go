//go:build faults && linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestContainers checks containers of one machine, which share its kernel, the run's folder and,
// optionally, a folder for sockets. Without the latter, data goes over TCP, with a notice; with
// it, through shared memory. Either way the bits are those of one process.
func TestContainers(t *testing.T) {
	runtime.LockOSThread()
	exe := program(t)
	n := newNetwork(t, "zc", 2)
	refs := &references{exe: exe, dir: folder(t), of: map[string][]byte{}}
	job := trial{layout: layout{hosts: 2, per: 1, each: 3, shard: 6}, stage: 3}
	for name, c := range map[string]struct{ own, carrier, told string }{
		"own":    {"mount -t tmpfs none tmp", "0 and 1, two hosts  tcp", "processes 0 and 1 share a machine but no files, so TCP carries data between them"},
		"shared": {"true", "0 and 1, one host  unix", ""},
		"none":   {"mount -t tmpfs -o ro none tmp", "0 and 1, two hosts  tcp", "no Unix socket: "},
	} {
		dir := folder(t)
		if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o755); err != nil {
			t.Fatal(err)
		}
		said := n.contained(t, exe, dir, c.own, "doctor --cluster")
		if !strings.Contains(said, c.carrier) {
			t.Errorf("%s: doctor says\n%s\nwant %q", name, said, c.carrier)
		}
		const steps = 5
		said = n.contained(t, exe, dir, c.own, fmt.Sprintf("train job.yaml --out run --set parallel.transport=auto --set parallel.ranks=%d --set train.steps=%d", job.ranks(), steps))
		if !strings.Contains(said, c.told) || c.told == "" && strings.Contains(said, "TCP carries") {
			t.Errorf("%s: training says\n%s\nwant %q", name, said, c.told)
		}
		for _, wrong := range refs.compare(dir, job, steps) {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}

// contained runs a command in a container on each host and returns the output. The command own
// sets up the container's folder for temporary files.
func (n *network) contained(t *testing.T, exe, dir, own, command string) (said string) {
	t.Helper()
	var all []*process
	for i, host := range n.hosts {
		env := []string{"ZEROTH_TOKEN=a token of sixteen bytes and more", fmt.Sprint("ZEROTH_WORLD_SIZE=", len(n.hosts)), fmt.Sprint("ZEROTH_RANK=", i), "ZEROTH_ADDR=" + address(0) + ":29400", "TMPDIR=" + filepath.Join(dir, "tmp")}
		p, err := run(dir, env, "ip", "netns", "exec", host, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
			fmt.Sprintf("%s && hostname %s && exec %s %s", own, host, exe, command))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.signal(syscall.SIGKILL); <-p.done })
		all = append(all, p)
	}
	for i, p := range all {
		if !p.wait(patience) || p.code() != 0 {
			t.Fatalf("%s in container %d: exit code %d\n%s", command, i, p.code(), &p.said)
		}
		said += p.said.String()
	}
	return said
}
