package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// part is something to tell, independent of the others.
type part struct {
	name  string
	limit time.Duration
	run   func(*session, context.Context) error
}

// parts are in the order in which something is learned of a machine.
var parts = []part{
	{"machine", time.Minute, (*session).machine},
	{"limits", 90 * time.Second, (*session).limits},
	{"kernels", 2 * time.Minute, (*session).kernels},
	{"queues", time.Minute, (*session).queues},
	{"launches", time.Minute, (*session).launches},
	{"jobs", 90 * time.Second, (*session).jobs},
	{"quickstart", 2 * time.Minute, (*session).quickstart},
	{"gpt2", 4 * time.Minute, (*session).gpt2},
	{"speed", 2 * time.Minute, (*session).speed},
	{"offload", 2 * time.Minute, (*session).offload},
	{"torch", 4 * time.Minute, (*session).torch},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// machine is versions and paths.
func (s *session) machine(ctx context.Context) error {
	said, err := s.output(ctx, "zeroth", "doctor")
	for line := range strings.Lines(said) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found {
			s.table.add(name, value, "", "")
		}
	}
	if err == nil && !strings.Contains(said, "auto is cuda here") {
		err = errors.New("zeroth finds no GPU that it can compute on; its lines above say what is missing")
	}
	return err
}

// limits are copies, launches, loading, products and kernels beside what the GPU
// reaches at most.
func (s *session) limits(ctx context.Context) error {
	seconds := "0.15"
	if s.small {
		seconds = "0.001"
	}
	said, err := s.output(ctx, "zeroth", "bench", "gpu", "--json", "--seconds", seconds, "--write-machine", s.machineFile())
	if err != nil {
		return err
	}
	var report struct {
		Lines []struct {
			Name, Unit, Of       string
			Seconds, Rate, Share float64
		}
	}
	if err := json.Unmarshal([]byte(said), &report); err != nil {
		return err
	}
	for _, l := range report.Lines {
		rate, beside := fmt.Sprintf("%.4g s", l.Seconds), ""
		if l.Unit != "" {
			rate = fmt.Sprintf("%s%s, %.4g s", prefixed(l.Rate), l.Unit, l.Seconds)
		}
		if l.Of != "" {
			beside = fmt.Sprintf("%.2f of %s", l.Share, l.Of)
		}
		s.table.check(l.Name, rate, beside, l.Seconds > 0, "nothing was measured")
	}
	return nil
}

func (s *session) machineFile() string { return filepath.Join(s.work, "machine.json") }

// prefixed is a rate with a metric prefix: "4.3 T".
func prefixed(x float64) string {
	const prefixes = " kMGTPE"
	i := 0
	for ; x >= 1000 && i < len(prefixes)-1; i++ {
		x /= 1000
	}
	return fmt.Sprintf("%.4g %s", x, strings.TrimSpace(prefixes[i:i+1]))
}

// passed counts the tests that a test binary said have passed and failed.
func passed(said string) (ok, bad int) {
	return strings.Count(said, "--- PASS: "), strings.Count(said, "--- FAIL: ")
}

// tests runs tests of a binary, a line for all and one for each that fails.
func (s *session) tests(ctx context.Context, binary, what string, args ...string) (said string, err error) {
	said, err = s.output(ctx, binary, append([]string{"-test.v"}, args...)...)
	ok, bad := passed(said)
	s.table.check(what, fmt.Sprintf("%d tests pass", ok), fmt.Sprintf("%d fail", bad), err == nil && ok > 0 && bad == 0, "see log.txt")
	for _, line := range failing.FindAllStringSubmatch(said, -1) {
		s.table.add(line[1], "", "", failed("see log.txt"))
	}
	return said, ctx.Err()
}

var failing = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// kernels is every kernel beside the CPU's, twice, with equal bits. That the PTX is of
// the sources is for where there are sources.
func (s *session) kernels(ctx context.Context) error {
	args := []string{"-test.skip=TestPTXIsOfTheSources"}
	if s.small {
		args = append(args, "-test.short")
	}
	said, err := s.tests(ctx, "kernel.test", "every kernel beside the CPU's", args...)
	if line := launched.FindString(said); line != "" {
		s.table.add("launches", line, "", "")
	}
	return err
}

var launched = regexp.MustCompile(`(?m)^on a GPU: .*`)

func (s *session) queues(ctx context.Context) error {
	_, err := s.tests(ctx, "cuda.test", "memory, queues, groups of ranks and products", "-test.short")
	return err
}

