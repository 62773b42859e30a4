//go:build cuda

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zeroth/device/cuda/fake"
	"zeroth/tests/nightly"
)

// container is a root folder with only a carried folder, the fakes, /bin/sh and the libraries
// they link with: no repository, no Go, no Python. cuBLAS and NCCL are in a virtual environment
// that no variable names.
type container struct {
	root  string
	apart bool // programs see nothing outside; false if this machine does not allow namespaces
}

const packages = "/opt/app/.venv/lib/python3.12/site-packages/nvidia/"

func newContainer(t *testing.T) *container {
	t.Helper()
	env, err := fake.Environment()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++ here: the fake CUDA libraries cannot be compiled")
	}
	c := &container{root: t.TempDir()}
	for _, dir := range []string{"proc", "dev", "tmp", "out", "carried"} {
		c.must(t, os.MkdirAll(filepath.Join(c.root, dir), 0o777))
	}
	if text, err := exec.Command("../../scripts/build-gpu-tests", filepath.Join(c.root, "carried")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var fakes string
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "ZEROTH_CUDA_PATH="); ok {
			fakes = filepath.Dir(path)
		}
	}
	if n := c.carried(t); n >= 30<<20 {
		t.Errorf("the folder has %d bytes; it is to be carried", n)
	}
	for to, names := range map[string][]string{
		"/fakes":                {"libcuda.so.1", "libnvidia-ml.so.1", "libemukernels.so"},
		packages + "cublas/lib": {"libcublas.so.12", "libcublasLt.so.12"},
		packages + "nccl/lib":   {"libnccl.so.2"},
	} {
		for _, name := range names {
			c.copy(t, filepath.Join(fakes, name), filepath.Join(to, name))
		}
	}
	const sanitizer = "#!/bin/sh\necho '========= ERROR SUMMARY: 1 error'\nexit 1\n"
	c.must(t, os.MkdirAll(filepath.Join(c.root, "bin"), 0o777))
	c.must(t, os.WriteFile(filepath.Join(c.root, "bin", "compute-sanitizer"), []byte(sanitizer), 0o777))
	shell, err := filepath.EvalSymlinks("/bin/sh")
	c.must(t, err)
	c.copy(t, shell, "/bin/sh")
	for _, program := range []string{shell, filepath.Join(fakes, "libcuda.so.1"), filepath.Join(fakes, "libcublas.so.12"), filepath.Join(fakes, "libemukernels.so")} {
		c.linked(t, program)
	}
	for _, user := range []string{"", "--map-root-user"} {
		c.apart = c.apart || exec.Command("unshare", slices.DeleteFunc([]string{user, "--mount", "--pid", "--fork", "mount", "-t", "proc", "proc", filepath.Join(c.root, "proc")}, func(s string) bool { return s == "" })...).Run() == nil
	}
	if !c.apart {
		t.Log("this machine allows no namespaces: programs see all of it")
	}
	return c
}

// carried returns the size of the carried folder in bytes.
func (c *container) carried(t *testing.T) (bytes int64) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(c.root, "carried"))
	c.must(t, err)
	for _, f := range files {
		info, err := f.Info()
		c.must(t, err)
		bytes += info.Size()
	}
	return bytes
}

func (c *container) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *container) copy(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	c.must(t, err)
	to = filepath.Join(c.root, to)
	c.must(t, os.MkdirAll(filepath.Dir(to), 0o777))
	c.must(t, os.WriteFile(to, data, 0o777))
}

var libraryPath = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// linked copies the libraries that a program is linked with.
func (c *container) linked(t *testing.T, program string) {
	t.Helper()
	text, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, m := range libraryPath.FindAllStringSubmatch(string(text), -1) {
		c.copy(t, m[1], m[1])
	}
}

