//go:build cuda

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/device/cuda/fake"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/bench"
	"zeroth/job/generate"
	"zeroth/job/report"
	"zeroth/tests/nightly"
	"zeroth/zero"
	"zeroth/zero/zerotest"
)

// onGPU trains on the fake GPU; onCPU trains the same job on the CPU.
func onGPU(t *testing.T, sets ...string) zerotest.Outcome {
	t.Helper()
	c := cfg(t, append(sets, "device=cuda")...)
	return zerotest.Train(t, c, nil)
}

func onCPU(t *testing.T, sets ...string) zerotest.Outcome {
	t.Helper()
	return zerotest.Train(t, cfg(t, append(slices.Clone(sets), "device=cpu")...), nil)
}

// gpuAgrees trains at several stages on ranks that share one GPU, which must agree to the bit,
// and on the CPU, which must agree within tol because its sums have another order.
func gpuAgrees(t *testing.T, stages []int, tol float64, sets ...string) {
	t.Helper()
	var first *zerotest.Outcome
	for _, stage := range stages {
		got := onGPU(t, append(slices.Clone(sets), fmt.Sprintf("zero.stage=%d", stage))...)
		if first == nil {
			first = &got
		}
		zerotest.SameBits(t, fmt.Sprintf("%v at stage %d", sets, stage), got, *first)
	}
	zerotest.Near(t, fmt.Sprint(sets), *first, onCPU(t, append(slices.Clone(sets), fmt.Sprintf("zero.stage=%d", stages[0]))...), tol)
}

// sgd does not amplify the rounding of gradients near zero, unlike Adam.
var sgd = []string{"optimizer.type=sgd", "optimizer.lr=0.1"}

var llama = []string{"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24"}

