package job

import (
	"fmt"
	"io"
	"slices"

	"zeroth/zero"
)

// Forecast is how long a step of a job will take, found by replaying what its
// queues do in a dry run at the speed of some hardware.
type Forecast struct {
	Hardware string  `json:"hardware"`
	Source   string  `json:"source,omitempty"`
	Ranks    int     `json:"ranks"`
	Seconds  float64 `json:"step_seconds"`
	Compute  float64 `json:"compute_seconds"`               // of a step, in which the compute queue is at work
	Exposed  float64 `json:"exposed_communication_seconds"` // in which the comm queue is and the compute queue is not
	Offload  float64 `json:"exposed_offload_seconds"`       // in which only what copies, reads, writes and updates what is offloaded is
	Tokens   float64 `json:"tokens_per_second"`             // of all ranks
	Flops    float64 `json:"model_flops"`                   // of a rank in a step, without what is recomputed
	Used     float64 `json:"utilisation"`                   // MFU: Flops a second, as a share of the peak

	trace *Trace  // of a rank, of a step or some
	of    *Config // whose steps these are: with fewer micro-batches, where there are many
}

// pricing is what a replay asks of hardware.
type pricing struct {
	name, source string
	price        func(queue string, k kernel, w work) float64 // seconds on processors of its own
	wants        func(queue string) float64                   // processors
	there        float64                                      // for each rank
	peak         float64                                      // operations a second of a rank
}

// pricing is a device for each rank. What is not its own kernels takes none of
// it.
func (h *Hardware) pricing(c *Config) pricing {
	wants := func(queue string) float64 {
		if queue == queues[0] || queue == queues[2] {
			return 1
		}
		return 0
	}
	return pricing{h.Name, h.Source, h.price, wants, 1, h.peak(c.Precision)}
}

// Forecast replays the job on hardware that someone describes.
func (c *Config) Forecast(h *Hardware) (*Forecast, error) {
	if err := h.Serves(c, c.Zero.Offload.any(), c.Zero.Offload.disk()); err != nil {
		return nil, BadInput(err)
	}
	p := h.pricing(c)
	if c.Zero.Offload.disk() {
		bytes, err := c.diskBytes()
		if err != nil {
			return nil, err
		}
		p.price = h.diskPrice(bytes)
	}
	return c.forecast(p)
}

// diskPrice is price with so many bytes for each read and write of the disk.
func (h *Hardware) diskPrice(bytes float64) func(string, kernel, work) float64 {
	return func(queue string, k kernel, w work) float64 {
		if slices.Contains(diskQueues[:], queue) {
			return bytes / h.Disk
		}
		return h.price(queue, k, w)
	}
}

// diskBytes is what a read or a write of a step has on average.
func (c *Config) diskBytes() (float64, error) {
	var cost Cost
	_ = c.moved(c.traffic(unitSizes(c.Model.network())), Rates{Host: 1, Memory: 1, Disk: 1}, &cost)
	n, err := c.transfers(fewMicro)
	if more := c.Train.Accumulate - fewMicro; more > 0 && err == nil {
		var less int
		less, err = c.transfers(fewMicro - 1)
		n += more * (n - less)
	}
	return float64(cost.Disk) / float64(n), err
}

// transfers is how many reads and writes of the disk a step of at most so many
// micro-batches has.
func (c *Config) transfers(micros int) (n int, err error) {
	l, err := c.micros(micros).recorded(1)
	if err != nil {
		return 0, err
	}
	for _, q := range l.queues {
		for _, t := range q.tasks {
			if slices.Contains(diskQueues[:], q.name) && t.kernel >= 0 && l.kernels[t.kernel].op == "do" {
				n++
			}
		}
	}
	return n, nil
}

// mostForecast is the most seconds a replay counts in whole nanoseconds.
const mostForecast = 1e9

// replayed is how many steps a forecast replays. The first begins with nothing
// gathered and nothing to update behind it.
const replayed = 3

// recorded is what some steps of the job's first rank issue.
func (c *Config) recorded(steps int) (*recording, error) {
	f, err := c.Footprint()
	if err != nil {
		return nil, err
	}
	var l *recording
	t, _, _, err := c.rehearsal(f.Arena, Seams{}, func(z *zero.Config) { l = recordAll(z) })
	if err != nil {
		return nil, err
	}
	for range steps {
		t.Rehearse()
		if n := steps * l.tasks(); len(l.ends) == 0 && n > mostTasks {
			return nil, BadInput(fmt.Errorf("%d steps have %d tasks, of at most %d that are replayed; want fewer layers, larger chunks of the loss or less offloaded", steps, n, mostTasks))
		}
		l.ends = append(l.ends, len(l.waits)-1)
	}
	return l, nil
}

