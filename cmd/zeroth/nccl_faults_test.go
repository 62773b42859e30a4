//go:build cuda

package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zeroth/checkpoint"
	"zeroth/tests/nightly"
)

// ncclFaults are the faults of one process in a job whose ranks are connected by NCCL, and what
// the others report. An operation that hangs inside NCCL has no visible culprit, so each process
// names all ranks of that operation.
var ncclFaults = []struct {
	name, why string
	within    time.Duration // time within which the others end on an idle machine
}{
	{"killed", "connection lost", 2 * time.Second},
	{"error", `.*ncclSystemError \(unhandled system error; a link is down\)`, 8 * time.Second},
	{"drop", "", 4 * time.Second},
	{"stopped", "silent for 4s", 6 * time.Second},
	{"fails", ".*it is broken", 5 * time.Second},
	{"killed before a checkpoint", "connection lost", 2 * time.Second},
	{"hang", "", 2*hangs + 2*time.Second},
}

// hangs is parallel.timeout for faults that only the timeout detects.
const hangs = 10 * time.Second

// ncclTrial is a seeded fault and the job it is applied to.
type ncclTrial struct {
	seed                     uint64
	fault, processes, victim int
	after                    time.Duration // delay after the first checkpoint, or step
	sets                     []string
	own                      bool // NCCL sums in its own order
}

func newNCCLTrial(seed uint64) ncclTrial {
	rng := rand.New(rand.NewPCG(seed, 17))
	x := ncclTrial{seed: seed, fault: int(seed) % len(ncclFaults), processes: 2 + rng.IntN(3), own: rng.IntN(2) == 0}
	x.victim, x.after = rng.IntN(x.processes), time.Duration(rng.IntN(200))*time.Millisecond
	parallel := fmt.Sprintf("ranks: %d, heartbeat: 200ms, dead_after: 4s, collective: %s", x.processes, map[bool]string{true: "nccl", false: "exact"}[x.own])
	if x.name() == "hang" {
		parallel += fmt.Sprintf(", timeout: %v", hangs)
	}
	if x.processes == 4 && rng.IntN(2) == 0 {
		parallel += ", shard: 2, replicate: 2"
	}
	x.sets = []string{
		fmt.Sprintf("parallel={%s}", parallel), fmt.Sprint("zero.stage=", rng.IntN(4)), fmt.Sprint("train.accumulate=", 1+rng.IntN(3)),
		"precision=" + []string{"fp32", "bf16", "fp16"}[rng.IntN(3)], fmt.Sprint("checkpoint.async=", rng.IntN(2) == 0),
	}
	if strings.Contains(parallel, "shard") && x.sets[1] == "zero.stage=0" {
		x.sets[1] = "zero.stage=3"
	}
	return x
}

func (x ncclTrial) name() string { return ncclFaults[x.fault].name }

func (x ncclTrial) String() string {
	return fmt.Sprintf("seed %d: process %d of %d, %s, %v after, %v", x.seed, x.victim, x.processes, x.name(), x.after, x.sets)
}

// job returns the arguments that launch the trial's job for a number of steps.
func (x ncclTrial) job(steps int, out string) []string {
	args := []string{"launch", "-n", strconv.Itoa(x.processes), "--", "train", "tiny.yaml", "--set", "device=cuda", "--set", "schedule={type: constant, warmup: 0}",
		"--set", "sample.tokens=0", "--set", fmt.Sprint("train.steps=", steps), "--out", out}
	for _, s := range x.sets {
		args = append(args, "--set", s)
	}
	return append(args, "--set", "checkpoint.every="+map[bool]string{true: "0", false: "5"}[x.name() == "killed before a checkpoint"])
}

