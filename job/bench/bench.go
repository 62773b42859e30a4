package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
)

// Bench measures the machine's own limits and what kernels, collectives and
// steps reach of them.
//
// Every sample lies between two runs of a loop that only multiplies and adds in
// registers. Where the loop falls below gateShare of the best it ever reached,
// or where the system says that our threads waited for a processor more than
// waitShare of the time, somebody else had one, and the sample is dropped. What
// is reported are medians of the samples that are left.

// Groups are what can be measured besides the limits, in order.
func Groups() []string {
	var names []string
	for _, g := range benchGroups {
		names = append(names, g.name)
	}
	return names
}

var benchGroups = []struct {
	name string
	run  func(*bench) error
}{
	{"gemm", (*bench).gemm}, {"attention", (*bench).attention}, {"optimizer", (*bench).optimizer},
	{"collective", (*bench).collective}, {"step", (*bench).step}, {"simulated", (*bench).simulated}, {"disk", (*bench).disk},
	{gpuGroup, (*bench).gpu},
}

// Options are what to measure and how long.
type Options struct {
	Groups  []string // of Groups; none is all
	Workers []int    // of kernels; none is 1 and all processors
	Seconds float64  // at most for each line, once it has a sample; 0 is 2
	Dir     string   // of the disk that is measured; "" is that for temporary files
	Tell    func(doing string)
}

// Report is what was measured.
type Report struct {
	Host  Host  `json:"machine"`
	Lines []Row `json:"lines"`

	Between    string  `json:"between,omitempty"` // which processes, of collectives between several
	hostMemory float64 // bytes a second of the host's memory, for each GPU
	gpus       int
}

// Host is what was measured on.
type Host struct {
	OS, Arch   string
	Processors int
	Go         string
	F32        string // instructions of products
	BF16       string
	GPU        string `json:",omitempty"` // that was measured
}

// Row is one figure. Rate and Limit are in Unit, except where lower is
// better: then Limit is 0.
type Row struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	Workers int     `json:"workers"` // 0 on a GPU
	Seconds float64 `json:"seconds"` // of one
	Rate    float64 `json:"rate"`
	Unit    string  `json:"unit"`
	Limit   float64 `json:"limit,omitempty"`
	Of      string  `json:"of,omitempty"` // what Limit is
	Share   float64 `json:"share,omitempty"`
	Samples int     `json:"samples"`
	Dropped int     `json:"dropped"`         // because somebody else had a processor
	Noisy   bool    `json:"noisy,omitempty"` // none was left: what is shown is the best of all
}

const (
	gateShare   = 0.93
	waitShare   = 0.04
	wantSamples = 7
	sampleTime  = 20 * time.Millisecond // at least, of repeated short work
)

// bench is a run of Bench.
type bench struct {
	Options
	ctx    context.Context
	peak   cpu.Peak
	best   map[int]float64 // the peak loop's by workers
	limits map[string]float64
	memory *cpu.Device
	stream [3]device.Buffer // of memory; float32, of one length
	report Report
}

// Run measures the limits and the groups asked for. When ctx ends it
// returns what it has and the cause.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &bench{Options: o, ctx: ctx, peak: cpu.PeakF32(), best: map[int]float64{}, limits: map[string]float64{}}
	if len(b.Workers) == 0 {
		b.Workers = slices.Compact([]int{1, runtime.GOMAXPROCS(0)})
	}
	if b.Seconds == 0 {
		b.Seconds = 2
	}
	f32, bf16 := cpu.Instructions()
	b.report.Host = Host{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), f32, bf16, ""}
	defer b.close()
	if err := b.open(cpu.StreamLen); err != nil {
		return nil, err
	}
	if len(o.Groups) != 1 || !o.Asks(gpuGroup) { // the processors' limits say nothing of a GPU
		b.machine()
	}
	for _, g := range benchGroups {
		if len(o.Groups) > 0 && !slices.Contains(o.Groups, g.name) {
			continue
		}
		if err := g.run(b); err != nil {
			return &b.report, fmt.Errorf("%s: %w", g.name, err)
		}
		if ctx.Err() != nil {
			return &b.report, context.Cause(ctx)
		}
	}
	return &b.report, nil
}

