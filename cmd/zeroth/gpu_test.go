//go:build cuda

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"zeroth/device/cuda/fake"
	"zeroth/tests/nightly"
)

// onFakes makes the processes that a test starts use the fake CUDA libraries.
func onFakes(t *testing.T, more ...string) {
	t.Helper()
	env, err := fake.Environment()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range append(env, more...) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	fake.Need(t)
}

// gpus4 is tiny.yaml with four ranks on GPUs.
var gpus4 = slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=3", "--set", "parallel.collective=exact"})

// launchOnGPUs runs a job in a number of processes and returns its output and its outcome.
func launchOnGPUs(t *testing.T, name, processes string, job ...string) (said, outcome string) {
	t.Helper()
	said, _ = process(t, 0, slices.Concat([]string{"launch", "-n", processes, "--"}, job, []string{"--out", name})...)
	return said, outcomeOf(t, name)
}

// TestGPULaunchGivesTheSameBits checks that ranks on GPUs give the same bits in one process and
// in several, over every transport. Data that the host cannot address is staged through host
// memory.
func TestGPULaunchGivesTheSameBits(t *testing.T) {
	inFolder(t)
	onFakes(t, "FAKECUDA_DEVICES=3")
	for stage, over := range map[string][][]string{
		"0": {{"2", "unix"}}, "1": {{"4", "tcp"}}, "2": {{"2", "tcp"}}, "3": {{"2", "auto"}, {"4", "unix"}},
	} {
		if stage == "1" && !nightly.All() {
			continue
		}
		job := slices.Concat(gpus4, []string{"--set", "zero.stage=" + stage, "--set", "train.accumulate=2"})
		process(t, 0, append(job, "--out", "one"+stage)...)
		want := outcomeOf(t, "one"+stage)
		for _, o := range over {
			said, got := launchOnGPUs(t, stage+o[0]+o[1], o[0], append(job, "--set", "parallel.transport="+o[1])...)
			if got != want {
				t.Errorf("stage %s, %s processes over %s: other bits than one process has", stage, o[0], o[1])
			}
			if !strings.Contains(said, "exactly as planned") || strings.Count(said, "done: 3 steps") != 1 {
				t.Errorf("stage %s, %s processes over %s:\n%s", stage, o[0], o[1], said)
			}
		}
	}
}

// TestGPULaunchHoldsInEveryOrder checks that hybrid sharding, offload, pipelines, tensor
// parallelism and context parallelism give the same bits in every order in which streams may run.
func TestGPULaunchHoldsInEveryOrder(t *testing.T) {
	inFolder(t)
	onFakes(t)
	for i, sets := range [][]string{
		{"parallel.shard=2", "parallel.replicate=2", "zero.stage=2"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "zero.prefetch=0"},
		{"zero.stage=3", "parallel.pipeline=2", "model.layers=2", "train.accumulate=4", "zero.prefetch=2"},
		{"zero.stage=3", "parallel.tensor=2", "model.heads=4", "train.accumulate=2", "zero.prefetch=2"},
		{"zero.stage=3", "parallel.context=2", "train.accumulate=2", "zero.prefetch=2"},
	} {
		job := slices.Clone(gpus4)
		for _, s := range sets {
			job = append(job, "--set", s)
		}
		name := "one" + string(rune('a'+i))
		process(t, 0, append(job, "--out", name)...)
		want := outcomeOf(t, name)
		for k, mode := range []string{"lazy:1", "lazy:2", "threads:50"} {
			if !nightly.Every(3, i+k) {
				continue
			}
			t.Setenv("FAKECUDA_MODE", mode)
			if _, got := launchOnGPUs(t, name+strings.ReplaceAll(mode, ":", ""), "2", job...); got != want {
				t.Errorf("%v, %s: other bits than one process has", sets, mode)
			}
		}
		t.Setenv("FAKECUDA_MODE", "")
	}
}