// TestGPUOrder checks that the result does not depend on the order in which streams run: two
// ranks on a GPU, stages 0 to 3, offload.
func TestGPUOrder(t *testing.T) {
	fake.Need(t)
	sets := append([]string{"parallel.ranks=2", "train.steps=3"}, sgd...)
	gpuAgrees(t, []int{0, 1, 2, 3}, 1e-4, append(slices.Clone(sets), "precision=fp32")...)
	want := onGPU(t, append(slices.Clone(sets), llama...)...)
	for _, offload := range [][]string{{"zero.offload.optimizer=host"}, {"zero.offload.optimizer=host", "zero.offload.parameters=host", "zero.prefetch=0"}} {
		zerotest.SameBits(t, fmt.Sprint(offload), onGPU(t, slices.Concat(sets, llama, offload)...), want)
	}
	muon := []string{"parallel.ranks=2", "train.steps=3", "precision=fp32", "optimizer.type=muon", "model.layers=4"}
	want = onGPU(t, muon...)
	for _, way := range [][]string{{"zero.stage=1"}, {"zero.stage=2", "zero.offload.optimizer=host", "zero.offload.ratio=0.5"}, {"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "zero.prefetch=0"}} {
		zerotest.SameBits(t, fmt.Sprint(way), onGPU(t, slices.Concat(muon, way)...), want)
	}
}

// TestGPUHoldsInEveryOrder runs TestGPUOrder, in a nightly run also other tests, with the streams
// in several orders and sums split differently.
func TestGPUHoldsInEveryOrder(t *testing.T) {
	fake.Need(t)
	jobs := "TestGPUOrder"
	if nightly.All() {
		jobs = "TestGPU(Order|StagesAgreeToTheBit|MuonAgreesToTheBit|OffloadAgreesToTheBit|Resume|Sample)"
	}
	for seed, mode := range []string{"lazy:1", "lazy:2", "lazy:3", "lazy:4", "lazy:5", "threads:100"} {
		if !nightly.Every(6, seed) {
			continue
		}
		fake.Again(t, jobs, "FAKECUDA_MODE="+mode, fmt.Sprintf("FAKECUBLAS_SEED=%d", seed)) // sums are split differently, too
	}
}

func TestGPUStagesAgreeToTheBit(t *testing.T) {
	fake.Need(t)
	for i, family := range [][]string{nil, llama} {
		for j, precision := range []string{"fp32", "bf16", "fp16"} {
			if !nightly.Every(2, i+j) {
				continue
			}
			tol := map[string]float64{"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}[precision]
			stages := []int{0, 1, 2, 3}
			if i+j > 0 && !nightly.All() {
				stages = []int{0, 3}
			}
			gpuAgrees(t, stages, tol, slices.Concat(family, sgd, []string{"precision=" + precision, "parallel.ranks=3"})...)
		}
		for k, stages := range [][]int{{0, 1}, {2, 3}} {
			if !nightly.Every(2, i+k) {
				continue
			}
			gpuAgrees(t, stages, 1e-4, slices.Concat(family, sgd, []string{"precision=fp32", "parallel.ranks=4", "train.accumulate=2", "zero.recompute=block"})...)
		}
	}
	gpuAgrees(t, []int{0, 3}, 1e-4, append([]string{"precision=fp32", "parallel.ranks=1"}, sgd...)...)
	gpuAgrees(t, []int{1, 2, 3}, 1e-4, append([]string{"precision=fp32", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}, sgd...)...)
}

// TestGPUExperts trains mixtures: in bf16 with products of groups on tensor cores.
func TestGPUExperts(t *testing.T) {
	fake.Need(t)
	experts := slices.Concat(llama, sgd, []string{"model.experts={count: 6, per_token: 2, width: 16}", "parallel.ranks=2", "train.steps=2"})
	gpuAgrees(t, []int{0, 3}, 1e-4, append([]string{"precision=fp32", "zero.recompute=block"}, experts...)...)
	gpuAgrees(t, []int{0, 3}, 1e-4, append([]string{"precision=fp32", "parallel.expert=2"}, experts...)...)
	gpuAgrees(t, []int{1, 3}, 5e-2, append([]string{"precision=bf16"}, experts...)...)
}

// TestGPUCodedWeightsAreDecodedOnes checks that a run on GPUs with weights in 4 or 8 bits has the
// losses, norms and merged model, to the bit, of one with their decoded values.
func TestGPUCodedWeightsAreDecodedOnes(t *testing.T) {
	fake.Need(t)
	from := filepath.Join(hfLlama, "llama")
	for weights, ways := range map[string][][]string{
		"nf4":  {{"parallel.ranks=2", "zero.stage=3", "train.lora.dropout=0.1"}, {"parallel.ranks=1", "zero.stage=0", "zero.recompute=block"}},
		"int8": {{"parallel.ranks=2", "zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host"}},
	} {
		plain := decoded(t, from, weights)
		for _, way := range ways {
			codedAsDecoded(t, from, plain, append(way, "device=cuda", "model.weights="+weights))
		}
	}
}

// TestGPUMuonAgreesToTheBit checks that stages, ranks and replicas agree to the bit, and that
// weights move within a tenth of the CPU's distance. Muon orthogonalizes with bf16 products,
// which amplify rounding of gradients: on the CPU, dividing matrices over two ranks already
// changes the movement by up to 2.4 %.
func TestGPUMuonAgreesToTheBit(t *testing.T) {
	fake.Need(t)
	muon := []string{"optimizer.type=muon"}
	for i, sets := range [][]string{
		{"precision=fp32", "parallel.ranks=3"},
		{"precision=fp32", "parallel.ranks=1", "optimizer.nesterov=false", "optimizer.adjust_lr_fn=match_rms_adamw"},
		{"precision=bf16", "parallel.ranks=2", "train.accumulate=1", "model.family=llama", "model.kv_heads=1"},
	} {
		stages := []int{0, 1, 2, 3}
		if !nightly.Every(3, i) {
			stages = []int{0, 3}
		}
		gpuAgrees(t, stages, 1e-2, slices.Concat(muon, sets)...)
	}
	gpuAgrees(t, []int{1, 2, 3}, 1e-2, slices.Concat(muon, []string{"precision=fp32", "parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"})...)
	movesAsOnCPU(t, 0.1, slices.Concat(muon, []string{"precision=fp32", "parallel.ranks=2", "train.steps=2", "optimizer.lr=0.02"})...)
	ranks := onGPU(t, slices.Concat(muon, []string{"parallel.ranks=4", "zero.stage=3"})...)
	zerotest.SameBits(t, "micro-batches", onGPU(t, slices.Concat(muon, []string{"parallel.ranks=1", "train.accumulate=4", "zero.stage=3"})...), ranks)
}

// movesAsOnCPU fails unless each matrix of the blocks moves as on the CPU, within a fraction most
// of the distance.
func movesAsOnCPU(t *testing.T, most float64, sets ...string) {
	t.Helper()
	got, want := onGPU(t, sets...), onCPU(t, sets...)
	from := onCPU(t, append(slices.Clone(sets), "optimizer.lr=1e-30", "optimizer.adamw.lr=1e-30")...)
	for _, name := range want.Names() {
		if !strings.HasPrefix(name, zero.Master) || !strings.Contains(name, ".h.") || !strings.HasSuffix(name, ".weight") || strings.Contains(name, ".ln_") {
			continue
		}
		var apart, way float64
		for i, w := range want.State[name] {
			apart, way = apart+math.Pow(float64(got.State[name][i]-w), 2), way+math.Pow(float64(w-from.State[name][i]), 2)
		}
		if !(apart <= most*most*way) || way == 0 {
			t.Errorf("%s is apart from the CPU's by %.2g of its way of %.2g", name, math.Sqrt(apart/way), math.Sqrt(way))
		}
	}
}

// TestGPUDropsWeights checks that attention drops the same weights as the CPU, in kernels on
// tensor cores and in the others. Stages, ranks, micro-batches and recomputation agree to the
// bit, and another probability gives another result.
func TestGPUDropsWeights(t *testing.T) {
	fake.Need(t)
	drops := append([]string{"model.dropout=0.2", "model.attention_dropout=0.3", "parallel.ranks=2", "train.micro_batch=1"}, sgd...)
	gpuAgrees(t, []int{0, 1, 2, 3}, 1e-4, append(slices.Clone(drops), "precision=fp32")...)
	sets := slices.Concat(llama, drops, []string{"model.width=32", "precision=bf16"})
	gpuAgrees(t, []int{0, 3}, 5e-2, sets...)
	sets = append(sets, "zero.stage=3")
	want := onGPU(t, append(slices.Clone(sets), "train.accumulate=1")...)
	for _, way := range [][]string{{"zero.recompute=block"}, {"parallel.ranks=1", "train.accumulate=2"}} {
		zerotest.SameBits(t, fmt.Sprint(way), onGPU(t, slices.Concat(sets, []string{"train.accumulate=1"}, way)...), want)
	}
	if other := onGPU(t, slices.Concat(sets, []string{"train.accumulate=1", "model.attention_dropout=0.31"})...); other.Losses[0] == want.Losses[0] {
		t.Errorf("a loss of %v with another probability, too", other.Losses[0])
	}
}

// TestGPUUnfused checks that stages agree, close to the CPU, even if cuBLASLt has no fused
// algorithms. The run then reports once which operations were not fused.
func TestGPUUnfused(t *testing.T) {
	fake.Need(t)
	for _, lacks := range []string{"", "1,4,164,192,256,512"} {
		t.Setenv("FAKECUBLAS_LACKS", lacks)
		var said strings.Builder
		c := cfg(t, "device=cuda", "parallel.ranks=2", "train.steps=2", "precision=bf16")
		if err := job.Run(t.Context(), c, job.Options{Out: filepath.Join(t.TempDir(), "run"), Observer: report.NewProgress(&said)}); err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]int{"a bias (": 1, "a bias and GELU": 1, "the slope of GELU": 1} {
			if lacks == "" {
				want = 0
			}
			if n := strings.Count(said.String(), "with "+what); n != want {
				t.Errorf("without %q %d lines are about %s, want %d:\n%s", lacks, n, what, want, said.String())
			}
		}
	}
	for _, family := range [][]string{nil, llama} {
		gpuAgrees(t, []int{0, 3}, 1e-4, slices.Concat(family, sgd, []string{"precision=fp32", "parallel.ranks=2"})...)
	}
}

// TestGPUMultipliesInFloat32 checks that no product uses TF32 or 16-bit accumulation: cuBLAS must
// be called with float32 accumulation in its default mode, with and without fused epilogues.
func TestGPUMultipliesInFloat32(t *testing.T) {
	fake.Need(t)
	for precision, want := range map[string]string{"fp32": "type 0 ", "bf16": "type 14 ", "bf16 optimizer.type=muon": "type 14 "} {
		file := filepath.Join(t.TempDir(), "products")
		t.Setenv("FAKECUBLAS_PRODUCTS", file)
		t.Setenv("FAKECUBLAS_SEED", "1")
		onGPU(t, append(strings.Fields("precision="+precision), "parallel.ranks=2", "train.steps=2")...)
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		plain, fused := 0, 0
		for _, line := range lines {
			if !strings.HasPrefix(line, want) || !strings.Contains(line, "compute 68 math 0 ") {
				t.Fatalf("a product of a job in %s is %s", precision, line)
			}
			if strings.HasSuffix(line, "reduction 4") {
				t.Fatalf("a product adds parts in its own type: %s", line)
			}
			if strings.Contains(line, "epilogue 1 ") {
				plain++
			} else {
				fused++
			}
		}
		if plain < 10 || fused < 10 {
			t.Errorf("%s: %d products, and %d with something fused into them", precision, plain, fused)
		}
	}
}

// TestGPUOffloadAgreesToTheBit checks that offload changes nothing: the host's update kernels are
// bit-identical to the GPU's.
func TestGPUOffloadAgreesToTheBit(t *testing.T) {
	fake.Need(t)
	for _, rule := range []string{"adamw", "muon", "adam", "lion", "sgd"} {
		sets := []string{"precision=bf16", "parallel.ranks=2", "optimizer.type=" + rule, "optimizer.lr=1e-2"}
		want := onGPU(t, sets...)
		for _, offload := range [][]string{
			{"zero.offload.optimizer=host"}, {"zero.offload.optimizer=host", "zero.offload.ratio=0.5"},
			{"zero.offload.optimizer=disk", "zero.offload.parameters=host", "zero.offload.path=" + t.TempDir()},
		} {
			zerotest.SameBits(t, fmt.Sprint(rule, offload), onGPU(t, slices.Concat(sets, offload)...), want)
			if rule != "adamw" && rule != "muon" {
				break
			}
		}
	}
}

// TestGPUsAgreeToTheBit checks that ranks on several GPUs are bit-identical to ranks on one.
func TestGPUsAgreeToTheBit(t *testing.T) {
	fake.Need(t)
	if os.Getenv("FAKECUDA_DEVICES") == "" {
		want := fmt.Sprintf("DIGEST=%d", onGPU(t, "parallel.ranks=4").Digest())
		for _, gpus := range []string{"auto", "[2, 0]"} {
			fake.Again(t, "TestGPUsAgreeToTheBit", want, "FAKECUDA_DEVICES=3", "FAKECUDA_MODE=lazy:7", "GPUS="+gpus)
		}
		return
	}
	if got := fmt.Sprintf("%d", onGPU(t, "parallel.ranks=4", "parallel.gpus="+os.Getenv("GPUS")).Digest()); got != os.Getenv("DIGEST") {
		t.Errorf("other bits on 3 GPUs than on one")
	}
	if c := cfg(t, "device=cuda"); c.Parallel.Ranks != 3 {
		t.Errorf("%d ranks on 3 GPUs when the job does not say", c.Parallel.Ranks)
	}
}

// TestGPUResume checks that a run that resumes at another stage is bit-identical to one that did
// not stop, and that the CPU can resume from a GPU's checkpoint.
func TestGPUResume(t *testing.T) {
	fake.Need(t)
	dir := t.TempDir()
	run(t, saving(t, dir, "device=cuda", "parallel.ranks=2"), "")
	want := digest(t, dir, "6")
	for _, on := range []string{"cuda", "cpu"} {
		half := filepath.Join(t.TempDir(), "ckpt")
		if err := os.CopyFS(half, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(half, "step-00000006")); err != nil {
			t.Fatal(err)
		}
		run(t, saving(t, half, "device="+on, "parallel.ranks=2", "zero.stage=1"), "latest")
		if got := digest(t, half, "6"); on == "cuda" && got != want {
			t.Errorf("the run that goes on has other state: %s, want %s", got, want)
		}
	}
}

// TestGPUSample checks that checkpoints written on a GPU, and the text generated from them, are
// close to the CPU's.
func TestGPUSample(t *testing.T) {
	fake.Need(t)
	c := saving(t, t.TempDir(), "device=cuda", "parallel.ranks=2")
	out := t.TempDir()
	if err := job.Run(context.Background(), c, job.Options{Out: out}); err != nil {
		t.Fatal(err)
	}
	var b [2]bytes.Buffer
	for i, on := range []string{"cuda", "cpu"} {
		if err := generate.Sample(context.Background(), generate.Options{Run: out, Prompt: "the", Tokens: 20, Device: on}, &b[i]); err != nil {
			t.Fatal(err)
		}
	}
	if b[0].String() != b[1].String() || !strings.HasPrefix(b[0].String(), "the") {
		t.Errorf("likeliest tokens on the GPU %q, on the CPU %q", &b[0], &b[1])
	}
}

// TestGPURefusals checks that jobs that ask for missing GPUs fail before anything is written.
func TestGPURefusals(t *testing.T) {
	fake.Need(t)
	out := filepath.Join(t.TempDir(), "run")
	err := job.Run(context.Background(), cfg(t, "device=cuda", "parallel.gpus=[0, 5]"), job.Options{Out: out})
	if err == nil || !strings.Contains(err.Error(), "parallel.gpus names GPU 5, but this machine has 0") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("the run folder has been made")
	}
}

