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

// Every sample lies between two runs of a loop that only multiplies and adds in
// registers. If the loop falls below gateShare of the best it ever reached, or
// if the system reports that our threads waited for a processor more than
// waitShare of the time, somebody else had one, and the sample is dropped. The
// report has medians of the remaining samples.

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
	Groups  []string // of Groups; none is all
	Workers []int    // that compute and pass over memory; none is 1 and all processors
	Seconds float64  // at most for each line, once it has a sample; 0 is 2
	Dir     string   // of the disk that is measured; "" is that for temporary files

	Products *setup.Algorithms // whose algorithms are measured on the GPU, beside all else; nil: of none
	Tell     func(doing string)
}

// Report contains the results.
type Report struct {
	Host  Host  `json:"machine"`
	Lines []Row `json:"lines"`

	Between    string `json:"between,omitempty"` // which processes, of collectives between several
	algorithms *setup.Algorithms
	hostMemory float64 // bytes a second of the host's memory, for each GPU
	gpus       int
}

// Host describes the machine that was measured.
type Host struct {
	OS, Arch   string
	Processors int
	Go         string
	F32        string // instructions of products
	BF16       string
	GPU        string `json:",omitempty"` // that was measured
}

// Row is one result. Rate and Limit are in Unit; if lower is better, Limit is 0.
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

// bench is the state of one call of Run.
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

// Run measures the groups that o names. When ctx ends it returns the results so far and the
// cause.
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

// open allocates and touches the memory that streams read and write, three times n floats;
// close frees it.
func (b *bench) open(n int) (err error) {
	b.memory = cpu.NewHost(1)
	for i := range b.stream {
		if b.stream[i], err = b.memory.Alloc(device.F32, n, device.Workspace); err != nil {
			return err
		}
		for j := range n {
			b.stream[i].F32()[j] = 1
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

// processors returns the number of workers that a machine-wide limit is measured with.
func (b *bench) processors() int { return slices.Max(b.Workers) }

// sample is a median over the undisturbed samples.
type sample struct {
	seconds float64
	n       int
	dropped int
	noisy   bool
}

// gatedRuns runs the functions in turn, each on so many processors, until each has enough
// samples or time is up.
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
	reps      int // of f in a sample
	good, bad []float64
	rounds    []float64 // all samples, in order
}

// warm runs f to fill caches and touch pages, and finds out how often a sample repeats it.
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

// settle returns the median of the good samples or, if there are none, the best of the bad
// ones.
func settle(good, bad []float64) sample {
	s := sample{n: len(good), dropped: len(bad)}
	if len(good) == 0 && len(bad) > 0 {
		s.noisy, good = true, []float64{slices.Min(bad)}
	}
	s.seconds = median(good)
	return s
}

// line measures f, which moves so many bytes, and reports bytes per second. If it names a
// limit, that stream runs in turns with f: the share is the median of the rounds' shares, and
// the limit follows from it.
func (b *bench) line(group, name string, workers int, bytes float64, limit string, f func() error) error {
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
		var shares []float64
		for i, moves := range runs[1].rounds {
			shares = append(shares, bytes/runs[0].rounds[i]/(moved/moves))
		}
		b.limits[limitKey(limit, workers)] = bytes / s.seconds / median(shares)
	}
	b.row(group, name, workers, bytes, "B/s", limit, s)
	return nil
}

// pass returns a pass of the stream with that name and the bytes it moves, or nil if there is
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
		Samples: s.n, Dropped: s.dropped, Noisy: s.noisy, Of: limit, Limit: b.limits[limitKey(limit, workers)]}
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

// compute measures multiply-adds in registers.
func (b *bench) compute() error {
	for _, w := range b.Workers {
		b.tell("compute")
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

// peakLine measures a peak: the best of many runs, because only other programs make one
// slower.
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