// TestGPULaunchOneGPUEach checks that each process uses the GPU of its local rank among those
// of the machine or those the job names, and that a checkpoint of several processes resumes in
// one.
func TestGPULaunchOneGPUEach(t *testing.T) {
	inFolder(t)
	onFakes(t, "FAKECUDA_DEVICES=4", "ZEROTH_NCCL_PATH=/nowhere")
	job := []string{"train", "tiny.yaml", "--log-all-ranks", "--set", "device=cuda", "--set", "parallel.ranks=2", "--set", "parallel.collective=exact", "--set", "train.steps=4", "--set", "checkpoint.every=2", "--set", "sample.tokens=0"}
	for _, c := range []struct{ gpus, first, second string }{{"auto", "GPU 0", "GPU 1"}, {"[3, 1]", "GPU 3", "GPU 1"}, {"[2]", "GPU 2", "GPU 2"}} {
		said, _ := launchOnGPUs(t, "on"+c.gpus, "2", append(job, "--set", "parallel.gpus="+c.gpus)...)
		for _, g := range []string{c.first, c.second} {
			if !strings.Contains(said, "device  cuda: "+g+" (Emulated GPU)\n") {
				t.Errorf("parallel.gpus=%s: no process on %s:\n%s", c.gpus, g, said)
			}
		}
	}
	want := outcomeOf(t, "onauto")
	process(t, 0, append(job, "--out", "resumed", "--resume", filepath.Join("onauto", "ckpt", "step-00000002"))...)
	a, err := os.ReadFile(filepath.Join("resumed", "model", "model.safetensors"))
	if err != nil || !strings.HasSuffix(want, string(a)) {
		t.Errorf("going on in one process: other parameters (%v)", err)
	}
}

// withNCCL makes processes use the fake NCCL, which needs streams with threads of their own, and
// a number of GPUs.
func withNCCL(t *testing.T, gpus int) {
	t.Helper()
	onFakes(t, "FAKECUDA_MODE=threads:20", "FAKECUDA_DEVICES="+strconv.Itoa(gpus), "FAKENCCL_DIR="+t.TempDir())
}

// TestGPUNCCL checks that ranks whose gradients are summed by NCCL compute the same as ranks that
// sum in rank order, as long as NCCL sums in that order. The fake one does so by default.
func TestGPUNCCL(t *testing.T) {
	inFolder(t)
	withNCCL(t, 4)
	for i, c := range []struct{ processes, ranks, stage, more string }{
		{"1", "1", "3", "zero.prefetch=0"}, {"2", "2", "0", "train.accumulate=2"}, {"3", "3", "1", "precision=fp32"},
		{"2", "4", "2", "train.accumulate=2"}, {"4", "4", "3", "zero.prefetch=2"}, {"2", "4", "3", "parallel={ranks: 4, shard: 2, replicate: 2}"}, {"1", "3", "3", "precision=fp16"},
		{"4", "4", "1", "parallel={ranks: 4, pipeline: 2}"}, {"2", "4", "3", "parallel={ranks: 4, pipeline: 2}"},
		{"4", "4", "1", "parallel={ranks: 4, tensor: 2}"}, {"2", "4", "3", "parallel={ranks: 4, tensor: 4}"},
		{"2", "4", "1", "parallel={ranks: 4, context: 2}"},
	} {
		if !nightly.Every(3, i+1) {
			continue
		}
		name := c.processes + "of" + c.ranks + "at" + c.stage
		job := slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=2", "--set", "parallel.ranks=" + c.ranks, "--set", "zero.stage=" + c.stage, "--set", c.more})
		if strings.Contains(c.more, "pipeline") {
			name, job = name+"pipeline", append(job, "--set", "model.layers=2")
		}
		if strings.Contains(c.more, "tensor") {
			name, job = name+"tensor", append(job, "--set", "model.heads=4")
		}
		process(t, 0, append(job, "--set", "parallel.collective=exact", "--out", name)...)
		said, got := launchOnGPUs(t, "nccl"+name, c.processes, append(job, "--set", "parallel.collective=nccl")...)
		if got != outcomeOf(t, name) {
			t.Errorf("%s processes of %s ranks at stage %s, %s: other bits", c.processes, c.ranks, c.stage, c.more)
		}
		if !strings.Contains(said, "exactly as planned") {
			t.Errorf("%s:\n%s", name, said)
		}
	}
}

