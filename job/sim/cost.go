package sim

import (
	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/dry"
	"zeroth/fsdp"
	"zeroth/job/config"
	"zeroth/offload"
	"zeroth/zero"
)

// Rates are what a rank can do in a second, to weigh work against traffic. The
// last three are a rank's share of what its machine has.
type Rates struct {
	Flops  float64 `json:"flops"`       // floating-point operations that products of matrices come to
	Cores  float64 `json:"cores"`       // those beside products, and of attention with a soft cap; 0: as products
	Link   float64 `json:"link"`        // bytes sent to other ranks, and received at the same time
	Host   float64 `json:"host_link"`   // bytes between device and host memory, each way
	Memory float64 `json:"host_memory"` // bytes the host's kernels read and write
	Disk   float64 `json:"disk"`        // bytes to or from the disk
}

// Cost is what a step of one rank takes.
type Cost struct {
	Flops   float64 `json:"flops"`
	Again   float64 `json:"recompute_flops"` // those that recomputing activations takes, in Flops too
	Sent    int64   `json:"sent_bytes"`      // to other ranks
	Moved   int64   `json:"moved_bytes"`     // between device and host memory, both ways
	Disk    int64   `json:"disk_bytes"`      // to and from the disk
	Compute float64 `json:"compute_seconds"`
	Idle    float64 `json:"idle_seconds"`    // of a pipeline that fills and drains
	Exposed float64 `json:"exposed_seconds"` // communication that no computing hides
	Update  float64 `json:"update_seconds"`  // of what is offloaded, and of whole matrices
}

// Seconds is how long the step takes.
func (c Cost) Seconds() float64 { return c.Compute + c.Idle + c.Exposed + c.Update }

// Operations counts what is issued on a rank's compute queue.
type Operations struct {
	Flops  float64 // of matrix products and attention, as a model's are counted: two products forward, four backward
	Again  float64 // the part of Flops that computes activations again
	Capped float64 // the part of Flops in attention whose scores have a soft cap
	Beside float64 // operations other than products, where soft caps make them many
}

// Plus is o and times p.
func (o Operations) Plus(p Operations, times float64) Operations {
	return Operations{o.Flops + times*p.Flops, o.Again + times*p.Again, o.Capped + times*p.Capped, o.Beside + times*p.Beside}
}

// count adds a kernel of the compute queue. A kernel of attention's gradient
// computes the scores again, which is not the model's arithmetic; and a query is
// counted with half of all positions.
func (l *Recording) count(k Kernel, w Work) {
	o := Operations{Flops: w.Flops, Beside: w.Beside}
	switch k.Op {
	case attention:
		o.Flops = 2 * float64(k.M*k.K) * float64(k.N) * float64(k.N)
	case attentionGrad:
		o.Flops = 4 * float64(k.M*k.K) * float64(k.N) * float64(k.N)
	}
	if k.Op == attention || k.Op == attentionGrad {
		o.Capped = float64(k.Form&Capped) * o.Flops
	}
	if l.again {
		o.Again = o.Flops
	}
	l.Operations = l.Operations.Plus(o, 1)
}

// Event implements fsdp.Listener: it tells recomputation from the other passes.
func (l *Recording) Event(e fsdp.Event) {
	if e.Op == fsdp.Recompute {
		l.again = !e.Done
	}
}

// Arena implements fsdp.Listener.
func (l *Recording) Arena(int, string, int) {}

// Traffic is the bytes that a rank moves in a step. A value that has two entries is
// of the first micro-batch and of each that follows.
type Traffic [moves]int64

const (
	sentApart = iota // to replicas
	sentOnce         // inside the shard group, once in a step
	sentEach         // and there in micro-batches
	_
	fetched // parameters that rest elsewhere, brought to the device for a gather
	_
	gradients // to the host, and back to be added to
	_
	updated     // between device and host during the update
	hostKernels // read and written by the host's kernels during the update
	diskState   // optimizer state read from the disk and written to it
	diskUpdated // parameters written there
	diskParams  // parameters read there for a gather
	_
	tookApart // nanoseconds of what is sent, where the hardware is known, as the first three
	tookOnce
	tookEach
	_
	tookEnds // of the step's first gather and its last reduction, which no pass hides
	moves
)