// fewReplayed is how many micro-batches are replayed; of more, each takes as long
// as the last of these, which like the one before it waits for a buffer of ids.
const fewReplayed = 4

func (c *Config) forecast(p pricing) (*Forecast, error) {
	if c.Train.Accumulate <= fewReplayed {
		return c.replayAll(p)
	}
	var few [2]*Forecast
	for i := range few {
		f, err := c.micros(fewReplayed - i).replayAll(p)
		if err != nil {
			return nil, err
		}
		few[i] = f
	}
	f, more := few[0], float64(c.Train.Accumulate-fewReplayed)
	for _, s := range []struct{ all, less *float64 }{
		{&f.Seconds, &few[1].Seconds}, {&f.Compute, &few[1].Compute}, {&f.Exposed, &few[1].Exposed}, {&f.Offload, &few[1].Offload}, {&f.Flops, &few[1].Flops},
	} {
		*s.all += more * (*s.all - *s.less)
	}
	f.rate(c, p)
	return f, nil
}

func (c *Config) replayAll(p pricing) (*Forecast, error) {
	l, err := c.recorded(replayed)
	if err != nil {
		return nil, err
	}
	r := &replay{recording: l, there: p.there}
	for _, q := range l.queues {
		r.wants = append(r.wants, p.wants(q.name))
		for i, k := range l.kernels {
			r.seconds = append(r.seconds, p.price(q.name, k, l.work[i]))
		}
	}
	tracks, waited := r.run()
	if !(r.now < mostForecast) {
		return nil, BadInput(fmt.Errorf("%d steps on %s would take %.3g seconds, of at most %.3g; want faster hardware or a smaller job", replayed, p.name, r.now, mostForecast))
	}
	steps := &track{name: "step", spans: make([]ran, len(l.ends))}
	from := 0.0
	for i, wait := range l.ends {
		end := waited[wait]
		steps.add(ran{"", fmt.Sprint("step ", i+1), int64(1e9 * from), int64(1e9 * end)})
		from = end
	}
	f := &Forecast{Hardware: p.name, Source: p.source, Ranks: c.Parallel.Ranks, of: c, trace: &Trace{ranks: [][]*track{append(tracks, steps)}}}
	e := f.trace.exposure()
	f.Seconds, f.Compute, f.Exposed, f.Offload = e.Seconds, e.Compute, e.Exposed, e.Offload
	m := c.Model.network()
	cost := c.cost(m, unitSizes(m), Rates{Flops: 1, Link: 1, Host: 1, Memory: 1, Disk: 1})
	f.Flops = cost.Flops - cost.Again
	f.rate(c, p)
	return f, nil
}

// rate is what the seconds come to.
func (f *Forecast) rate(c *Config, p pricing) {
	f.Tokens = float64(c.Train.MicroBatch*c.Train.Accumulate*c.Model.Context*c.Parallel.Ranks) / f.Seconds
	f.Used = 0
	if p.peak > 0 {
		f.Used = f.Flops / f.Seconds / p.peak
	}
}

// lines are the forecast in words.
func (f *Forecast) lines() []string {
	line := fmt.Sprintf("step    %s on %s: computing %s, communication not hidden %s (%.1f %%)", seconds(f.Seconds), f.Hardware, seconds(f.Compute), seconds(f.Exposed), 100*f.Exposed/f.Seconds)
	if f.Offload > 0 {
		line += fmt.Sprintf(", offload not hidden %s (%.1f %%)", seconds(f.Offload), 100*f.Offload/f.Seconds)
	}
	rate := fmt.Sprintf("speed   %s tokens a second, %s a rank", grouped(int64(f.Tokens)), grouped(int64(f.Tokens/float64(f.Ranks))))
	if f.Used > 0 {
		rate += fmt.Sprintf("; the model's arithmetic is %.1f %% of the peak", 100*f.Used)
	}
	lines := []string{line, rate}
	if f.Source != "" {
		lines = append(lines, "rates   "+f.Source)
	}
	return lines
}

// seconds is a time in the unit that suits it.
func seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.0f µs", 1e6*s)
	case s < 1:
		return fmt.Sprintf("%.1f ms", 1e3*s)
	}
	return fmt.Sprintf("%.2f s", s)
}

// WriteTrace writes what the queues of a rank are forecast to do, and what is in
// use the while, as Trace.Write does for a run. Of many micro-batches there are
// four.
func (p *Plan) WriteTrace(out io.Writer) error {
	t, of := *p.Forecast.trace, p.Forecast.of
	if t.memory = p; of.Train.Accumulate != p.Config.Train.Accumulate {
		few, err := of.Plan(p.Machine)
		if err != nil {
			return err
		}
		t.memory = few
	}
	return t.Write(out)
}