// TestGPUExactByNCCL checks that exact sums over NCCL have the bits of one process at every stage
// and for every dtype, with registered and unregistered buffers, and that the plan includes the
// buffers they are staged through. Stages of the pipeline have different amounts of memory to register.
func TestGPUExactByNCCL(t *testing.T) {
	inFolder(t)
	withNCCL(t, 4)
	t.Setenv("FAKENCCL_RING", "1")
	for i, c := range []struct{ processes, ranks, stage, library, more string }{
		{"2", "2", "0", "", "train.accumulate=2"}, {"3", "3", "1", "2.18", "precision=fp32"}, {"2", "4", "2", "2.26", "train.accumulate=2"},
		{"4", "4", "3", "", "zero.prefetch=2"}, {"2", "4", "3", "", "parallel={ranks: 4, shard: 2, replicate: 2}"}, {"3", "3", "3", "", "precision=fp16"},
		{"2", "4", "1", "", "parallel={ranks: 4, tensor: 2}"}, {"4", "4", "1", "", "parallel={ranks: 4, tensor: 4}"},
		{"4", "4", "2", "", "parallel={ranks: 4, context: 2}"}, {"2", "2", "1", "", "parallel={ranks: 2, pipeline: 2}"},
	} {
		staged := strings.Contains(c.more, "pipeline")
		if !staged && !nightly.Every(3, i+2) {
			continue
		}
		name := c.processes + "of" + c.ranks + "at" + c.stage + c.library
		job := slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=2", "--set", "parallel.ranks=" + c.ranks, "--set", "zero.stage=" + c.stage, "--set", c.more, "--set", "parallel.collective=exact"})
		if strings.Contains(c.more, "tensor") {
			name, job = name+"tensor", append(job, "--set", "model.heads=4")
		}
		if staged {
			name, job = name+"pipeline", append(job, "--set", "model.layers=3", "--set", "model.heads=4", "--set", "model.width=256")
		}
		process(t, 0, append(job, "--out", name)...)
		t.Run(name, func(t *testing.T) {
			if c.library != "" {
				t.Setenv("ZEROTH_NCCL_PATH", fake.OldNCCL(c.library))
			}
			said, got := launchOnGPUs(t, "nccl"+name, c.processes, job...)
			if got != outcomeOf(t, name) {
				t.Errorf("%s: other bits than in one process", c.more)
			}
			if !strings.Contains(said, "exactly as planned") {
				t.Error(said)
			}
			if m, err := os.ReadFile(filepath.Join("nccl"+name, "metrics.jsonl")); err != nil || !strings.Contains(string(m), `"bounce":`) {
				t.Errorf("no bounce memory in the plan (%v)", err)
			}
		})
	}
}

// TestGPUTraceShowsRegisteredMemory checks that a trace shows when each rank registered memory
// with NCCL, and how much. Groups of one rank have no communicator.
func TestGPUTraceShowsRegisteredMemory(t *testing.T) {
	inFolder(t)
	withNCCL(t, 2)
	job := slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=1", "--set", "parallel={ranks: 2, collective: nccl}"})
	process(t, 0, append(job, "--out", "traced", "--trace", "trace.json")...)
	raw, err := os.ReadFile("trace.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, rank := range []string{"0", "1"} {
		for group, has := range map[string]bool{"shard": true, "replica": false} {
			what := regexp.MustCompile(`"register memory","cat":"host waits","ph":"X","pid":` + rank + `,.*"for":"` + group + ` group: [1-9]\d* bytes as windows"`)
			if what.Match(raw) != has {
				t.Errorf("%v in the trace: %v, want %v", what, !has, has)
			}
		}
	}
}

// TestGPUTraceOfProcesses checks that clients get traces of ranks on GPUs, in one process and in
// several, also if NCCL connects them.
func TestGPUTraceOfProcesses(t *testing.T) {
	for i, c := range [][2]string{{"2", "exact"}, {"1", "exact"}, {"4", "nccl"}, {"1", "nccl"}} {
		if !nightly.Every(2, i) {
			continue
		}
		t.Run(c[0]+c[1], func(t *testing.T) {
			inFolder(t)
			withNCCL(t, 4)
			traceRun(t, c[0], "--set", "device=cuda", "--set", "parallel.collective="+c[1])
		})
	}
}

