package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// builder collects rungs.
type builder struct {
	*session
	part int
	all  []rung
}

func (b *builder) add(name string, seconds int, f func(*session, context.Context) error) {
	limit := time.Duration(seconds) * time.Second
	if b.small { // longer, since the machine may be busy with other work
		limit *= 5
	}
	if b.each > 0 {
		limit = b.each
	}
	b.all = append(b.all, rung{name, b.part, limit, f})
	b.order = append(b.order, name)
}

// tests adds a rung for each test of a program.
func (b *builder) tests(group, binary string, names []string, seconds int) {
	for _, name := range names {
		b.add(group+"/"+strings.TrimPrefix(name, "Test"), seconds, test(binary, "^"+name+"$"))
	}
}

// rungs returns all rungs in order. Some are tests, as listed by the carried test programs.
func (s *session) rungs(ctx context.Context) []rung {
	kernels, err1 := s.list(ctx, "kernel.test")
	queues, err2 := s.list(ctx, "cuda.test")
	b := &builder{session: s, part: 1}
	if err := errors.Join(err1, err2); err != nil {
		b.add("test-programs", 20, func(*session, context.Context) error { return err })
	}
	b.works(kernels)
	b.part = 2
	b.measures(queues)
	b.part = 3
	b.trains()
	return b.all
}

// works adds the rungs that show whether zeroth works and how fast.
func (b *builder) works(kernels []string) {
	b.add("versions", 40, (*session).versions)
	b.add("open", 40, test("cuda.test", "^TestOpens$"))
	b.add("load/base", 60, loads("base"))
	b.add("first-kernels", 20, test("cuda.test", "^TestFirstKernels$"))
	for _, typ := range []string{"bf16", "fp32", "fp16"} {
		b.add("product/"+typ, 30, test("cuda.test", "^TestProducts$/^"+typ+"$"))
	}
	for _, e := range epilogues {
		b.add("epilogue/"+e, 30, test("cuda.test", "^TestEpilogues$/^"+e+"$"))
	}
	b.add("nccl/one-rank", 40, test("cuda.test", "^TestNCCLOneRank$"))
	b.add("job/first", 60, (*session).firstJob)
	b.add("job/gpt2", 60, gpt2.speed)
	b.add("job/llama", 60, llama.speed)
	for _, f := range b.families() {
		if f != "base" {
			b.add("load/"+f, 60, loads(f))
		}
	}
	b.tests("kernel", "kernel.test", without(kernels, hostOnly, "TestFamilyLoads", "TestPTXMatchesSources"), 60)
}

// measures adds benchmarks, small jobs, and tests of everything between kernels.
func (b *builder) measures(queues []string) {
	b.add("bench", 60, (*session).bench)
	b.add("bench/simulated", 20, (*session).simulated)
	b.add("roofline", 60, (*session).roofline)
	for _, name := range []string{"Resume", "Sample", "StagesAgreeToTheBit", "OffloadAgreesToTheBit", "MuonAgreesToTheBit"} {
		if !b.small || name == "Resume" || name == "Sample" {
			b.add("jobs/"+name, 60, test("tests.test", "^TestGPU"+name+"$"))
		}
	}
	b.tests("queue", "cuda.test", without(queues, rungTests), 40)
	b.add("kernel-tables", 20, test("kernel.test", "^("+strings.Join(hostOnly, "|")+")$"))
}

// trains adds whole jobs.
func (b *builder) trains() {
	for _, job := range []string{"quickstart", "gpt2"} {
		for _, ranks := range []int{1, 4} {
			b.add(fmt.Sprintf("stages/%s-%d-ranks", job, ranks), 60, stages(job, ranks))
		}
		b.add("near-cpu/"+job, 60, nearCPU(job))
	}
	for _, ratio := range []string{"none", "0.5", "1"} {
		b.add("offload/"+ratio, 60, offload(ratio))
	}
	for _, m := range []speedJob{gpt2, llama} {
		for _, how := range []string{"plain", "compiled", "fully_shard"} {
			b.add("torch/"+m.name+"-"+how, 90, m.torch(how))
		}
	}
}

// epilogues lists the epilogues of TestEpilogues.
var epilogues = []string{"bias", "residual", "residual-bias", "gelu", "gelu-slope", "bias-gradient", "bias-gradient-transposed"}

// hostOnly lists the kernel tests that use no GPU, rungTests those that are rungs under other
// names.
var (
	hostOnly  = []string{"TestTable", "TestFamilies", "TestForHeads", "TestNothingIsAllocated", "TestWorkLenIsEnough", "TestSharedFitsEveryGPU", "TestRefuses", "TestRegistersDoNotSpill", "TestOccupancy"}
	rungTests = []string{"TestOpens", "TestFirstKernels", "TestProducts", "TestEpilogues", "TestNCCLOneRank"}
)