// TestGPUMemoryIsMeasured checks that the memory that NVML reports for the process equals what
// the ranks hold, which equals the plan, plus the context. If NVML does not list the process,
// nothing is reported.
func TestGPUMemoryIsMeasured(t *testing.T) {
	fake.Need(t)
	const context, slack = 300 << 20, 1 << 20 // the fake's; reservations begin and end at multiples of 256 bytes
	for _, hidden := range []bool{false, true} {
		if hidden {
			t.Setenv("FAKENVML_HIDE", "1")
		}
		var said strings.Builder
		out := filepath.Join(t.TempDir(), "run")
		c := cfg(t, "device=cuda", "parallel.ranks=2", "train.steps=2")
		if err := job.Run(t.Context(), c, job.Options{Out: out, Observer: report.NewProgress(&said)}); err != nil {
			t.Fatal(err)
		}
		m := lastMemory(t, filepath.Join(out, "metrics.jsonl"))
		planned := sumOf(m.Planned.Device)
		if m.Process.GPUHeld != 2*planned {
			t.Errorf("2 ranks hold %d bytes on the GPU, planned are %d for each", m.Process.GPUHeld, planned)
		}
		switch rest := m.Process.GPU - m.Process.GPUHeld; {
		case hidden && m.Process.GPU != 0:
			t.Errorf("%d bytes of a process that is not in the list", m.Process.GPU)
		case !hidden && (rest < context || rest > context+slack):
			t.Errorf("%d bytes on the GPU, of which ranks hold %d: the context has %d", m.Process.GPU, m.Process.GPUHeld, context)
		}
		if strings.Contains(said.String(), "the driver reports") == hidden || !hidden && !strings.Contains(said.String(), " by contexts, kernels and libraries") {
			t.Errorf("hidden %v: %s", hidden, &said)
		}
	}
}