// launches is each kernel of a step of GPT-2 beside what docs/kernels.md expects.
func (s *session) launches(ctx context.Context) error {
	said, err := s.output(ctx, "tests.test", "-test.run=^TestRooflineOnGPU$", "-test.v")
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) == 7 && f[0] != "kernel" {
			s.table.add(f[0], f[3]+" ms in "+f[1]+" launches", f[2]+" ms expected", f[4]+" of that")
			n++
		}
	}
	s.table.check("kernels of a step", strconv.Itoa(n), "", n > 10, "a step has more; see log.txt")
	return nil
}

// jobs is small GPT-2s and Llamas: stages, precisions, accumulation, hybrid, offload,
// resume and sample.
func (s *session) jobs(ctx context.Context) error {
	which := "^TestGPU(StagesAgreeToTheBit|OffloadAgreesToTheBit|Resume|Sample)$"
	if s.small {
		which = "^TestGPU(Resume|Sample)$"
	}
	_, err := s.tests(ctx, "tests.test", "small jobs at all stages beside the CPU's", "-test.run="+which)
	return err
}

// tiny makes a job one for an emulated GPU.
func (s *session) tiny(sets ...string) []string {
	if s.small {
		sets = append(sets, "model.layers=2", "model.heads=2", "model.width=32", "model.context=16", "model.vocab=256")
	}
	return sets
}

func (s *session) quickstart(ctx context.Context) error {
	return s.stages(ctx, "quickstart.yaml", 4, s.tiny("data.text=[text.txt]", "data.validation=0", "train.eval_every=0", "sample.tokens=0", s.steps(10)))
}

func (s *session) gpt2(ctx context.Context) error {
	return s.stages(ctx, "gpt2.yaml", 1, s.tiny(s.steps(4)))
}

// steps is that many, or 3 where they are emulated.
func (s *session) steps(n int) string {
	if s.small {
		n = 3
	}
	return fmt.Sprintf("train.steps=%d", n)
}

// nearCPU is how far losses may be from the CPU's, of the loss: bf16 has 8 bits, and
// sums have other orders.
const nearCPU = 0.02

// stages trains at each stage on 1 and on 4 ranks of the GPU, micro sequences at a
// time, 4 times that a step. All have the same batch, and one rank on the CPU too.
func (s *session) stages(ctx context.Context, job string, micro int, sets []string) error {
	cpu, err := s.train(ctx, job, false, append(sets, "device=cpu", "parallel.ranks=1", fmt.Sprintf("train.micro_batch=%d", micro), "train.accumulate=4")...)
	if err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	for _, ranks := range []int{1, 4} {
		var first result
		for stage := range 4 {
			r, err := s.train(ctx, job, true, append(sets, "device=cuda", fmt.Sprintf("parallel.ranks=%d", ranks), fmt.Sprintf("zero.stage=%d", stage),
				fmt.Sprintf("train.micro_batch=%d", micro), fmt.Sprintf("train.accumulate=%d", 4/ranks))...)
			if err != nil {
				return fmt.Errorf("%d ranks, stage %d: %w", ranks, stage, err)
			}
			if stage == 0 {
				first = r
			}
			what := fmt.Sprintf("%d ranks, stage %d", ranks, stage)
			s.table.check(what+": state and losses", "sha256 "+r.digest[:12], "stage 0: "+first.digest[:12], r.digest == first.digest && r.curve() == first.curve(), "other bits than stage 0")
			s.table.check(what+": memory", fmt.Sprintf("%d MiB held", r.memory.held>>20), fmt.Sprintf("%d MiB planned for each", r.memory.planned>>20), r.memory.held == int64(ranks)*r.memory.planned, "not what was planned")
		}
		far := apart(first, cpu)
		s.table.check(fmt.Sprintf("%d ranks: losses", ranks), fmt.Sprintf("%.2g of the CPU's apart", far), fmt.Sprintf("at most %.2g", nearCPU), far <= nearCPU, "far from the CPU's")
	}
	return nil
}

// fits are sequences of a micro-batch for speed, as many as the GPU has room for.
func (s *session) fits(ctx context.Context) (micro int) {
	if s.small {
		return 1
	}
	for micro = 64; micro > 1; micro /= 2 {
		if _, err := s.output(ctx, "zeroth", "plan", "gpt2.yaml", "--set", "device=cuda", "--set", "parallel.ranks=1", "--set", fmt.Sprintf("train.micro_batch=%d", micro)); err == nil {
			break
		}
	}
	return micro
}