// climb deletes earlier results, runs the ladder and returns its output, its table and its exit
// code.
func (c *container) climb(t *testing.T, env []string, args ...string) (said, table string, code int) {
	t.Helper()
	out := filepath.Join(c.root, "out")
	c.must(t, os.RemoveAll(out))
	c.must(t, os.Mkdir(out, 0o777))
	at := c.root
	if c.apart {
		at = ""
	}
	args = append([]string{at + "/carried/run.sh", "--small", "--limit", "1h"}, args...)
	cmd := exec.Command(args[0], args[1:]...)
	if c.apart {
		const enter = `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"`
		flags := []string{"--mount", "--pid", "--fork", "--kill-child"}
		if os.Getuid() != 0 {
			flags = append(flags, "--map-root-user")
		}
		cmd = exec.Command("unshare", append(append(flags, "sh", "-c", enter, c.root), args...)...)
	}
	cmd.Env = append([]string{"PATH=" + at + "/bin:/usr/sbin:/usr/bin", "HOME=" + at + "/nowhere", "TMPDIR=" + at + "/tmp", "OUT=" + at + "/out", "LD_LIBRARY_PATH=" + at + "/fakes", "ZEROTH_EMU_KERNELS=" + at + "/fakes/libemukernels.so",
		"FAKECUDA_MODE=threads"}, env...)
	if !c.apart {
		cmd.Env = append(cmd.Env, "VIRTUAL_ENV="+at+"/opt/app/.venv")
	}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, text)
	}
	raw, err := os.ReadFile(filepath.Join(out, "table.md"))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return string(text), string(raw), cmd.ProcessState.ExitCode()
}

// hour runs a part of hour.sh in small sizes, and compares how often each of some words is printed. It
// needs programs that the container does not have.
func (c *container) hour(t *testing.T, part string, want map[string]int) {
	t.Helper()
	cmd := exec.Command("sh", filepath.Join(c.root, "carried", "hour.sh"), part)
	cmd.Env = append(os.Environ(), "SMALL=2", "SMALLT=16", "STEPS=2", "TMPDIR="+t.TempDir(), "OUT="+filepath.Join(c.root, "out"), "FAKECUDA_MODE=threads",
		"LD_LIBRARY_PATH="+filepath.Join(c.root, "fakes"), "ZEROTH_EMU_KERNELS="+filepath.Join(c.root, "fakes/libemukernels.so"), "VIRTUAL_ENV="+filepath.Join(c.root, "opt/app/.venv"))
	text, err := cmd.CombinedOutput()
	for words, n := range want {
		if got := strings.Count(string(text), words); err != nil || got != n {
			t.Errorf("hour.sh %s: %q %d times, want %d (%v)\n%s", part, words, got, n, err, text)
		}
	}
}

// verdicts returns the verdicts of the table's rungs.
func verdicts(table string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) == 5 && strings.TrimSpace(strings.TrimPrefix(cells[0], "| ")) != "" {
			all[strings.TrimSpace(strings.TrimPrefix(cells[0], "| "))] = strings.TrimSpace(strings.TrimSuffix(cells[4], "|"))
		}
	}
	delete(all, "rung")
	return all
}

// log returns the log that a failed test shows in addition to the table.
func (c *container) log() string {
	raw, _ := os.ReadFile(filepath.Join(c.root, "out", "log.txt")) // if there is no log, the table remains
	return string(raw[max(0, len(raw)-20_000):])
}