func without(names, some []string, more ...string) (left []string) {
	for _, name := range names {
		if !slices.Contains(some, name) && !slices.Contains(more, name) {
			left = append(left, name)
		}
	}
	return left
}

// list returns the tests of a program, which it prints without a GPU.
func (s *session) list(ctx context.Context, binary string) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	said, err := s.output(ctx, binary, "-test.list=^Test")
	for line := range strings.Lines(said) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	return names, err
}

// families returns the kernel families in the carried list.
func (s *session) families() []string {
	raw, err := os.ReadFile(filepath.Join(s.dir, "families.txt"))
	if err != nil {
		return nil // the rungs of kernels report what is missing
	}
	return strings.Fields(string(raw))
}

// test returns a rung that runs tests of a program and reports their rows and failures.
func test(binary, pattern string) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		args := []string{"-test.v", "-test.count=1", "-test.run=" + pattern}
		dumps := filepath.Join(s.dir, "dumps")
		if err := os.MkdirAll(dumps, 0o777); err != nil {
			return err
		}
		defer os.RemoveAll(dumps)
		env := s.env
		s.env = append(env[:len(env):len(env)], "ZEROTH_DUMP="+dumps)
		if !s.small && binary != "cuda.test" { // whose other cases are more worlds and orders of the same claims
			s.env = append(s.env, "ZEROTH_NIGHTLY=1")
		}
		said, err := s.output(ctx, binary, args...)
		s.env = env
		s.rowsOf(said)
		if err == nil {
			return passed(said)
		}
		if why := complaint(said); why != "" && ctx.Err() == nil {
			err = errors.New(why)
		}
		return errors.Join(err, s.examine(ctx, binary, args, dumps))
	}
}

func loads(family string) func(*session, context.Context) error {
	return test("kernel.test", "^TestFamilyLoads$/^"+family+"$")
}

// rowsOf adds the rows that a test program printed.
func (s *session) rowsOf(said string) {
	for line := range strings.Lines(said) {
		if cells := strings.Split(strings.TrimRight(line, "\n"), "\t"); len(cells) == 4 && cells[0] == "row" {
			s.row(cells[1], cells[2], cells[3], "")
		}
	}
}

var (
	skipped  = regexp.MustCompile(`(?m)^\s+\S+_test\.go:\d+: (.*)\n--- SKIP`)
	complain = regexp.MustCompile(`(?m)^\s+\S+_test\.go:\d+: (.*)`)
)

// passed returns nil if a test has passed. If all were skipped, it returns the reason.
func passed(said string) error {
	if strings.Contains(said, "--- PASS: ") {
		return nil
	}
	if why := skipped.FindStringSubmatch(said + "\n"); why != nil {
		return leftOut(why[1])
	}
	if strings.Contains(said, "--- SKIP: ") {
		return leftOut("it skips itself")
	}
	return errors.New("no such test is in the program")
}

// complaint returns the first message before the first failed test or panic.
func complaint(said string) string {
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "SIG") {
			return strings.TrimSpace(line)
		}
	}
	if why := complain.FindStringSubmatch(said); why != nil {
		return why[1]
	}
	return ""
}

// examine archives the dumps of a failed test and, if compute-sanitizer is installed, lets it
// find what a kernel did wrong.
func (s *session) examine(ctx context.Context, binary string, args []string, dumps string) error {
	if files, err := os.ReadDir(dumps); err == nil && len(files) > 0 {
		if err := archive(s.file("dumps.tar.gz"), dumps, strings.ReplaceAll(s.now.Rung, "/", "-")); err != nil {
			return err
		}
		s.row("operands", fmt.Sprintf("%d files", len(files)), "in dumps.tar.gz", "")
	}
	sanitizer := sanitizer()
	if binary != "kernel.test" || sanitizer == "" || ctx.Err() != nil { // the program would hang again
		return nil
	}
	limit := time.Minute
	if s.each > 0 {
		limit = s.each
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	said, err := s.output(ctx, sanitizer, append([]string{"--tool=memcheck", "--print-limit=20", filepath.Join(s.dir, binary)}, args...)...)
	first, summary := "", "no summary"
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(strings.TrimLeft(line, "= "))
		if first == "" && (strings.HasPrefix(line, "Invalid ") || strings.HasPrefix(line, "Misaligned ")) {
			first = line
		}
		if strings.HasPrefix(line, "ERROR SUMMARY") {
			summary = line
		}
	}
	if err != nil && ctx.Err() != nil {
		summary = "not done within its time limit"
	}
	s.row("compute-sanitizer", summary, first, "")
	return nil
}

