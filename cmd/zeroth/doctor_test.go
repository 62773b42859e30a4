//go:build unix

package main

import (
	"runtime"
	"strings"
	"testing"

	"zeroth/device/cpu/kernel"
	"zeroth/internal/machine"
)

// TestDoctor checks that doctor describes the machine line by line, and lists only instruction
// sets that the processor has.
func TestDoctor(t *testing.T) {
	t.Chdir(t.TempDir())
	out, errs := zeroth(t, 0, "doctor")
	for _, want := range []string{"version  ", "machine  ", "; kernels use ", "vectors  ", "kernels  ", "memory   ", "disk     ", " free for runs\n", "limits   ", "gpus     "} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor says\n%s%s\nwithout %q", out, errs, want)
		}
	}
	f32, bf16 := kernel.Instructions()
	for _, set := range []string{f32, bf16} {
		if runtime.GOARCH == "amd64" && set != "go" && !strings.Contains(out, " "+set) {
			t.Errorf("kernels by %s, of which the processor has not told:\n%s", set, out)
		}
	}
	out, _ = zeroth(t, 0, "doctor", "no/such/folder")
	contains(t, out, " free for no/such/folder\n")
	zeroth(t, 2, "doctor", "--now")
	zeroth(t, 2, "doctor", "a", "b")
}

func TestDoctorsWords(t *testing.T) {
	contains(t, cores(machine.Cores{Bound: 8, Quota: 1.5, Limit: "the control group /x"}), "8 processors available to this process, limited to the time of 1.5 by the control group /x; kernels use ")
	contains(t, limits(machine.Bounds{Files: 1024, Address: machine.Unlimited, Locked: 8 << 20, File: 1 << 63}), "open files (ulimit -n) 1024, address space (-v) unlimited, locked memory (-l) 8.0 MiB, file size (-f) unlimited")
	contains(t, memory(machine.Memory{Free: 1 << 30, Total: 4 << 30, Limit: "this machine"}), "1.0 GiB free of 4.0 GiB with swap, limited by this machine")
	if memory(machine.Memory{}) != limits(machine.Bounds{}) {
		t.Error("what is not told is told")
	}
}
