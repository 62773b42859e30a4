package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/device/cpu/kernel"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/nn"
	"zeroth/shard"
	"zeroth/zero"
)

// Measurements contains measurements of this machine for a job: the time of each kernel in a training step
// while all processors work, and the time of collectives.
type Measurements struct {
	workers int               // threads of a rank's kernels
	kernels map[timed]float64 // seconds
	work    map[timed]forecast.Work
	between float64 // seconds of a processor between two kernels
	peak    float64 // of all processors
	peakOf  string
	steps   string // describes the steps in which kernels were measured, for messages
}

// timed is a kernel on a queue.
type timed struct {
	on setup.QueueRole
	forecast.Kernel
}

// The measured job has few layers. It runs on as many ranks as there are processors for, each in a
// world of its own.
const (
	measuredLayers = 4
	measuredSteps  = 4                // after the first, which touches all memory
	measuredTime   = 10 * time.Second // of all steps; then no further one starts
	measuredPeak   = 4 * time.Second  // per step, if all products ran at the peak; they reach about a third
	measuredLeast  = 64               // minimum tokens per sequence
	measuredBytes  = 1 << 30          // maximum size of a collective's buffers
	measuredRanks  = 16
)

// Measure measures everything that simulations of c and of others, which must have its model and
// ranks, need on this machine. It takes at most about half a minute on an idle machine. progress,
// which may be nil, receives a description of the current measurement.
func Measure(c *spec.Job, progress func(doing string), others ...*spec.Job) (*Measurements, error) {
	if progress == nil {
		progress = func(string) {}
	}
	h := &Measurements{workers: setup.Workers(c), kernels: map[timed]float64{}, work: map[timed]forecast.Work{}, between: math.Inf(1)}
	h.peakOf, h.peak = peakRate(c.Precision)
	all := append([]*spec.Job{c}, others...)
	var shapes []*spec.Job // jobs whose kernels differ
	for _, x := range all {
		x = alone(x)
		same := func(y *spec.Job) bool {
			return x.Model.Context == y.Model.Context && x.Train.MicroBatch == y.Train.MicroBatch && x.Train.Accumulate == y.Train.Accumulate
		}
		if !slices.ContainsFunc(shapes, same) {
			shapes = append(shapes, x)
		}
	}
	for _, x := range shapes {
		if err := h.measureKernels(c, x, measuredTime/time.Duration(len(shapes)), progress); err != nil {
			return nil, fmt.Errorf("measuring the kernels: %w", err)
		}
	}
	progress("collectives")
	for _, x := range all {
		if err := h.measureCollectives(x); err != nil {
			return nil, fmt.Errorf("measuring the collectives: %w", err)
		}
	}
	return h, nil
}

// peakRate returns the best rate of many runs on all processors.
func peakRate(t device.DType) (name string, rate float64) {
	p := kernel.PeakF32()
	if q, ok := kernel.PeakBF16(); ok && t == device.BF16 {
		p = q
	}
	for range 50 {
		rate = max(rate, p.Rate(runtime.GOMAXPROCS(0)))
	}
	return p.Name, rate
}

// alone returns the job for measuring kernels: a single rank with its positions, few layers, whole
// matrices.
func alone(c *spec.Job) *spec.Job {
	x := c.Copy()
	x.Model.Layers = min(x.Model.Layers, measuredLayers)
	x.Model.From = ""
	x.Model.Context /= c.Parallel.Context
	p := &x.Parallel
	p.Ranks, p.Pipeline, p.Shard, p.Replicate, p.Context, p.Tensor, p.Memory = 1, 1, 1, 1, 1, 1, 0
	x.Train.Accumulate = min(2, x.Train.Accumulate)
	x.Train.Batch = x.Train.MicroBatch * x.Train.Accumulate
	x.Checkpoint.Every, x.Checkpoint.Interval, x.Checkpoint.SaveOnExit, x.Train.FinalModel = 0, 0, false, "last"
	return x
}

