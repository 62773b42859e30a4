//go:build faults && linux

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"zeroth/job/report"
)

// TestSurvive disturbs each of three hosts of a job that goes on without replicas. The processes of the other
// hosts must come to the end without losing a step, with the bits of the run that is not disturbed.
func TestSurvive(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hosts are network namespaces, which only root can make here")
	}
	runtime.LockOSThread() // the processes it starts end with it
	exe := program(t)
	n := newNetwork(t, fmt.Sprintf("z%ds", os.Getpid()%100000), mostHosts+2)
	n.proxy = newProxy(t, n, mostHosts, mostHosts+1)
	var whole []byte
	for i, name := range []string{"", "killed", "stopped", "link down", "drops what it sends", "drops what it is sent", "half-open"} {
		for host := range 3 {
			if name == "stopped" && host == 0 {
				continue // its process 0 keeps the run folder locked, and no other host can kill it
			}
			x := trial{host: host, layout: layout{hosts: 3, per: 1 + i%2, each: 1}}
			x.shard = x.ranks()
			for k := range kinds {
				if kinds[k].name == name {
					x.kind = k
				}
			}
			model := x.goesOn(t, n, exe, name != "")
			if whole == nil {
				whole = model
			}
			if !bytes.Equal(model, whole) {
				t.Errorf("%s, host %d: the parameters differ", name, host)
			}
		}
	}
}

// goesOn runs a job, disturbed or not, and returns its final parameters.
func (x trial) goesOn(t *testing.T, n *network, exe string, disturbed bool) []byte {
	const steps = 300
	dir := folder(t)
	defer os.RemoveAll(dir)
	all, err := n.start(x.layout, exe, dir, nil, append(x.sets(), "--out", "run", "--set", fmt.Sprint("parallel.dead_after=", *silent), "--set", "faults.survive=true",
		"--set", "train.sums=tree", "--set", "train.batch=12", "--set", fmt.Sprint("train.steps=", steps))...)
	if err != nil {
		t.Fatal(err)
	}
	defer end(all)
	if !x.begun(dir, all) {
		t.Fatalf("it does not begin to train:\n%s", &all[0].said)
	}
	if disturbed {
		x.disturb(t, n, all)
	}
	for p, proc := range all {
		if disturbed && slices.Contains(x.victims(), p) {
			continue
		}
		if !proc.wait(patience) || proc.code() != 0 {
			t.Errorf("%s, host %d: process %d does not end well\n%s", x.name(), x.host, p, &proc.said)
		}
	}
	for _, v := range x.victims() {
		all[v].signal(syscall.SIGCONT)
		if !all[v].wait(patience) || disturbed == (all[v].code() == 0) {
			t.Errorf("%s, host %d: victim %d does not end by itself, or with 0\n%s", x.name(), x.host, v, &all[v].said)
		}
	}
	n.set(x.seed, 0, 0)
	n.link(t, x.host, "up")
	l, err := report.ReadLog(filepath.Join(dir, "run", "metrics.jsonl"))
	if err != nil || len(l.Steps) != steps || disturbed == (len(l.Changes) == 0) {
		t.Errorf("%s, host %d: %d steps, changes %v (%v)", x.name(), x.host, len(l.Steps), l.Changes, err)
	}
	model, err := os.ReadFile(filepath.Join(dir, "run", "model", "model.safetensors"))
	if err != nil {
		t.Error(err)
	}
	return model
}