// took is where the time is of what is sent that has its bytes there.
func took(sent int) int { return sent - sentApart + tookApart }

// Plus is t and times u.
func (t Traffic) Plus(u Traffic, times int64) Traffic {
	for i := range t {
		t[i] += times * u[i]
	}
	return t
}

// over is the bytes of something that has two entries in a step of so many
// micro-batches.
func (t *Traffic) over(at, micros int) int64 { return t[at] + int64(micros-1)*t[at+1] }

// HostUpdate is the seconds that the host's kernels of an update take on memory of so
// many bytes a second.
func (t Traffic) HostUpdate(rate float64) float64 { return per(t[hostKernels], rate) }

// Meter counts the traffic of a trainer's dry run.
type Meter struct {
	Traffic
	keepGrads bool
	host      *Recording // of the host's kernels
	micro     int        // 0: the first micro-batch; 1: a later one
	updating  bool       // all passes are over
	pending   int64      // nanoseconds of what has been issued since the last event
	ends      [2]int64   // nanoseconds of the first gather, and of the last reduction so far
	seconds   func(k Kernel) float64
}

// NewMeter listens to a trainer that is to be built on devices that only count. Seconds are
// those of a collective, nil where they are not known.
func NewMeter(z *zero.Config, seconds func(k Kernel) float64) *Meter {
	m := &Meter{keepGrads: z.Policy.KeepGrads, host: newRecording(), seconds: seconds}
	if seconds != nil {
		wrapUnits(z, func(g recordedGroup) collective.Group { return meteredGroup{g, m} })
	}
	z.Listener, z.Offload.Listener, z.Compute = m, m, meteredCompute{m: m}
	if z.HostUpdate != nil {
		z.HostUpdate = m.host.queue("", z.HostUpdate.(ops))
		z.Offload.ToHost, z.Offload.ToDevice = meteredQueue{m: m}, meteredQueue{m: m}
	}
	return m
}

// Step runs a step and counts it.
func (m *Meter) Step(t *zero.Trainer) {
	m.Traffic, m.micro, m.updating, m.pending, m.ends = Traffic{}, 0, false, 0, [2]int64{}
	first := 0
	for _, q := range m.host.Queues {
		first = len(q.Tasks)
	}
	t.DryRun()
	m.Traffic[tookEnds] = m.ends[0] + m.ends[1]
	for _, q := range m.host.Queues {
		for _, x := range q.Tasks[first:] {
			if x.Kernel >= 0 && m.host.Kernels[x.Kernel].Op != sumOfSquares { // norms are taken while gradients arrive
				m.Traffic[hostKernels] += int64(m.host.Work[x.Kernel].Bytes)
			}
		}
	}
}

// meteredQueue counts the bytes of copies between device and host.
type meteredQueue struct {
	dry.Queue
	m *Meter
}

func (q meteredQueue) Copy(dst, _ device.Buffer) {
	at := gradients + q.m.micro
	if q.m.updating {
		at = updated
	}
	q.m.Traffic[at] += int64(dst.Bytes())
}

// meteredCompute hears that a micro-batch is over, when its losses are added up.
type meteredCompute struct {
	dry.Queue
	m *Meter
}

func (q meteredCompute) Sum(device.Buffer, device.Buffer) { q.m.micro = 1 }

// Offloaded implements offload.Listener. The copies it hears of are counted already.
func (m *Meter) Offloaded(e offload.Event) {
	switch disk := e.Kind == offload.Read || e.Kind == offload.Write; {
	case disk && !e.Param:
		m.Traffic[diskState] += e.Bytes
	case disk && m.updating:
		m.Traffic[diskUpdated] += e.Bytes
	case disk:
		m.Traffic[diskParams+m.micro] += e.Bytes
	case !m.updating:
		m.Traffic[gradients+m.micro] -= e.Bytes
		m.Traffic[fetched+m.micro] += e.Bytes
	}
}

