package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cpu/kernel"
	"zeroth/internal/setup"
)

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
	{"collective", (*bench).collective}, {"disk", (*bench).disk}, {gpuGroup, (*bench).gpu},
}

// Options selects what to measure and for how long.
type Options struct {
	Groups  []string // of Groups; none means all
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

// host describes this machine.
func host() Host {
	f32, bf16 := kernel.Instructions()
	return Host{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), f32, bf16, ""}
}

// Row is one result. Rate and Limit are in Unit; if lower is better, Limit is 0.
type Row struct {
	Group     string  `json:"group"`
	Name      string  `json:"name"`
	Seconds   float64 `json:"seconds"` // per run, the median over samples
	Rate      float64 `json:"rate"`
	Unit      string  `json:"unit"`
	Limit     float64 `json:"limit,omitempty"`
	LimitName string  `json:"of,omitempty"` // quantity that Limit is the rate of
	Share     float64 `json:"share,omitempty"`
	Samples   int     `json:"samples"`
}

const (
	wantSamples = 7
	sampleTime  = 20 * time.Millisecond // minimum, for repeated short work
)

// bench is the state of one call of Run.
type bench struct {
	Options
	ctx    context.Context
	limits map[string]float64 // rates by name
	memory *cpu.Device
	stream [3]device.Buffer // operands of the memory streams; float32, equally long
	report Report
}

// Run measures the groups in o. When ctx ends it returns the results so far and the cause.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &bench{Options: o, ctx: ctx, limits: map[string]float64{}}
	if b.Seconds == 0 {
		b.Seconds = 2
	}
	b.report.Host = host()
	defer b.close()
	if err := b.open(kernel.StreamLen); err != nil {
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

// alternate runs the functions in turns until there are enough samples or time is up, and returns
// the seconds of each function's runs.
func (b *bench) alternate(fs ...func() error) ([][]float64, error) {
	took, reps := make([][]float64, len(fs)), make([]int, len(fs))
	for i, f := range fs {
		var err error
		if reps[i], err = warm(f); err != nil {
			return nil, err
		}
	}
	end := time.Now().Add(time.Duration(b.Seconds * float64(time.Second)))
	for round := 0; b.ctx.Err() == nil && round < wantSamples && (round == 0 || time.Now().Before(end)); round++ {
		for i, f := range fs {
			start := time.Now()
			for range reps[i] {
				if err := f(); err != nil {
					return nil, err
				}
			}
			took[i] = append(took[i], time.Since(start).Seconds()/float64(reps[i]))
		}
	}
	return took, nil
}

// warm runs f to fill caches and touch pages, and returns how often a sample repeats it.
func warm(f func() error) (reps int, err error) {
	for try := 0; try < 2 && reps != 1; try++ { // the first run is slow, so its time does not count
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		reps = max(1, int(sampleTime/max(1, time.Since(start))))
	}
	return reps, nil
}

// line measures f, which moves the given number of bytes, and reports bytes per second. If limit
// names a stream, that alternates with f: the share of the limit is the median of the rounds'
// shares.
func (b *bench) line(group, name string, bytes float64, limit string, f func() error) error {
	if b.ctx.Err() != nil {
		return nil
	}
	b.progress(group + " " + name)
	fs := []func() error{f}
	pass, moved := b.pass(limit)
	if pass != nil {
		fs = append(fs, pass)
	}
	took, err := b.alternate(fs...)
	if err != nil || len(took[0]) == 0 || b.ctx.Err() != nil {
		return err
	}
	s := sample{median(took[0]), len(took[0])}
	if pass != nil { // other programs slow down both parts of a round alike
		var shares []float64
		for i, moves := range took[1] {
			shares = append(shares, bytes/took[0][i]/(moved/moves))
		}
		b.limits[limit] = bytes / s.seconds / median(shares)
	}
	b.row(group, name, bytes, "B/s", limit, s)
	return nil
}

// pass returns a pass of the named stream on all processors and the number of bytes it moves, or
// nil if there is none.
func (b *bench) pass(name string) (f func() error, bytes float64) {
	for _, s := range kernel.Streams() {
		if s.Name == name {
			return func() error {
				s.Pass(runtime.GOMAXPROCS(0), b.stream[0].F32(), b.stream[1].F32(), b.stream[2].F32())
				return nil
			}, float64(s.Bytes * b.stream[0].N)
		}
	}
	return nil, 0
}

// sample is the median of n samples.
type sample struct {
	seconds float64
	n       int
}

// row adds a row to the report.
func (b *bench) row(group, name string, work float64, unit, limit string, s sample) {
	r := Row{Group: group, Name: name, Seconds: s.seconds, Rate: work / s.seconds, Unit: unit,
		Samples: s.n, LimitName: limit, Limit: b.limits[limit]}
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