// TestGPUNCCLIsChosen checks that auto chooses NCCL if every rank of several processes has a GPU,
// and reports that its sums differ; otherwise it gives the reason.
func TestGPUNCCLIsChosen(t *testing.T) {
	inFolder(t)
	withNCCL(t, 4)
	job := slices.Concat(launched4, []string{"--set", "device=cuda", "--set", "train.steps=2", "--set", "precision=fp32"})
	launch := func(name string, code int, more ...string) string {
		_, errs := process(t, code, slices.Concat([]string{"launch", "-n", "4", "--"}, job, more, []string{"--out", name})...)
		return errs
	}
	const adds = "sums gradients in its own order: results differ in their last bits from parallel.collective: exact"
	for _, c := range []struct {
		name, env string
		code      int
		more      []string
		want      string
	}{
		{"auto", "FAKENCCL_RING=1", 0, nil, adds},
		{"exact", "FAKENCCL_RING=1", 0, []string{"--set", "parallel.collective=exact"}, "moves gradients, which ranks sum exactly; memory is registered as windows"},
		{"staged", "ZEROTH_NCCL_PATH=/nowhere", 0, []string{"--set", "parallel.collective=exact"}, "ranks sum exactly, through the host; NCCL would be faster: NCCL, version 2.10 or newer, was not found"},
		{"buffers", "ZEROTH_NCCL_PATH=" + fake.OldNCCL("2.26"), 0, []string{"--set", "parallel.collective=exact"}, "NCCL 2.26.5 (" + fake.OldNCCL("2.26") + ") moves gradients, which ranks sum exactly; memory is registered as buffers"},
		{"unknown", "ZEROTH_NCCL_REGISTER=0", 0, nil, adds + "; no memory is registered"},
		{"shared", "FAKECUDA_DEVICES=3", 0, nil, "ranks sum exactly, through the host; NCCL would be faster: ranks 0 and 1 of host"},
		{"missing", "ZEROTH_NCCL_PATH=/nowhere", 0, nil, "ranks sum exactly, through the host; NCCL would be faster: NCCL, version 2.10 or newer, was not found"},
		{"old", "FAKENCCL_VERSION=20905", 0, nil, "it is version 2.9.5"},
		{"insists", "FAKECUDA_DEVICES=3", 2, []string{"--set", "parallel.collective=nccl"}, "but NCCL needs one per rank; want fewer parallel.ranks, or parallel.collective: exact"},
		{"lacks", "ZEROTH_NCCL_PATH=/nowhere", 2, []string{"--set", "parallel.collective=nccl"}, "or set ZEROTH_NCCL_PATH to a libnccl.so.2"},
		{"cpu", "", 2, []string{"--set", "parallel.collective=nccl", "--set", "device=cpu"}, "NCCL sums on GPUs, but ranks compute on the CPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			name, value, _ := strings.Cut(c.env, "=")
			if name != "" {
				t.Setenv(name, value)
			}
			if errs := launch(c.name, c.code, c.more...); !strings.Contains(errs, c.want) {
				t.Errorf("%s\nwant %q", errs, c.want)
			}
		})
	}
	if outcomeOf(t, "auto") == outcomeOf(t, "exact") {
		t.Error("sums around a ring have the bits of sums in rank order")
	}
	for _, same := range []string{"shared", "missing", "old", "staged", "buffers"} {
		if outcomeOf(t, same) != outcomeOf(t, "exact") {
			t.Errorf("%s: other bits than exact sums", same)
		}
	}
	t.Setenv("FAKECUDA_DEVICES", "2")
	_, errs := process(t, 2, append(job, "--set", "parallel.collective=nccl", "--out", "one")...)
	if !strings.Contains(errs, "4 ranks share 2 of this machine's GPUs, but NCCL needs one per rank") {
		t.Errorf("one process:\n%s", errs)
	}
}

// TestGPUsApart checks that ranks of one process on GPUs that cannot address each other's memory
// exchange data by NCCL with the same bits, and that the refusal without NCCL says what to type.
func TestGPUsApart(t *testing.T) {
	inFolder(t)
	withNCCL(t, 4)
	t.Setenv("FAKENCCL_RING", "1")
	process(t, 0, append(gpus4, "--out", "near")...)
	t.Setenv("FAKECUDA_NO_PEERS", "1")
	for _, collective := range []string{"auto", "exact"} {
		name := "apart" + collective
		said, _ := process(t, 0, append(gpus4, "--set", "parallel.collective="+collective, "--out", name)...)
		if outcomeOf(t, name) != outcomeOf(t, "near") || !strings.Contains(said, "moves gradients, which ranks sum exactly") {
			t.Errorf("%s: other bits, or no note:\n%s", collective, said)
		}
	}
	t.Setenv("ZEROTH_NCCL_PATH", "/nowhere")
	_, said := process(t, 2, append(gpus4, "--out", "lacks")...)
	for _, want := range []string{"GPU 0 (Emulated GPU) cannot address the memory of GPU 1", "zeroth launch"} {
		if !strings.Contains(said, want) {
			t.Errorf("%s\nwant %q", said, want)
		}
	}
}

