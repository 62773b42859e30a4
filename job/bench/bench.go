package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/job/setup"
)

// Every sample lies between two runs of a loop that only multiplies and adds in registers. A sample
// is dropped as disturbed if the loop runs slower than gateShare of the best rate it ever reached,
// or if the system reports that our threads waited for a processor for more than waitShare of the
// time. The report has medians of the remaining samples.

// Groups returns the groups of measurements, in order.
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
	{"compute", (*bench).compute}, {"memory", (*bench).passes}, {"collective", (*bench).collective}, {"disk", (*bench).disk}, {gpuGroup, (*bench).gpu},
}

// Options selects what to measure and for how long.
type Options struct {
	Groups  []string // of Groups; none means all
	Workers []int    // threads that compute and pass over memory; none means 1 and all processors
	Seconds float64  // maximum per line after its first sample; 0 means 2
	Dir     string   // folder on the disk to measure; "" means the one for temporary files

	Products *setup.Algorithms // if not nil, cuBLASLt's algorithms for its products are measured, too
	Progress func(doing string)
}

// Report contains the results.
type Report struct {
	Host  Host  `json:"machine"`
	Lines []Row `json:"lines"`

	Between    string `json:"between,omitempty"` // describes the processes, for collectives between several
	algorithms *setup.Algorithms
	hostMemory float64 // bytes per second of host memory, for each GPU
	gpus       int
}

// Host describes the machine that was measured.
type Host struct {
	OS, Arch   string
	Processors int
	Go         string
	F32        string // instructions used for products
	BF16       string
	GPU        string `json:",omitempty"` // name of the measured GPU
}

// Row is one result. Rate and Limit are in Unit; if lower is better, Limit is 0.
type Row struct {
	Group     string  `json:"group"`
	Name      string  `json:"name"`
	Workers   int     `json:"workers"` // 0 on a GPU
	Seconds   float64 `json:"seconds"` // per run
	Rate      float64 `json:"rate"`
	Unit      string  `json:"unit"`
	Limit     float64 `json:"limit,omitempty"`
	LimitName string  `json:"of,omitempty"` // quantity that Limit is the rate of
	Share     float64 `json:"share,omitempty"`
	Samples   int     `json:"samples"`
	Dropped   int     `json:"dropped"`         // disturbed samples
	Noisy     bool    `json:"noisy,omitempty"` // all samples were disturbed; the best one is reported
}

const (
	gateShare   = 0.93
	waitShare   = 0.04
	wantSamples = 7
	sampleTime  = 20 * time.Millisecond // minimum, for repeated short work
)

// bench is the state of one call of Run.
type bench struct {
	Options
	ctx    context.Context
	peak   cpu.Peak
	best   map[int]float64 // the peak loop's best rate by number of workers
	limits map[string]float64
	memory *cpu.Device
	stream [3]device.Buffer // operands of the memory streams; float32, equally long
	report Report
}

// Run measures the groups in o. When ctx ends it returns the results so far and the cause.
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

