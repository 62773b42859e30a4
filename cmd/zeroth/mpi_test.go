//go:build mpi && cgo

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
)

// launchersOfMPI returns the command lines of Open MPI's mpirun and MPICH's mpiexec, if
// installed.
func launchersOfMPI(t *testing.T) (all [][]string) {
	for _, l := range [][]string{{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}, {"mpiexec.mpich"}} {
		if _, err := exec.LookPath(l[0]); err != nil {
			t.Logf("left out: no %s", l[0])
			continue
		}
		all = append(all, l)
	}
	return all
}

// mpirun returns a command that starts n processes of zeroth.
func mpirun(t *testing.T, launcher []string, n int, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := append(append(launcher[1:len(launcher):len(launcher)], "-n", fmt.Sprint(n), exe), args...)
	cmd, out = exec.Command(launcher[0], all...), new(bytes.Buffer)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ZEROTH_MAIN=main"), out, out
	return cmd, out
}

// TestMPIGivesTheSameBits checks that a job gives the same bits in one process and in several
// over MPI.
func TestMPIGivesTheSameBits(t *testing.T) {
	inFolder(t)
	for _, how := range [][]string{{"0", "fp32"}, {"3", "bf16"}} {
		sets := append(launched4, "--set", "train.steps=4", "--set", "checkpoint.every=2", "--set", "zero.stage="+how[0], "--set", "precision="+how[1])
		zeroth(t, 0, append(sets, "--out", how[0])...)
		want := outcomeOf(t, how[0])
		for _, launcher := range launchersOfMPI(t) {
			for n, transport := range map[int]string{4: "auto", 2: "mpi"} {
				in := fmt.Sprint(how[0], launcher[0], n)
				cmd, out := mpirun(t, launcher, n, append(sets, "--set", "parallel.transport="+transport, "--out", in)...)
				if err := cmd.Run(); err != nil || strings.Count(out.String(), "MPI carries the data: ") != 1 || strings.Count(out.String(), "done: 4 steps") != 1 {
					t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
				}
				if outcomeOf(t, in) != want {
					t.Errorf("%v: other bits than one process has", cmd.Args)
				}
			}
		}
	}
}

// TestMPISurvivesFaults checks that a killed or stopped MPI process ends the job, that a stopped
// one is named, and that the run resumes from its last checkpoint with the bits of an undisturbed
// run.
func TestMPISurvivesFaults(t *testing.T) {
	inFolder(t)
	sets := []string{"train", "tiny.yaml", "--set", "parallel={ranks: 3, heartbeat: 200ms, dead_after: 2s}", "--set", "train.steps=400", "--set", "checkpoint.every=20", "--set", "sample.tokens=0"}
	zeroth(t, 0, append(sets, "--out", "whole")...)
	want := outcomeOf(t, "whole")
	for _, launcher := range launchersOfMPI(t) {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			in := fmt.Sprint(launcher[0], int(sig))
			cmd, out := mpirun(t, launcher, 3, append(sets, "--out", in)...)
			strike(t, cmd, in, sig)
			code, named := cmd.ProcessState.ExitCode(), strings.Contains(out.String(), `peer 1 lost: rank 1 (`)
			// MPICH's launcher kills the stopped process itself, and may then report that exit code.
			ends := code == 75 || strings.Contains(launcher[0], "mpich") && code != 0
			killed := code == 75 || code == 128+int(syscall.SIGKILL) || strings.Contains(launcher[0], "mpich") // as docs/cluster.md says
			if code == 0 || sig == syscall.SIGKILL && !killed || sig == syscall.SIGSTOP && !(ends && named) {
				t.Fatalf("%v, %v: exit code %d, named %v\n%s", cmd.Args, sig, code, named, out)
			}
			cmd, out = mpirun(t, launcher, 3, append(sets, "--out", in, "--resume", "latest")...)
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			if outcomeOf(t, in) != want {
				t.Errorf("%v, %v: other bits than without the fault", cmd.Args, sig)
			}
		}
	}
}

// strike runs the command to its end and sends a signal to the process of rank 1 after the first
// checkpoint.
func strike(t *testing.T, cmd *exec.Cmd, in string, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(2 * time.Millisecond) {
		if _, err := checkpoint.Resolve(filepath.Join(in, "ckpt"), "latest"); err == nil {
			break
		}
	}
	hit := false
	for _, pid := range descendants(t, cmd.Process.Pid) {
		if environ(pid, "OMPI_COMM_WORLD_RANK") == "1" || environ(pid, "PMI_RANK") == "1" {
			hit = syscall.Kill(pid, sig) == nil
		}
	}
	if _ = cmd.Wait(); !hit { // the exit code is checked below
		t.Fatal("rank 1 was not found")
	}
}

// descendants returns the ids of all processes below a process.
func descendants(t *testing.T, pid int) (all []int) {
	for _, child := range children(t, pid) {
		all = append(append(all, child), descendants(t, child)...)
	}
	return all
}

// TestMPIWantsItsLauncher checks that MPI is refused under a launcher other than its own.
func TestMPIWantsItsLauncher(t *testing.T) {
	launchers := launchersOfMPI(t)
	if len(launchers) == 0 {
		t.Skip("no MPI")
	}
	inFolder(t)
	_, errs := process(t, 2, "launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel.ranks=2", "--set", "parallel.transport=mpi")
	if want := "use the mpirun or mpiexec of that library"; !strings.Contains(errs, want) {
		t.Errorf("%s\nwant: %s", errs, want)
	}
}