// strike returns a function that applies the fault to the victim. Drops and faults of the library
// take effect at its next operation.
func (x ncclTrial) strike(t *testing.T, file string) func(pids []int) {
	switch x.name() {
	case "killed", "killed before a checkpoint":
		return signalTo(t, syscall.SIGKILL, x.victim)
	case "stopped":
		return signalTo(t, syscall.SIGSTOP, x.victim)
	}
	return func([]int) {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// unnamed returns the survivors that did not name the victim and the reason.
func (x ncclTrial) unnamed(errs string) (who []int) {
	v := x.victim
	pattern := fmt.Sprintf(`peer %d lost: rank %d \(.*\): %s`, v, v, ncclFaults[x.fault].why)
	switch x.name() {
	case "drop": // calls another operation
		pattern = fmt.Sprintf(`operation \d+.*\branks? [\d,]*\b%d\b`, v)
	case "hang":
		pattern = fmt.Sprintf(`rank \d+ waited %v for ranks? \d.*root cause: .*\branks [\d,-]* \(".*"\) wait for each other in operation `, hangs)
	}
	has := map[int]bool{v: true}
	for _, m := range regexp.MustCompile(`(?m)^(?:\[([\d,]+)\] )?zeroth: .*(?:`+pattern+`)`).FindAllStringSubmatch(errs, -1) {
		for _, r := range strings.Split(m[1], ",") {
			n, _ := strconv.Atoi(r) // process 0's lines have no prefix
			has[n] = true
		}
	}
	for r := range x.processes {
		if !has[r] {
			who = append(who, r)
		}
	}
	return who
}

// run runs the disturbed job and then resumes it.
func (x ncclTrial) run(t *testing.T, strict bool) time.Duration {
	out, tmp := fmt.Sprint("run", x.seed), t.TempDir()
	file := filepath.Join(tmp, "strike")
	t.Setenv("ZEROTH_FAULT", fmt.Sprint(x.victim, " ", x.name(), " ", file))
	t.Setenv("FAKENCCL_FAULT", os.Getenv("ZEROTH_FAULT"))
	if x.own {
		t.Setenv("FAKENCCL_RING", "1")
	}
	look, want := out, 75
	if x.name() == "killed before a checkpoint" {
		look, want = "", 1
	}
	code, said, errs, took := shell{T: t}.disturb(look, x.after, x.strike(t, file), x.job(endless, out)...)
	if who := x.unnamed(errs); code != want || len(who) > 0 {
		t.Errorf("exit code %d, want %d; processes %v do not name the victim:\n%s", code, want, who, errs)
	}
	if most := ncclFaults[x.fault].within; strict && took > most {
		t.Errorf("over after %v, want %v", took, most)
	}
	for name, text := range everything(t, out) {
		keepsID(t, name, text)
	}
	keepsID(t, "the run", said+errs)
	if left, err := os.ReadDir(os.Getenv("FAKENCCL_DIR")); err != nil || len(left) > 0 {
		t.Errorf("communicators have left %v (%v)", left, err)
	}
	if want == 1 {
		return took
	}
	_ = os.Remove(file) // signals have no file
	list, err := checkpoint.List(filepath.Join(out, "ckpt"))
	newest, ok := checkpoint.Newest(list)
	if err != nil || !ok {
		t.Fatal(err)
	}
	steps, whole := int(newest.Step)+4, fmt.Sprint("whole", x.seed)
	process(t, 0, append(x.job(steps, out), "--resume", "latest", "--set", "parallel.timeout=5m")...)
	process(t, 0, append(x.job(steps, whole), "--set", "parallel.timeout=5m")...)
	if outcomeOf(t, out) != outcomeOf(t, whole) {
		t.Error("other bits than without the fault")
	}
	return took
}

// keepsID checks that a text does not contain the id of a communicator. The ids of the fake NCCL
// share a prefix.
func keepsID(t *testing.T, name, text string) {
	t.Helper()
	const id = "fakenccl-"
	for _, as := range []string{id, hex.EncodeToString([]byte(id)), base64.StdEncoding.EncodeToString([]byte(id)), strings.Trim(fmt.Sprint([]byte(id)), "[]")} {
		if strings.Contains(text, as) {
			t.Errorf("%s has a communicator's id", name)
		}
	}
}

// TestGPUNCCLSurvivesFaults checks that the other processes name one that is killed, stopped, or
// calls another operation, which NCCL itself does not notice, and that the run resumes from the
// last checkpoint with the bits of an undisturbed run. ZEROTH_FAULTS=FIRST-LAST runs those seeds
// and checks times; by default four kinds run once, nightly each but the slowest.
func TestGPUNCCLSurvivesFaults(t *testing.T) {
	inFolder(t)
	withNCCL(t, 4)
	seeds, first, last := []uint64{8, 9, 14, 10, 11, 12}[:nightly.Of(3, 6)], uint64(0), uint64(0)
	_, err := fmt.Sscanf(os.Getenv("ZEROTH_FAULTS"), "%d-%d", &first, &last)
	strict := err == nil
	if strict {
		seeds = nil
		for s := first; s <= last; s++ {
			seeds = append(seeds, s)
		}
	}
	took := map[string][]time.Duration{}
	for _, seed := range seeds {
		x := newNCCLTrial(seed)
		if !t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			took[x.name()] = append(took[x.name()], x.run(t, strict))
		}) {
			t.Log(x)
		}
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%-26s %3d runs, over after %v, median, and %v, most", name, len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
}