// open takes the memory that limits are measured on, n floats three times, and
// close gives it back.
func (b *bench) open(n int) (err error) {
	b.memory = cpu.NewHost(1)
	for i := range b.stream {
		if b.stream[i], err = b.touched(n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) close() {
	for _, mem := range b.stream {
		b.memory.Free(mem)
	}
	b.memory.Close()
}

// processors is how many workers a machine-wide limit has.
func (b *bench) processors() int { return slices.Max(b.Workers) }

// sample is what gated returns: medians over the samples that count.
type sample struct {
	seconds  float64
	possible float64 // seconds × the peak loop's rate around them
	n        int
	dropped  int
	noisy    bool
}

// gated is what gatedRuns measures of each.
func (b *bench) gated(workers int, seconds float64, fs ...func() error) ([]sample, error) {
	runs, err := b.gatedRuns(workers, seconds, fs...)
	out := make([]sample, len(runs))
	for i, r := range runs {
		out[i] = settle(r.good, r.bad)
	}
	return out, err
}

// gatedRuns runs the functions in turn, each of which works on so many processors,
// until enough samples of each count or the time is over.
func (b *bench) gatedRuns(workers int, seconds float64, fs ...func() error) ([]gatedRun, error) {
	runs := make([]gatedRun, len(fs))
	for i, f := range fs {
		runs[i].f = f
		if err := runs[i].warm(); err != nil {
			return nil, err
		}
	}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for round := 0; b.ctx.Err() == nil && (round == 0 || time.Now().Before(end)); round++ {
		enough := true
		for i := range runs {
			if err := b.once(workers, &runs[i]); err != nil {
				return nil, err
			}
			enough = enough && len(runs[i].good) >= wantSamples
		}
		if enough {
			break
		}
	}
	return runs, nil
}

// gatedRun is a function and its samples: seconds, and seconds × the peak
// loop's rate around them.
type gatedRun struct {
	f         func() error
	reps      int // of f in a sample
	good, bad [][2]float64
	rounds    []float64 // seconds of all samples, in order
}

// warm runs f for caches and pages, and finds out how often a sample repeats it.
func (r *gatedRun) warm() error {
	for try := 0; try < 2 && r.reps != 1; try++ { // the first is slow for its being first
		start := time.Now()
		if err := r.f(); err != nil {
			return err
		}
		r.reps = max(1, int(sampleTime/max(1, time.Since(start))))
	}
	return nil
}

// once takes a sample.
func (b *bench) once(workers int, r *gatedRun) error {
	before := b.peak.Rate(workers)
	queued, start := waited(), time.Now()
	for range r.reps {
		if err := r.f(); err != nil {
			return err
		}
	}
	all := time.Since(start)
	queued = waited() - queued
	took := all.Seconds() / float64(r.reps)
	after := b.peak.Rate(workers)
	b.best[workers] = max(b.best[workers], before, after)
	one := [2]float64{took, took * (before + after) / 2}
	r.rounds = append(r.rounds, took)
	ours := queued.Seconds() <= waitShare*all.Seconds()*float64(workers)
	if ours && min(before, after) >= gateShare*b.best[workers] {
		r.good = append(r.good, one)
	} else {
		r.bad = append(r.bad, one)
	}
	return nil
}

// settle is the medians of the good samples or, where there are none, the best
// of the others.
func settle(good, bad [][2]float64) sample {
	s := sample{n: len(good), dropped: len(bad)}
	if len(good) == 0 && len(bad) > 0 {
		best := slices.MinFunc(bad, func(x, y [2]float64) int { return int(1e12*x[0]) - int(1e12*y[0]) })
		s.noisy, good = true, [][2]float64{best}
	}
	s.seconds, s.possible = medianOf(good, 0), medianOf(good, 1)
	return s
}

func medianOf(x [][2]float64, column int) float64 {
	var all []float64
	for _, row := range x {
		all = append(all, row[column])
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// line measures f, which does work units, and reports units a second beside
// the limit of that name; "fp32" is what the float32 loop reached around each
// sample. A stream's is measured in turns with f: the share is the median of
// the rounds', and the limit what goes with it.
func (b *bench) line(group, name string, workers int, work float64, unit, limit string, f func() error) error {
	if b.ctx.Err() != nil {
		return nil
	}
	b.tell(group + " " + name)
	fs := []func() error{f}
	pass, moved := b.pass(limit, workers)
	if pass != nil {
		fs = append(fs, pass)
	}
	runs, err := b.gatedRuns(workers, b.Seconds, fs...)
	if err != nil || len(runs[0].rounds) == 0 {
		return err
	}
	s := settle(runs[0].good, runs[0].bad)
	if pass != nil { // others take as much of a round's one part as of the other
		var shares [][2]float64
		for i, moves := range runs[1].rounds {
			shares = append(shares, [2]float64{work / runs[0].rounds[i] / (moved / moves)})
		}
		b.limits[limitKey(limit, workers)] = work / s.seconds / medianOf(shares, 0)
	}
	b.row(group, name, workers, work, unit, limit, s)
	return nil
}

// pass is a pass of the stream of that name and the bytes it moves, nil if
// there is none.
func (b *bench) pass(name string, workers int) (f func() error, bytes float64) {
	for _, s := range cpu.Streams() {
		if s.Name == name {
			return func() error {
				s.Pass(workers, b.stream[0].F32(), b.stream[1].F32(), b.stream[2].F32())
				return nil
			}, float64(s.Bytes * b.stream[0].N)
		}
	}
	return nil, 0
}

// row adds a line of the report.
func (b *bench) row(group, name string, workers int, work float64, unit, limit string, s sample) {
	r := Row{Group: group, Name: name, Workers: workers, Seconds: s.seconds, Rate: work / s.seconds, Unit: unit,
		Samples: s.n, Dropped: s.dropped, Noisy: s.noisy, Of: limit}
	if limit == "fp32" {
		r.Limit = s.possible / s.seconds
	} else {
		r.Limit = b.limits[limitKey(limit, workers)]
	}
	if r.Limit > 0 {
		r.Share = r.Rate / r.Limit
	}
	b.report.Lines = append(b.report.Lines, r)
}

func (b *bench) tell(doing string) {
	if b.Tell != nil {
		b.Tell(doing)
	}
}

func limitKey(name string, workers int) string { return fmt.Sprint(name, " ", workers) }

// machine measures the limits.
func (b *bench) machine() {
	for _, w := range b.Workers {
		b.tell("limits")
		b.peakLine(b.peak, w)
		if p, ok := cpu.PeakBF16(); ok {
			b.peakLine(p, w)
		}
	}
	for _, s := range cpu.Streams() {
		for _, w := range b.Workers {
			f, bytes := b.pass(s.Name, w)
			_ = b.line("limits", s.Name, w, bytes, "B/s", "", f) // cannot fail
		}
	}
}

// peakLine measures a peak: the best of many runs, because nothing but others
// makes one slower.
func (b *bench) peakLine(p cpu.Peak, workers int) {
	rate := 0.0
	for range 50 {
		rate = max(rate, p.Rate(workers))
	}
	kind, _, _ := strings.Cut(p.Name, " ")
	b.limits[limitKey(kind, workers)] = rate
	if p.Name == b.peak.Name {
		b.best[workers] = rate
	}
	b.report.Lines = append(b.report.Lines, Row{Group: "limits", Name: p.Name, Workers: workers, Rate: rate, Unit: "FLOP/s", Samples: 50})
}

// touched is memory, as training has it, with its pages.
func (b *bench) touched(n int) (device.Buffer, error) {
	x, err := b.memory.Alloc(device.F32, n, device.Workspace)
	if err == nil {
		for i := range x.F32() {
			x.F32()[i] = 1
		}
	}
	return x, err
}