// Event implements fsdp.Listener. What is sent has been issued when it is told of.
func (m *Meter) Event(e fsdp.Event) {
	at, once := sentEach+m.micro, false
	switch e.Op {
	case fsdp.Exchange: // passes have it
		return
	case fsdp.Gather:
		once = e.Units[0].Whole()
		if m.ends[0] == 0 {
			m.ends[0] = m.pending
		}
	case fsdp.Reduce:
		once, m.ends[1] = m.keepGrads, m.pending
	case fsdp.GatherUpdate, fsdp.ScatterUpdate:
		once = true
	case fsdp.Replicate, fsdp.ShareUpdate:
		at, m.ends[1] = sentApart, m.ends[1]+m.pending
	case fsdp.Norm:
		m.updating = true
	}
	if once {
		at = sentOnce
	}
	m.Traffic[at] += e.Sent
	m.Traffic[took(at)] += m.pending
	m.pending = 0
}

// meteredGroup counts how long operations take.
type meteredGroup struct {
	recordedGroup
	m *Meter
}

func (g meteredGroup) count(op string, whole, own device.Buffer) {
	g.m.pending += nanoseconds(g.m.seconds(g.kernel(op, whole, own)))
}

// AllGather implements collective.Group.
func (g meteredGroup) AllGather(_ device.Queue, whole, own device.Buffer) {
	g.count(allGather, whole, own)
}

// ReduceScatter implements collective.Group.
func (g meteredGroup) ReduceScatter(_ device.Queue, own, whole device.Buffer) {
	g.count(reduceScatter, whole, own)
}

// Broadcast implements collective.Group.
func (g meteredGroup) Broadcast(_ device.Queue, b device.Buffer) { g.count("broadcast", b, b) }

// Arena implements fsdp.Listener.
func (m *Meter) Arena(int, string, int) {}

// Load is what a step of a rank does, to be weighed.
type Load struct {
	Micro   Operations // of a micro-batch
	Busy    float64    // seconds that a micro-batch computes, and what divides matrices exchanges; 0: by the rates
	Traffic Traffic
	Updates float64 // operations in updates of whole matrices
}

// Weigh divides the work of a step by the rates. Traffic of a micro-batch is hidden behind its
// computing, as far as that goes, if units are gathered ahead. This orders candidates; a
// simulation says how long a step takes.
func Weigh(c *config.Config, l Load, r Rates) (cost Cost) {
	n, t, micro := c.Train.Accumulate, &l.Traffic, l.Micro
	times := float64(n)
	cost.Flops, cost.Again, cost.Compute = micro.Flops*times, micro.Again*times, micro.Flops*times/r.Flops
	switch {
	case l.Busy > 0:
		cost.Compute = times * l.Busy
	case r.Cores > 0 && micro.Beside > 0:
		cost.Compute = times * ((micro.Flops-micro.Capped)/r.Flops + (micro.Capped+micro.Beside)/r.Cores)
	}
	each, fetches, grads, params := t.over(sentEach, n), t.over(fetched, n), t.over(gradients, n), t[diskUpdated]+t.over(diskParams, n)
	cost.Sent = t[sentApart] + t[sentOnce] + each
	cost.Moved, cost.Disk = fetches+grads+t[updated], params+t[diskState]
	once, often := per(t[sentOnce]+t[sentApart], r.Link), per(each, r.Link)
	if l.Busy > 0 {
		once, often = 1e-9*float64(t[tookOnce]+t[tookApart]), 1e-9*float64(t.over(tookEach, n))
	}
	traffic := often + max(per(fetches, r.Host), per(params, r.Disk))
	if c.Zero.Offload.Optimizer != "none" {
		cost.Update = max(per(grads+t[updated], 2*r.Host), per(t[hostKernels], r.Memory), per(t[diskState], r.Disk))
	}
	cost.Update += l.Updates / r.Flops
	if c.Zero.Prefetch == 0 {
		cost.Exposed = once + traffic
		return cost
	}
	cost.Exposed = max(0, traffic-cost.Compute)
	hidden := max(0, cost.Compute-traffic) / times // by the micro-batch that sends what is sent once
	cost.Exposed = max(cost.Exposed+max(0, once-hidden), 1e-9*float64(t[tookEnds]))
	return cost
}

// per is the seconds that some bytes take; a machine may have no rate for what is
// never moved.
func per(bytes int64, rate float64) float64 {
	if bytes == 0 {
		return 0
	}
	return float64(bytes) / rate
}
