package report

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"zeroth/internal/show"
	"zeroth/job/jobtest"
	"zeroth/job/trace"
	"zeroth/shard"
)

func TestMetricsLines(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := OpenMetrics("metrics.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	loss := float64(float32(5.5451774)) // a typical float32 loss
	m.Event(Header{})
	m.Step(Step{Step: 1, Loss: loss, LR: 3e-5, GradNorm: math.Inf(1), Tokens: 4096, TokensPerSecond: 8000, StepSeconds: 0.512, Skipped: 1, Time: 1764061234.013})
	m.Event(Note("a note"))
	m.Event(Eval{Step: 1, ValLoss: 0.30000000000000004})
	m.Event(Eval{Step: 2, ValLoss: math.NaN()})
	m.Event(Summary{})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("metrics.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want := `{"step":1,"loss":5.545177459716797,"lr":3e-05,"grad_norm":null,"tokens":4096,"tokens_per_second":8000,"step_seconds":0.512,"skipped":1,"time":1764061234.013,"data_seconds":0}
{"step":1,"val_loss":0.30000000000000004}
{"step":2,"val_loss":null}
`
	if d := cmp.Diff(want, string(raw)); d != "" {
		t.Error(d)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// TestMetricsReadBack checks that metrics written in two sessions are read back to the bit, and
// that a torn last line is ignored.
func TestMetricsReadBack(t *testing.T) {
	t.Chdir(t.TempDir())
	var steps []Step
	var evals []Eval
	for sitting := range 2 {
		m, err := OpenMetrics("m.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			x := math.Float64frombits(0x3ff0000000000000 + uint64(i)*0x9e3779b97f4a7 + uint64(sitting))
			s := Step{Step: sitting*50 + i + 1, Loss: x, LR: x * 1e-300, GradNorm: x * 1e290, Tokens: 1 << 60, TokensPerSecond: -x, StepSeconds: 5e-324, Skipped: i,
				Time: 1764061234.013 + float64(i), DataSeconds: x, MFU: x, Parts: trace.Exposure{Steps: 1, Seconds: x, Compute: x, Exposed: 1 / x, Peers: x / 3, Offload: x / 5, Idle: x / 7},
				Waited: x, Slowest: 3, Behind: x, RankSeconds: Spread{RankValue{x, 1}, RankValue{2 * x, 2}}, RankWaits: Spread{RankValue{0, 3}, RankValue{x, 0}}}
			steps, evals = append(steps, s), append(evals, Eval{Step: s.Step, ValLoss: 1 / x})
			m.Step(s)
			m.Event(evals[len(evals)-1])
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile("m.jsonl", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"step":101,"loss":1.`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	gotSteps, gotEvals, err := ReadMetrics("m.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(steps, gotSteps) + cmp.Diff(evals, gotEvals); d != "" {
		t.Error(d)
	}
}

func TestReadMetricsNullAndErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	jobtest.Write(t, "m", "{\"step\":3,\"loss\":null,\"lr\":1}\n{\"step\":3,\"val_loss\":null}\n")
	steps, evals, err := ReadMetrics("m")
	if err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	want := []Step{{Step: 3, Loss: nan, LR: 1, GradNorm: nan, TokensPerSecond: nan, StepSeconds: nan}}
	if d := cmp.Diff(want, steps, cmpopts.EquateNaNs()) + cmp.Diff([]Eval{{Step: 3, ValLoss: nan}}, evals, cmpopts.EquateNaNs()); d != "" {
		t.Error(d)
	}
	jobtest.Write(t, "m", "{\"step\":3}\n{\"step\":4,}\n")
	if _, _, err := ReadMetrics("m"); err == nil || !strings.Contains(err.Error(), "metrics: m:2: ") {
		t.Errorf("a broken line: %v", err)
	}
	if _, _, err := ReadMetrics("gone"); err == nil {
		t.Error("a file that is not there is read")
	}
}

// TestMetricsWriteError checks that a full disk is reported once, and again at the end.
func TestMetricsWriteError(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full on this system")
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &Metrics{file: full, end: full.Close}
	m.Step(Step{Step: 1})
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Err: %v", err)
	}
	if err := m.Close(); err == nil {
		t.Error("Close forgets the error")
	}
	if _, err := OpenMetrics("/nowhere/m"); err == nil {
		t.Error("opened a file in a folder that is not there")
	}
}