// shortened reduces the sequences of a step, and then their length, until copies concurrent ranks
// of x take at most measuredPeak at the processors' peak, or nothing is left to reduce. The times
// of the job's kernels are scaled from these by their work.
func (h *Measurements) shortened(x *spec.Job, copies int) error {
	for {
		places, err := forecast.Recorded(setup.Planned(x), 1)
		if err != nil {
			return err
		}
		l, flops := places[0], 0.0
		for _, q := range l.Queues {
			for _, t := range q.Tasks {
				if t.Kernel >= 0 {
					flops += l.Work[t.Kernel].Flops
				}
			}
		}
		t := &x.Train
		switch {
		case float64(copies)*flops/h.peak <= measuredPeak.Seconds():
			return nil
		case t.MicroBatch > 1:
			t.MicroBatch /= 2
		case t.Accumulate > 1:
			t.Accumulate = 1
		case x.Model.Context/2 >= measuredLeast:
			x.Model.Context /= 2
		default:
			return nil
		}
		t.Batch = t.MicroBatch * t.Accumulate
	}
}

// measureKernels measures the kernels of x, which stands for a rank of c, in steps of the given time.
func (h *Measurements) measureKernels(c, x *spec.Job, most time.Duration, progress func(string)) error {
	whole := x.Copy()
	copies := max(1, min(c.Parallel.Ranks, runtime.GOMAXPROCS(0)/h.workers))
	if err := h.shortened(x, copies); err != nil {
		return err
	}
	f, err := setup.DryRun(setup.Planned(x))
	if err != nil {
		return err
	}
	h.steps = fmt.Sprintf("steps of %d of %d layers", x.Model.Layers, c.Model.Layers)
	if x.Train.MicroBatch < whole.Train.MicroBatch || x.Model.Context < whole.Model.Context {
		h.steps += fmt.Sprintf(", micro-batches of %d of %d sequences of %d of %d tokens", x.Train.MicroBatch, whole.Train.MicroBatch, x.Model.Context, whole.Model.Context)
	}
	progress("kernels in " + h.steps)
	if need, has := int64(copies)*(f.Device.Total()+f.Host.Total()), machine.Machine().Free; has > 0 && need > has/2 {
		return input.BadInput(fmt.Errorf("%d ranks of %d layers need %s, and this machine has %s; want --machine with a description of another", copies, x.Model.Layers, show.ByteSize(need), show.ByteSize(has)))
	}
	var all []*measuring
	defer func() {
		for _, m := range all {
			setup.CloseAll(m.ranks)
		}
	}()
	for range copies {
		m := &measuring{}
		if m.ranks, err = forecast.OpenAffordable(setup.InWorld(x, setup.Alone{}, setup.Hooks{Workers: h.workers, WrapTrainer: m.wrap})); err != nil {
			return err
		}
		all = append(all, m)
	}
	errs, wg := make([]error, copies), sync.WaitGroup{}
	for i, m := range all {
		wg.Go(func() { errs[i] = m.run(x, most) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	times := map[timed][]float64{}
	for _, m := range all {
		m.collect(times, h.work)
	}
	for k, s := range times {
		h.kernels[k] = usual(s)
	}
	for _, m := range all {
		h.between = min(h.between, m.between(h.kernels))
	}
	return nil
}

// usual returns the mean of the times that are at most twice the median. Longer times include
// waiting for other programs.
func usual(times []float64) float64 {
	slices.Sort(times)
	sum, n, limit := 0.0, 0, 2*times[len(times)/2]
	for _, t := range times {
		if t <= limit {
			sum, n = sum+t, n+1
		}
	}
	return sum / float64(n)
}

// measuring runs the work to measure on one rank.
type measuring struct {
	ranks []*setup.Rank
	log   *forecast.Recording
	warm  []int // by queue: number of tasks before the measured ones
	spans [][]device.Span
	first []uint64 // by queue: number of the first span
	steps int
	took  float64 // seconds of the fastest step
}

func (m *measuring) wrap(_ int, z *zero.Config) {
	m.log = forecast.RecordAll(z)
	for _, q := range m.log.Queues {
		q.Keep = true
	}
}

func (m *measuring) run(c *spec.Job, most time.Duration) error {
	r := m.ranks[0]
	err := r.Trainer.Fill(zero.Master, func(p zero.Part, dst []float32) error {
		nn.Fill(1, p.Param, p.At, dst)
		return nil
	})
	if err == nil {
		err = trainStep(c, m.ranks)
	}
	if err != nil {
		return err
	}
	m.spans = make([][]device.Span, len(m.log.Queues))
	for i, k := range m.log.Queues {
		q := r.Queues[k.Role]
		m.warm, m.first = append(m.warm, len(k.Tasks)), append(m.first, q.Mark().Seq)
		q.Trace(func(s device.Span) { m.spans[i] = append(m.spans[i], s) })
	}
	start := time.Now()
	for m.took = math.Inf(1); m.steps == 0 || m.steps < measuredSteps && time.Since(start) < most; m.steps++ {
		begin := time.Now()
		if err := trainStep(c, m.ranks); err != nil {
			return err
		}
		m.took = min(m.took, time.Since(begin).Seconds())
	}
	for _, q := range r.Queues.All() {
		q.Trace(nil)
	}
	return nil
}

// trainStep runs a step on made-up tokens and waits until all queues are idle.
func trainStep(c *spec.Job, ranks []*setup.Rank) error {
	return setup.Together(ranks, func(r *setup.Rank) error {
		_, err := r.Trainer.Step(zero.Work{Fill: func(_ int, into []data.Values) error {
			input, target, _ := data.TokensOf(into)
			for i := range input {
				input[i], target[i] = int32(i*7%c.Model.Vocab), int32((i*7+7)%c.Model.Vocab)
			}
			return nil
		}, LR: 1e-4})
		for _, q := range r.Queues.All() {
			if err == nil {
				err = q.Wait()
			}
		}
		return err
	})
}

// between returns the seconds of a step in which no kernel runs, per kernel: issuing and starting it
// takes this time of the rank's processor.
func (m *measuring) between(seconds map[timed]float64) float64 {
	busy, n := 0.0, 0
	for i, q := range m.log.Queues {
		for _, t := range q.Tasks[m.warm[i]:] {
			if t.Kernel >= 0 {
				busy, n = busy+seconds[timed{q.Role, m.log.Kernels[t.Kernel]}], n+1
			}
		}
	}
	return max(0, m.took*float64(m.steps)-busy) / float64(n)
}

// collect adds up the spans of each kernel.
func (m *measuring) collect(times map[timed][]float64, works map[timed]forecast.Work) {
	for i, q := range m.log.Queues {
		for j := m.warm[i]; j < len(q.Tasks); j++ {
			t := q.Tasks[j]
			if t.Kernel < 0 || m.log.Kernels[t.Kernel].Group.Size > 0 {
				continue
			}
			s := 0.0
			for at := q.Spans[j][0]; at < q.Spans[j][1]; at++ {
				span := m.spans[i][at-m.first[i]]
				s += span.End.Sub(span.Start).Seconds()
			}
			k := timed{q.Role, m.log.Kernels[t.Kernel]}
			times[k], works[k] = append(times[k], s), m.log.Work[t.Kernel]
		}
	}
}

// measureCollectives measures the collectives of the job's groups.
func (h *Measurements) measureCollectives(c *spec.Job) error {
	places, err := forecast.Recorded(setup.Few(setup.Planned(c)), 1)
	if err != nil {
		return err
	}
	for _, l := range places {
		for i, k := range l.Kernels {
			if k.Group.Size == 0 || free(k) {
				continue
			}
			if err := h.measureCollective(sent(k), l.Work[i], spec.Mesh(c).World()); err != nil {
				return err
			}
		}
	}
	return nil
}

// sent reduces a collective to the parameters that its time depends on within one process, where
// all ranks are equally far from each other.
func sent(k forecast.Kernel) timed {
	k.Link, k.Group.Stride = [2]int{}, 1
	return timed{setup.Comm, k}
}

// free reports whether the collective k has no work.
func free(k forecast.Kernel) bool { return k.Group.Size == 1 && k.Form != forecast.Separate }

// measureCollective measures an operation that all groups of a world run at the same time. Groups
// of many ranks and large buffers are represented by smaller ones.
func (h *Measurements) measureCollective(t timed, w forecast.Work, world int) error {
	if _, known := h.kernels[t]; known {
		return nil
	}
	k, size := t.Kernel, min(t.Group.Size, measuredRanks)
	groups := max(1, min(world, measuredRanks)/size)
	ranks := size * groups
	n := max(size, min(k.N, measuredBytes/ranks/k.In.Size())/size*size)
	took, err := timeCollective(shard.Mesh{Shard: size, Replicate: groups}, k, n)
	if err != nil {
		return err
	}
	own := float64(min(runtime.GOMAXPROCS(0), ranks)) / float64(ranks)
	moved := func(n, ranks int) float64 { return float64(n) * float64(ranks-1+int(k.Form)) / float64(ranks) }
	if k.Op == "broadcast" || k.Op == "reduce" {
		moved = func(n, ranks int) float64 { return float64(n) * float64(ranks-1) } // by one rank
	}
	h.kernels[t], h.work[t] = took*own*moved(k.N, k.Group.Size)/moved(n, size), w
	return nil
}

// timeCollective returns the usual time of an operation that all shard groups of the mesh run at
// the same time.
func timeCollective(mesh shard.Mesh, k forecast.Kernel, n int) (float64, error) {
	var each []func() error
	for _, g := range collective.LocalWorld(mesh) {
		d := cpu.New(1)
		defer d.Close()
		q := d.NewQueue("comm")
		defer q.Close()
		whole, err := d.Alloc(k.In, n, device.Gathered)
		if err != nil {
			return 0, err
		}
		defer d.Free(whole)
		group := collective.Watchdog(g.Shard, time.Minute)
		defer group.Close()
		op, _ := collective.Named(k.Op)
		own := collective.Own(group, whole)
		if k.Form == forecast.Separate {
			if own, err = d.Alloc(k.In, own.N, device.Params); err != nil {
				return 0, err
			}
			defer d.Free(own)
		}
		each = append(each, func() error {
			collective.Do(group, q, op, whole, own)
			return q.Wait()
		})
	}
	var times []float64
	start := time.Now()
	for len(times) < 4 || time.Since(start) < 60*time.Millisecond {
		errs, wg, before := make([]error, len(each)), sync.WaitGroup{}, time.Now()
		for i, f := range each {
			wg.Go(func() { errs[i] = f() })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
		times = append(times, time.Since(before).Seconds())
	}
	return usual(times[1:]), nil
}

// seconds returns the time of a kernel with what precedes it.
func (h *Measurements) seconds(on setup.QueueRole, k forecast.Kernel, w forecast.Work) float64 {
	switch {
	case free(k):
		return 0
	case k.Group.Size > 0:
		return h.alike(sent(k), w)
	}
	return h.between + h.alike(timed{on, k}, w)
}

// alike returns the time of a kernel, scaled from a measurement of the same kernel with the nearest
// size or, without one, of another kernel with about as much work.
func (h *Measurements) alike(k timed, w forecast.Work) float64 {
	if s, ok := h.kernels[k]; ok {
		return s
	}
	alike := func(x timed) (score float64) {
		if (x.Group.Size > 0) != (k.Group.Size > 0) {
			return math.Inf(-1)
		}
		for _, same := range []struct {
			is    bool
			worth float64
		}{{x.Op == k.Op, 1000}, {x.Group.Size == k.Group.Size, 400}, {(h.work[x].Flops > 0) == (w.Flops > 0), 400}, {x.In == k.In && x.Out == k.Out, 20}, {x.Form == k.Form, 5}, {x.on == k.on, 2}} {
			if same.is {
				score += same.worth
			}
		}
		return score - 10*math.Abs(math.Log2(amount(h.work[x])/amount(w)))
	}
	best, most := timed{}, math.Inf(-1)
	for x := range h.kernels {
		if s := alike(x); s > most || s == most && cmp.Compare(h.kernels[x], h.kernels[best]) < 0 {
			best, most = x, s
		}
	}
	if math.IsInf(most, -1) {
		return 0
	}
	return h.kernels[best] * amount(w) / amount(h.work[best])
}

// amount returns the size of work, never 0.
func amount(w forecast.Work) float64 { return max(1, w.Flops, w.Bytes) }

// SimulateHere simulates the job on this machine, whose processors the ranks share.
func SimulateHere(c *spec.Job, h *Measurements) (*forecast.Step, error) {
	cores := runtime.GOMAXPROCS(0)
	wants := func(on setup.QueueRole) float64 {
		switch on {
		case setup.Read, setup.Write:
			return 0
		case setup.Compute, setup.Update, setup.HostUpdate:
			return float64(h.workers)
		}
		return 1
	}
	return forecast.SimulateWith(setup.Planned(c), forecast.CostModel{
		Name: "this machine", Source: fmt.Sprintf("measured: kernels in %s, on %d processors, %s at %.4g per second", h.steps, cores, h.peakOf, h.peak),
		Seconds: h.seconds, Wants: wants, There: float64(cores) / float64(c.Parallel.Ranks), Shared: true, Peak: h.peak / float64(c.Parallel.Ranks),
	})
}