// speedSets are what speed, offload and PyTorch are measured with: one rank, AdamW,
// bf16 with float32 master copies.
func (s *session) speedSets(ctx context.Context) []string {
	return s.tiny("device=cuda", "parallel.ranks=1", "train.accumulate=1", "train.loss_chunk=8192", fmt.Sprintf("train.micro_batch=%d", s.fits(ctx)), s.steps(16))
}

// speed is tokens a second of GPT-2 124M beside what a simulation on the measured
// machine says, and the memory of the run beside the plan.
func (s *session) speed(ctx context.Context) error {
	sets := s.speedSets(ctx)
	r, err := s.train(ctx, "gpt2.yaml", false, append(sets, "zero.stage=0")...)
	if err != nil {
		return err
	}
	beside := ""
	if isFile(s.machineFile()) {
		args := []string{"plan", "gpt2.yaml", "--machine", s.machineFile(), "--set", "zero.stage=0"}
		for _, set := range sets {
			args = append(args, "--set", set)
		}
		said, err := s.output(ctx, "zeroth", args...)
		if err != nil {
			return err
		}
		_, beside, _ = strings.Cut(said, "speed   ")
		beside = "simulated: " + firstLine(beside)
	}
	s.table.add("GPT-2 124M, stage 0", s.rate(r), beside, "")
	s.table.add("the host's wait", r.norm, "", "")
	s.table.check("memory of the ranks", fmt.Sprintf("%d MiB", r.memory.held>>20), fmt.Sprintf("%d MiB planned", r.memory.planned>>20), r.memory.held == r.memory.planned, "not what was planned")
	if r.memory.counted == 0 {
		s.table.add("memory of the process", "NVML does not list it", "", "")
		return nil
	}
	s.table.check("memory of the process", fmt.Sprintf("%d MiB by NVML", r.memory.counted>>20), fmt.Sprintf("%d MiB of context, kernels and libraries", (r.memory.counted-r.memory.held)>>20),
		r.memory.counted >= r.memory.held, "less than the ranks hold")
	return nil
}

func (s *session) rate(r result) string {
	return fmt.Sprintf("%.0f tokens/s, %.4g s a step", r.tokens()/r.seconds(), r.seconds())
}

// offload is what it costs to keep a part of the optimizer on the host.
func (s *session) offload(ctx context.Context) error {
	sets := append(s.speedSets(ctx), "zero.stage=3")
	var none result
	for _, ratio := range []string{"none", "0.5", "1"} {
		with := sets
		if ratio != "none" {
			with = append(with, "zero.offload.optimizer=host", "zero.offload.ratio="+ratio)
		}
		r, err := s.train(ctx, "gpt2.yaml", false, with...)
		if err != nil {
			return fmt.Errorf("ratio %s: %w", ratio, err)
		}
		if ratio == "none" {
			none = r
		}
		s.table.check("offloaded: "+ratio, s.rate(r), fmt.Sprintf("%.2f of none", none.seconds()/r.seconds()), r.curve() == none.curve(), "other bits than without")
	}
	return nil
}

// torch is the same model in PyTorch, where that is.
func (s *session) torch(ctx context.Context) error {
	if said, err := exec.CommandContext(ctx, "python3", "-c", "import torch; print(torch.__version__, torch.version.cuda, torch.__file__)").Output(); err != nil {
		s.table.add("PyTorch", "there is none", "", "left out")
		return nil
	} else {
		s.table.add("PyTorch", string(said), "", "")
	}
	micro := s.fits(ctx)
	ours, err := s.train(ctx, "gpt2.yaml", false, append(s.speedSets(ctx), "zero.stage=0")...)
	if err != nil {
		return err
	}
	for _, how := range []string{"plain", "compiled", "fully_shard"} {
		args := []string{"torch_gpt2.py", "--how", how, "--batch", strconv.Itoa(micro)}
		if s.small {
			args = append(args, "--small")
		}
		said, err := s.output(ctx, "python3", args...)
		var got struct {
			Seconds, Tokens, Loss, GiB float64
		}
		if err == nil {
			err = json.Unmarshal([]byte(lastLine(said)), &got)
		}
		if err != nil {
			s.table.add(how, "", "", failed(firstLine(err.Error())))
			continue
		}
		s.table.add(how, fmt.Sprintf("%.0f tokens/s, %.4g s a step, loss %.3f, %.1f GiB", got.Tokens/got.Seconds, got.Seconds, got.Loss, got.GiB),
			s.rate(ours), fmt.Sprintf("zeroth is %.2f times as fast", got.Seconds/ours.seconds()*ours.tokens()/got.Tokens))
	}
	return nil
}