func TestMetricsStepAllocatesNothing(t *testing.T) {
	m := &Metrics{file: io.Discard}
	s := Step{Step: 1, Loss: 2.5, LR: 1e-4}
	m.Step(s)
	if n := testing.AllocsPerRun(100, func() { m.Step(s) }); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

var header = Header{Start: Start{Model: "GPT-2 10.7M", Parameters: 10745856, Ranks: 4, Stage: 3, Precision: "bf16", Steps: 1000, TokensPerStep: 4096},
	Mesh: shard.Mesh{Shard: 2, Replicate: 2}, GlobalBatch: 16, DataTokens: 58123456, Out: "runs/x", MemoryPerRank: 123456789}

func TestLines(t *testing.T) {
	var b bytes.Buffer
	l := newLines(&b)
	l.Event(header)
	for i := 1; i <= 1000; i++ {
		l.Step(Step{Step: i, Loss: 3, LR: 1e-4, GradNorm: 0.5, TokensPerSecond: 20480, StepSeconds: 0.2, Skipped: i / 1000})
		if i == 500 {
			l.Event(Eval{Step: 500, ValLoss: 2.75})
		}
	}
	l.Event(Note("a note"))
	l.Event(Summary{Steps: 1000, Loss: 3, ValLoss: 2.5, Tokens: 4096000, Seconds: 200, MemoryPerRank: 5000, Out: "runs/x", Sample: "func main() {"})
	l.Close()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	head := []string{
		"model   GPT-2 10.7M, 10,745,856 parameters",
		"ranks   4 = shard 2 × replicate 2, stage 3, bf16",
		"batch   16 sequences, 4,096 tokens a step, 1,000 steps",
		"data    58,123,456 tokens",
		"memory  117.7 MiB a rank",
		"out     runs/x",
		"step 1/1000  loss 3.0000  20.5k tokens/s  ETA 3m20s  lr 1.00e-04  norm 0.500",
		"step 6/1000  loss 3.0000  20.5k tokens/s  ETA 3m19s  lr 1.00e-04  norm 0.500",
	}
	tail := []string{
		"step 1000/1000  loss 3.0000  20.5k tokens/s  ETA 0.0s  lr 1.00e-04  norm 0.500  skipped 1",
		"a note",
		"done: 1,000 steps, 4,096,000 tokens in 3m20s, loss 3.0000, validation loss 2.5000, peak 4.9 KiB per rank",
		"saved to runs/x",
		"",
		"func main() {",
	}
	if d := cmp.Diff(head, lines[:len(head)]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(tail, lines[len(lines)-len(tail):]); d != "" {
		t.Error(d)
	}
	if n := strings.Count(b.String(), "step "); n < 190 || n > 210 { // of 200 s
		t.Errorf("%d lines of steps", n)
	}
	if !strings.Contains(b.String(), "\nstep 500/1000  validation loss 2.7500\n") {
		t.Error("no line of the evaluation")
	}
}

// TestLinesAreNotMany checks that progress is printed at most once per second, and in a long run
// about 200 times.
func TestLinesAreNotMany(t *testing.T) {
	for _, c := range []struct {
		steps    int
		seconds  float64
		min, max int
	}{{1000, 0.001, 2, 3}, {100, 3, 100, 100}, {100000, 2, 200, 202}} {
		var b bytes.Buffer
		l := newLines(&b)
		l.steps = c.steps
		for i := 1; i <= c.steps; i++ {
			l.Step(Step{Step: i, StepSeconds: c.seconds})
		}
		if n := strings.Count(b.String(), "\n"); n < c.min || n > c.max {
			t.Errorf("%d steps of %v s: %d lines, want %d to %d", c.steps, c.seconds, n, c.min, c.max)
		}
	}
}

// locked is a buffer the bar's own goroutine can write to.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func drawBar(t *testing.T, color bool, end func(*Bar)) string {
	t.Helper()
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := new(locked)
	b := newBar(w, color)
	b.Event(header)
	for i := 1; i <= 700; i++ {
		b.Step(Step{Step: i, Loss: 2.5, TokensPerSecond: 20480, StepSeconds: 0.2})
	}
	b.Event(Eval{Step: 700, ValLoss: 2.25})
	b.Event(Note("a note"))
	end(b)
	b.Event(Note("after the end"))
	return w.String()
}

func TestBar(t *testing.T) {
	out := drawBar(t, false, func(b *Bar) {
		b.Event(Summary{Steps: 700, Loss: 2.5, ValLoss: math.NaN(), Seconds: 7500, Out: "runs/x", Stopped: true})
		b.Close()
	})
	for _, want := range []string{"model   GPT-2 10.7M, ", "step 700/1000 [", "loss 2.5000  20.5k tokens/s", "step 700: validation loss 2.2500\n", "a note\n",
		"stopped after 700 steps, 0 tokens in 2h05m, loss 2.5000\nsaved to runs/x\nafter the end\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	if strings.Contains(out, "\x1b[36m") {
		t.Error("colour without leave")
	}
	if colored := drawBar(t, true, (*Bar).Close); !strings.Contains(colored, "\x1b[36mmodel  \x1b[0m GPT-2") {
		t.Errorf("no colour in %q", colored)
	}
}

// TestBarCloses checks that a failed run leaves the bar on a line of its own and no goroutine.
func TestBarCloses(t *testing.T) {
	out := drawBar(t, false, func(b *Bar) { b.Close(); b.Close() })
	if !strings.HasSuffix(out, "\nafter the end\n") {
		t.Errorf("the terminal is left at %q", out[max(0, len(out)-80):])
	}
	newBar(new(locked), false).Close() // before Start
}

func TestNewProgress(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, ok := NewProgress(w).(*Lines); !ok {
		t.Error("a bar in a pipe")
	}
	if _, ok := NewProgress(new(bytes.Buffer)).(*Lines); !ok {
		t.Error("a bar in a buffer")
	}
}

// TestMFUIsPrinted checks that the utilization of the peak is printed with the progress and, as a
// mean, in the summary.
func TestMFUIsPrinted(t *testing.T) {
	step := Step{Loss: 2.5, TokensPerSecond: 1e3, MFU: 0.383}
	if got := step.status(0, "", 200); !strings.HasPrefix(got, "loss 2.5000  1.0k tokens/s  MFU 38.3 %  ETA ") {
		t.Error(got)
	}
	if got := (Summary{Loss: 2.5, ValLoss: math.NaN(), MFU: 0.383}).Lines()[0]; !strings.HasSuffix(got, ", loss 2.5000, MFU 38.3 %") {
		t.Error(got)
	}
}

func TestStatusFitsWidth(t *testing.T) {
	s := Step{Loss: 2.5, TokensPerSecond: 1.2e6, LR: 1e-4, GradNorm: 3}
	full := s.status(0, "", 200)
	for width := range 120 {
		got := s.status(0, "", width)
		if !strings.HasPrefix(full, got) || len(got) > max(width, len("loss 2.5000")) {
			t.Errorf("width %d: %q", width, got)
		}
	}
}

func TestObservers(t *testing.T) {
	var a, b bytes.Buffer
	os := Observers{newLines(&a), newLines(&b)}
	os.Event(header)
	os.Step(Step{Step: 1})
	os.Event(Eval{Step: 1, ValLoss: 2})
	os.Note("n")
	os.Event(Summary{})
	if a.String() != b.String() || strings.Count(a.String(), "\n") != 6+1+1+1+2 {
		t.Errorf("%q\n%q", a.String(), b.String())
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		show.Grouped(0): "0", show.Grouped(999): "999", show.Grouped(1000): "1,000", show.Grouped(-123456): "-123,456", show.Grouped(1234567890): "1,234,567,890",
		show.Compact(12): "12", show.Compact(1234): "1.2k", show.Compact(2.5e6): "2.5M", show.Compact(3e9): "3.0B",
		show.ByteSize(5): "5 B", show.ByteSize(1536): "1.5 KiB", show.ByteSize(3 << 30): "3.0 GiB", show.ByteSize(5 << 40): "5.0 TiB",
		show.Span(0.25): "0.2s", show.Span(59.4): "59s", show.Span(59.6): "1m00s", show.Span(7384): "2h03m",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func falling(n int) (steps []Step, evals []Eval) {
	for i := 1; i <= n; i++ {
		x := float64(i)
		s := Step{Step: i, Loss: 1.8 + 3.7*math.Exp(-x/60) + 0.15*math.Sin(x*1.7)*math.Cos(x*0.37)}
		if i == n/2 {
			s.Loss = math.NaN()
		}
		steps = append(steps, s)
		if i%50 == 0 {
			evals = append(evals, Eval{Step: i, ValLoss: 1.9 + 3.6*math.Exp(-x/60)})
		}
	}
	return steps, evals
}

// TestLossSVG checks that the drawing has axes, a legend, and curves that follow the numbers.
func TestLossSVG(t *testing.T) {
	t.Chdir(t.TempDir())
	steps, evals := falling(400)
	if err := WriteLossSVG("loss.svg", steps, evals); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("loss.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">Training and validation loss<", ">step<", ">loss (nats per token)<", ">training<", ">training, mean of 19 steps<", ">validation<", ">400<", "#1f5aa6", "#c83c28",
		"prefers-color-scheme:dark", "lowest validation loss 1.9046, at step 400"} {
		if !bytes.Contains(raw, []byte(want)) {
			t.Errorf("no %q in the drawing", want)
		}
	}
	if bytes.Contains(raw, []byte("NaN")) {
		t.Error("NaN in the drawing")
	}
}

func TestLossSVGOfLittle(t *testing.T) {
	t.Chdir(t.TempDir())
	nan := math.NaN()
	for _, c := range []struct {
		steps []Step
		evals []Eval
	}{{nil, nil}, {[]Step{{Step: 1, Loss: 2}}, nil}, {[]Step{{Step: 1, Loss: nan}}, []Eval{{Step: 1, ValLoss: nan}}}, {nil, []Eval{{Step: 5, ValLoss: 1}}}, {[]Step{{Step: 1, Loss: 2}, {Step: 2, Loss: 2}}, nil}} {
		if err := WriteLossSVG("l.svg", c.steps, c.evals); err != nil {
			t.Errorf("%v %v: %v", c.steps, c.evals, err)
		}
		raw, _ := os.ReadFile("l.svg")
		if len(raw) == 0 || bytes.Contains(raw, []byte("NaN")) || bytes.Contains(raw, []byte("Inf")) {
			t.Errorf("%v %v: a bad drawing", c.steps, c.evals)
		}
	}
	if err := WriteLossSVG("nowhere/l.svg", nil, nil); err == nil {
		t.Error("wrote into a folder that is not there")
	}
}

func TestSmoothAndThin(t *testing.T) {
	steps, _ := falling(10000)
	xy := point(nil, 1, 1)[:0]
	for _, s := range steps {
		xy = point(xy, s.Step, 5)
	}
	for _, p := range smooth(xy, 250) {
		if math.Abs(p.Y-5) > 1e-9 {
			t.Fatalf("the average of fives is %v", p.Y)
		}
	}
	ramp := point(point(point(point(nil, 1, 0), 2, 3), 3, 6), 4, 30)
	if got := smooth(ramp, 1); got[0].Y != 0 || got[1].Y != 3 || got[2].Y != 13 || got[3].Y != 18 {
		t.Errorf("smooth of 0 3 6 30: %v", got)
	}
	few, _ := thin(xy, 1000)
	if len(few) != 1000 || few[0].X != 5.5 || math.Abs(few[999].X-9995.5) > 1e-6 {
		t.Errorf("%d points, %v to %v", len(few), few[0], few[len(few)-1])
	}
	if got, _ := thin(xy[:10], 1000); len(got) != 10 {
		t.Errorf("ten points became %d", len(got))
	}
}

// TestProgressIsEscaped checks that control characters in names, paths and errors are escaped.
func TestProgressIsEscaped(t *testing.T) {
	const evil, shown = "run\x1b[31m\u202e", `run\x1b[31m\u202e`
	lines, bar := new(bytes.Buffer), new(bytes.Buffer)
	for w, p := range map[*bytes.Buffer]Progress{lines: newLines(lines), bar: newBar(bar, false)} {
		h := header
		h.Out = evil
		p.Event(h)
		p.Event(Note("a note of " + evil))
		p.Event(Summary{Out: evil})
		p.Close()
		for _, want := range []string{"out     " + shown, "a note of " + shown, "saved to " + shown} {
			if !strings.Contains(w.String(), want) {
				t.Errorf("no %q in %q", want, w)
			}
		}
	}
}