// TestGPUPriorities checks that a rank's collectives and pipeline links run on streams of higher
// priority than its other work.
func TestGPUPriorities(t *testing.T) {
	fake.Only(t)
	for set, want := range map[string]int{"parallel.ranks=2": 2, "parallel.pipeline=2": 2 * (1 + int(collective.PipelineLinks))} {
		file := filepath.Join(t.TempDir(), "streams")
		t.Setenv("FAKECUDA_STREAMS", file)
		onGPU(t, set, "parallel.ranks=2", "train.steps=1", "train.accumulate=2")
		raw, err := os.ReadFile(file)
		if got := strings.Count(string(raw), "priority -5\n"); err != nil || got != want {
			t.Errorf("%s: %d streams of the highest priority, want %d (%v)\n%s", set, got, want, err, raw)
		}
	}
}

// TestGPUBench checks that zeroth bench measures copies, launches, products and kernels on a GPU,
// and that a plan can be simulated with the measured machine.
func TestGPUBench(t *testing.T) {
	fake.Need(t)
	if os.Getenv("FAKECUDA_DEVICES") == "" {
		fake.Again(t, "TestGPUBench", "FAKECUDA_DEVICES=2", "FAKECUDA_NO_CUBINS=flash_bf16_96")
		return
	}
	r, err := bench.Run(t.Context(), bench.Options{Groups: []string{"gpu"}, Seconds: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for _, l := range r.Lines {
		lines[l.Name] = true
		if !(l.Seconds > 0) || !(l.Rate > 0) || l.Samples < 1 || l.LimitName != "" && !(l.Share > 0) {
			t.Errorf("%+v", l)
		}
	}
	if name := "compile the kernels flash_bf16_96 (their cubin: CUDA_ERROR_INVALID_IMAGE)"; !lines[name] && !fake.OnHardware() {
		t.Errorf("no line %q", name)
	}
	for _, want := range []string{"copies both ways at once", "copy from another GPU", "load the kernels base", "load the kernels flash_bf16_64", "square product bf16", "product logits", "product with bias and GELU", "product, then a bias's gradient", "AdamW", "attention gradient", "product of one row, bf16", "experts' gradient of weights"} {
		if !lines[want] {
			t.Errorf("no line %q", want)
		}
	}
	if !lines["attention by wgmma"] && !fake.OnHardware() { // of any capability
		t.Error("no line for attention by wgmma")
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	raw, err := json.Marshal(r.Machine())
	if err == nil {
		err = os.WriteFile(file, raw, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	h, err := forecast.OpenHardware(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, ranks := range []string{"1", "2"} {
		if s, err := forecast.Simulate(setup.Planned(cfg(t, "device=cuda", "parallel.ranks="+ranks, "zero.offload.optimizer=host")), h); err != nil || !(s.Seconds > 0) {
			t.Errorf("%s ranks: %+v, %v", ranks, s, err)
		}
	}
	if _, err := forecast.Simulate(setup.Planned(cfg(t, "device=cuda", "parallel.ranks=3")), h); err == nil || !strings.Contains(err.Error(), "no link that joins 3 ranks") {
		t.Errorf("3 ranks on 2 GPUs: %v", err)
	}
}

// TestGPUKeepsActivationsOnTheHost checks that activations in pinned host memory change no bit, with a single
// block and with several, micro-batches in flight, and parameters that share the streams of copies.
func TestGPUKeepsActivationsOnTheHost(t *testing.T) {
	nightly.Long(t)
	for i, sets := range [][]string{
		{"parallel.ranks=1", "model.layers=1", "zero.recompute=block"},
		{"parallel.ranks=2", "model.layers=5", "zero.recompute=linear", "zero.offload.parameters=host", "train.accumulate=2"},
		{"parallel.ranks=2", "model.layers=6", "zero.recompute=block", "parallel.pipeline=2", "train.accumulate=4"},
	} {
		if i > 0 {
			sets = append(sets, llama...)
		}
		want := onGPU(t, sets...)
		zerotest.SameBits(t, fmt.Sprint(sets), onGPU(t, append(sets, "zero.offload.activations=host")...), want)
	}
}

// TestGPUUpdateIsCompleted is TestUpdateIsCompleted on a GPU.
func TestGPUUpdateIsCompleted(t *testing.T) {
	fake.Need(t)
	TestUpdateIsCompleted(t)
}