// TestGPULoadsUsedKernels checks that the driver loads only the kernels that the job launches,
// compiled for the GPU.
func TestGPULoadsUsedKernels(t *testing.T) {
	inFolder(t)
	file := filepath.Join(t.TempDir(), "modules")
	onFakes(t, "FAKECUDA_MODULES="+file)
	process(t, 0, "train", "tiny.yaml", "--set", "device=cuda", "--set", "precision=bf16", "--set", "train.steps=1", "--set", "sample.tokens=0", "--set", "model.width=64", "--set", "model.heads=2")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "load dropout sm_90\nload flash_bf16_64 sm_90\nload norm_grad_3 sm_90\n"; !strings.HasPrefix(string(text), want) || strings.Count(string(text), "\nload") != 2 {
		t.Errorf("modules:\n%swant\n%s", text, want)
	}
}

// TestGPUSampleLoadsItsKernels checks that generation loads attention of its own precision only.
func TestGPUSampleLoadsItsKernels(t *testing.T) {
	inFolder(t)
	file := filepath.Join(t.TempDir(), "modules")
	onFakes(t)
	process(t, 0, "train", "tiny.yaml", "--set", "device=cpu", "--set", "train.steps=1", "--set", "sample.tokens=0", "--set", "model.width=64", "--set", "model.heads=2", "--out", "run")
	onFakes(t, "FAKECUDA_MODULES="+file)
	process(t, 0, "sample", "--run", "run", "--device", "cuda", "--precision", "bf16", "--prompt", "a", "--tokens", "2")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "load flash_bf16_64") || strings.Contains(string(text), "attention") {
		t.Errorf("modules:\n%s", text)
	}
}

// TestGPUDoctorNamesKernelCache checks that doctor prints where the driver caches
// compiled kernels, and whether the cache is on.
func TestGPUDoctorNamesKernelCache(t *testing.T) {
	inFolder(t)
	onFakes(t, "CUDA_CACHE_PATH=/scratch/kernels", "CUDA_CACHE_DISABLE=")
	out, _ := process(t, 0, "doctor")
	contains(t, out, "kernels  compiled for compute capability 8.x and 9.0; for others compiled once by the driver, and cached in \"/scratch/kernels\" (CUDA_CACHE_PATH), up to ")
	t.Setenv("CUDA_CACHE_DISABLE", "1")
	out, _ = process(t, 0, "doctor")
	contains(t, out, "kernels  compiled for compute capability 8.x and 9.0; for others compiled again in every run: CUDA_CACHE_DISABLE=\"1\"; unset it\n")
}

// TestGPUDoctorAsksPython checks that doctor lists every place it searched. A library that only
// Python finds is reported as missing, with the variable to set, because training does not run
// Python.
func TestGPUDoctorAsksPython(t *testing.T) {
	inFolder(t)
	onFakes(t)
	dir := t.TempDir()
	site := filepath.Join(dir, "of its own")
	lib := filepath.Join(site, "nvidia", "cublas", "lib")
	python := "#!/bin/sh\ntouch '" + dir + "/asked'\necho '" + site + "'\n"
	for _, err := range []error{os.MkdirAll(lib, 0o777), os.Mkdir(filepath.Join(dir, "bin"), 0o777), os.WriteFile(filepath.Join(dir, "bin", "python3"), []byte(python), 0o777)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	blas := os.Getenv("ZEROTH_CUBLAS_PATH")
	for _, name := range []string{"libcublas.so.12", "libcublasLt.so.12"} {
		if err := os.Symlink(filepath.Join(filepath.Dir(blas), name), filepath.Join(lib, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ZEROTH_CUBLAS_PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "PYTHONPATH"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", dir)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":/usr/bin:/bin")
	process(t, 2, "train", "tiny.yaml", "--set", "device=cuda", "--out", "none")
	if _, err := os.Stat(filepath.Join(dir, "asked")); err == nil {
		t.Error("train has run python3")
	}
	out, _ := process(t, 0, "doctor")
	path := filepath.Join(lib, "libcublas.so.12")
	contains(t, out, "looked   in "+site+"/{nvidia/*/lib,torch/lib}, according to python3: libcublas.so.12\n", "export ZEROTH_CUBLAS_PATH="+path+"\n", "looked   in /usr/local/cuda*/{lib64,targets/*/lib}: ")
	t.Setenv("ZEROTH_CUBLAS_PATH", path)
	out, _ = process(t, 0, "doctor")
	contains(t, out, "cublas   "+path+", version 12.4.0\n", "device   auto is cuda here\n")
}