// open allocates and touches the memory of streams, three buffers of n floats; close frees it.
func (b *bench) open(n int) (err error) {
	b.memory = cpu.NewHost(1)
	for i := range b.stream {
		if b.stream[i], err = b.memory.Alloc(device.F32, n, device.Workspace); err != nil {
			return err
		}
		floats := b.stream[i].F32()
		for j := range floats {
			floats[j] = 1
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

// processors returns the number of workers for limits of the whole machine.
func (b *bench) processors() int { return slices.Max(b.Workers) }

// sample is the median of the undisturbed samples.
type sample struct {
	seconds float64
	n       int
	dropped int
	noisy   bool
}

// gatedRuns runs the functions alternately, each on the given number of processors, until each has
// enough samples or time is up.
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

// gatedRun is a function and the seconds of its samples.
type gatedRun struct {
	f         func() error
	reps      int // runs of f per sample
	good, bad []float64
	rounds    []float64 // all samples, in order
}

// warm runs f to fill caches and touch pages, and determines how often a sample repeats it.
func (r *gatedRun) warm() error {
	for try := 0; try < 2 && r.reps != 1; try++ { // the first run is slow, so its time does not count
		start := time.Now()
		if err := r.f(); err != nil {
			return err
		}
		r.reps = max(1, int(sampleTime/max(1, time.Since(start))))
	}
	return nil
}

// once measures one sample.
func (b *bench) once(workers int, r *gatedRun) error {
	before := b.peak.Rate(workers)
	queued, start := cpu.Waited(), time.Now()
	for range r.reps {
		if err := r.f(); err != nil {
			return err
		}
	}
	all := time.Since(start)
	queued = cpu.Waited() - queued
	took := all.Seconds() / float64(r.reps)
	after := b.peak.Rate(workers)
	b.best[workers] = max(b.best[workers], before, after)
	r.rounds = append(r.rounds, took)
	ours := queued.Seconds() <= waitShare*all.Seconds()*float64(workers)
	if ours && min(before, after) >= gateShare*b.best[workers] {
		r.good = append(r.good, took)
	} else {
		r.bad = append(r.bad, took)
	}
	return nil
}

// settle returns the median of the good samples or, without any, the best of the bad ones.
func settle(good, bad []float64) sample {
	s := sample{n: len(good), dropped: len(bad)}
	if len(good) == 0 && len(bad) > 0 {
		s.noisy, good = true, []float64{slices.Min(bad)}
	}
	s.seconds = median(good)
	return s
}

// line measures f, which moves the given number of bytes, and reports bytes per second. If limit
// names a stream, that alternates with f: the share of the limit is the median of the rounds'
// shares.
func (b *bench) line(group, name string, workers int, bytes float64, limit string, f func() error) error {
	if b.ctx.Err() != nil {
		return nil
	}
	b.progress(group + " " + name)
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
	if pass != nil { // other programs slow down both parts of a round alike
		var shares []float64
		for i, moves := range runs[1].rounds {
			shares = append(shares, bytes/runs[0].rounds[i]/(moved/moves))
		}
		b.limits[limitKey(limit, workers)] = bytes / s.seconds / median(shares)
	}
	b.row(group, name, workers, bytes, "B/s", limit, s)
	return nil
}

// pass returns a pass of the named stream and the number of bytes it moves, or nil if there is
// none.
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

// row adds a row to the report.
func (b *bench) row(group, name string, workers int, work float64, unit, limit string, s sample) {
	r := Row{Group: group, Name: name, Workers: workers, Seconds: s.seconds, Rate: work / s.seconds, Unit: unit,
		Samples: s.n, Dropped: s.dropped, Noisy: s.noisy, LimitName: limit, Limit: b.limits[limitKey(limit, workers)]}
	if r.Limit > 0 {
		r.Share = r.Rate / r.Limit
	}
	b.report.Lines = append(b.report.Lines, r)
}

func (b *bench) progress(doing string) {
	if b.Progress != nil {
		b.Progress(doing)
	}
}

func limitKey(name string, workers int) string { return fmt.Sprint(name, " ", workers) }

// compute measures multiply-adds in registers.
func (b *bench) compute() error {
	for _, w := range b.Workers {
		b.progress("compute")
		b.peakLine(b.peak, w)
		if p, ok := cpu.PeakBF16(); ok {
			b.peakLine(p, w)
		}
	}
	return nil
}

// passes measures passes over memory.
func (b *bench) passes() error {
	for _, s := range cpu.Streams() {
		for _, w := range b.Workers {
			f, bytes := b.pass(s.Name, w)
			if err := b.line("memory", s.Name, w, bytes, "", f); err != nil {
				return err
			}
		}
	}
	return nil
}

// peakLine measures a peak: the best of many runs, because other programs only make runs slower.
func (b *bench) peakLine(p cpu.Peak, workers int) {
	rate := 0.0
	for range 50 {
		rate = max(rate, p.Rate(workers))
	}
	if p.Name == b.peak.Name {
		b.best[workers] = rate
	}
	b.report.Lines = append(b.report.Lines, Row{Group: "compute", Name: p.Name, Workers: workers, Rate: rate, Unit: "FLOP/s", Samples: 50})
}