// sanitizer returns the path of compute-sanitizer, or "".
func sanitizer() string {
	if path, err := exec.LookPath("compute-sanitizer"); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/local/cuda*/bin/compute-sanitizer", "/opt/cuda*/bin/compute-sanitizer"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the patterns are valid
			return found[len(found)-1]
		}
	}
	return ""
}

var exports = regexp.MustCompile(`(?m)export (ZEROTH_\w+_PATH=.+)$`)

// find sets the environment of all programs: libraries that only Python can locate, according to
// doctor, NCCL's warnings and, if there is no home folder, a cache for compiled kernels. It runs
// before any rung.
func (s *session) find(ctx context.Context) {
	if os.Getenv("NCCL_DEBUG") == "" {
		s.env = append(s.env, "NCCL_DEBUG=WARN")
	}
	home, err := os.UserHomeDir()
	if err == nil {
		err = os.MkdirAll(filepath.Join(home, ".nv", "ComputeCache"), 0o700)
	}
	if os.Getenv("CUDA_CACHE_PATH") == "" && err != nil {
		s.env = append(s.env, "CUDA_CACHE_PATH="+filepath.Join(s.dir, "kernels"))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	said, _ := s.output(ctx, "zeroth", "doctor") // the rung "versions" reports errors
	for _, found := range exports.FindAllStringSubmatch(said, -1) {
		s.env = append(s.env, found[1])
	}
}

// versions reports the installed versions. The log contains all places searched for libraries,
// the table those with results.
func (s *session) versions(ctx context.Context) error {
	said, err := s.output(ctx, "zeroth", "doctor")
	for line := range strings.Lines(said) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if found && !(name == "looked" && strings.HasSuffix(value, ": nothing")) {
			s.row(name, strings.TrimSpace(value), "", "")
		}
	}
	for _, set := range s.env {
		s.row("exported", set, "", "")
	}
	if system, err := os.ReadFile("/proc/version"); err == nil {
		s.row("system", string(system), "", "")
	}
	if smi, err := exec.LookPath("nvidia-smi"); err == nil {
		_, _ = s.output(ctx, smi, "-q") // for the log
		said, _ := s.output(ctx, smi, "--query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.max.mem,persistence_mode,mig.mode.current", "--format=csv,noheader")
		s.row("nvidia-smi", firstLine(said), "", "")
	}
	if err == nil && !strings.Contains(said, "auto is cuda here") {
		err = errors.New("zeroth finds no GPU that it can compute on; the rows below say what is missing")
	}
	return err
}

// bench compares copies, launches, loading, products and kernels with the GPU's limits. If its
// time is up, it reports what it has measured.
func (s *session) bench(ctx context.Context) error {
	seconds := "0.1"
	if s.small {
		seconds = "0.001"
	}
	if deadline, ok := ctx.Deadline(); ok { // reserves time for the report
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Second))
		defer cancel()
	}
	said, err := s.output(ctx, "zeroth", "bench", "gpu", "--json", "--seconds", seconds, "--write-machine", s.file("machine.json"))
	var report struct {
		Lines []struct {
			Name, Unit, Of       string
			Seconds, Rate, Share float64
		}
	}
	if at := strings.Index(said, "{"); at >= 0 {
		if err := json.NewDecoder(strings.NewReader(said[at:])).Decode(&report); err != nil {
			return err
		}
	}
	for _, l := range report.Lines {
		rate, beside := fmt.Sprintf("%.4g s", l.Seconds), ""
		if l.Unit != "" {
			rate = fmt.Sprintf("%s%s, %.4g s", prefixed(l.Rate), l.Unit, l.Seconds)
		}
		if l.Of != "" {
			beside = fmt.Sprintf("%.2f of %s", l.Share, l.Of)
		}
		s.check(l.Name, rate, beside, l.Seconds > 0, "nothing was measured")
	}
	if err == nil && len(report.Lines) == 0 {
		err = errors.New("nothing was measured")
	}
	return err
}

// prefixed formats a rate with a metric prefix, for example "4.3 T".
func prefixed(x float64) string {
	const prefixes = " kMGTPE"
	i := 0
	for ; x >= 1000 && i < len(prefixes)-1; i++ {
		x /= 1000
	}
	return fmt.Sprintf("%.4g %s", x, strings.TrimSpace(prefixes[i:i+1]))
}

// roofline compares each kernel of a step of GPT-2 with the expectations of docs/lab/kernels.md.
func (s *session) roofline(ctx context.Context) error {
	said, err := s.output(ctx, "tests.test", "-test.run=^TestRooflineOnGPU$", "-test.v")
	n := 0
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) == 7 && f[0] != "kernel" {
			s.row(f[0], f[3]+" ms in "+f[1]+" launches", f[2]+" ms expected", f[4]+" of that")
			n++
		}
	}
	if err == nil && n <= 10 {
		err = fmt.Errorf("%d kernels of a step; it has more", n)
	}
	return err
}