// TestLadderOnTheFakes climbs the ladder from a carried folder in a container: all of it on one
// GPU, and the parts that depend on the number of GPUs on eight. Kernels that are wrong, break
// the context or never end must fail their own rungs and no others.
func TestLadderOnTheFakes(t *testing.T) {
	if !nightly.All() {
		t.Skip("building and climbing take minutes: only with ZEROTH_NIGHTLY=1")
	}
	c := newContainer(t)
	said, table, code := c.climb(t, nil)
	if code != 0 || strings.Contains(table, "FAILED") {
		t.Fatalf("one GPU: exit code %d\n%s\n%s\n%s", code, said, table, c.log())
	}
	t.Logf("one GPU:\n%s", said)
	c.hour(t, "speed", map[string]int{" rc 0 ": 6, " median of ": 6})
	c.hour(t, "heads", map[string]int{" rc 0 ": 3, " median of ": 3})
	if exec.Command("unshare", "--net", "--mount", "python3", "--version").Run() == nil { // without them there are no two hosts
		c.hour(t, "nccl", map[string]int{" rc 0 ": 5, ": the bits of one process": 2, "Duplicate GPU": 0})
	}
	all := verdicts(table)
	for _, want := range []string{"open", "load/flash_bf16_64", "first-kernels", "epilogue/gelu", "nccl/one-rank", "product/bf16", "job/gpt2", "kernel/Attention", "bench", "roofline", "jobs/Resume", "queue/Order", "kernel-tables", "stages/gpt2-4-ranks", "near-cpu/gpt2", "offload/1"} {
		if all[want] != "ok" {
			t.Errorf("%s: %q, want ok", want, all[want])
		}
	}
	for _, want := range []string{packages + "cublas/lib/libcublas.so.12", packages + "nccl/lib/libnccl.so.2", "no Python here has PyTorch", "algorithm 1, tile 1", "tokens/s", "copies both ways at once"} {
		if !strings.Contains(table, want) && c.apart {
			t.Errorf("no %q in the table", want)
		}
	}
	for name := range all {
		if !strings.Contains(said, "\n"+name+" ") && !strings.HasPrefix(said, name+" ") {
			t.Errorf("the line of %s was not printed", name)
		}
	}

	said, table, code = c.climb(t, []string{"FAKECUDA_DEVICES=8"})
	if now := verdicts(table); code != 0 || now["queue/NCCLCounts"] != "ok" || !strings.HasPrefix(all["queue/NCCLCounts"], "left out: it needs 3 GPUs") {
		t.Errorf("eight GPUs: exit code %d\n%s\n%s\n%s", code, said, table, c.log())
	}
	t.Logf("eight GPUs:\n%s", said)
	for how, why := range map[string]string{"idle": "package cpu has", "faults": "CUDA_ERROR_ILLEGAL_ADDRESS", "hangs": "time limit"} {
		args := []string{"--only", broken}
		if how == "hangs" {
			args = append(args, "--each", "40s") // the other failures take one or two seconds
		} else if how == "idle" {
			args = nil
		}
		now := c.broken(t, how, why, args)
		if len(args) == 0 && len(now) != len(all) {
			t.Errorf("%s: %d rungs have results, want %d", how, len(now), len(all))
		}
	}
}

const broken = "first-kernels,kernel/AddRow,kernel/SumRows,queue/Order,kernel-tables"

// broken runs the tests with a kernel that is broken in some way, checks that kernel/SumRows is the
// only rung that fails, and returns the verdicts.
func (c *container) broken(t *testing.T, how, why string, args []string) map[string]string {
	t.Helper()
	said, table, code := c.climb(t, []string{"FAKECUDA_BROKEN=" + how + ":columns"}, args...)
	t.Logf("a kernel %s:\n%s", how, said)
	now := verdicts(table)
	for _, name := range strings.Split(broken, ",") {
		if bad := name == "kernel/SumRows"; bad != strings.HasPrefix(now[name], "FAILED") || now[name] == "" {
			t.Errorf("%s: %s: %q", how, name, now[name])
		}
	}
	if code != 1 || !strings.Contains(now["kernel/SumRows"], why) || how != "hangs" && !strings.Contains(table, "| ERROR SUMMARY: 1 error ") {
		t.Errorf("%s: exit code %d, want 1 and %q\n%s\n%s", how, code, why, said, c.log())
	}
	if _, err := os.Stat(filepath.Join(c.root, "out", "dumps.tar.gz")); how == "idle" && err != nil {
		t.Error("a wrong result, and no operands are kept:", err)
	}
	if how == "hangs" && !strings.Contains(c.log(), "goroutine ") {
		t.Error("a test hangs, and the log does not say where")
	}
	return now
}
