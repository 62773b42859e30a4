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

// Rates are the speeds of a rank, used to weigh computation against traffic. The last three are a
// rank's share of its machine's.
type Rates struct {
	Flops  float64 `json:"flops"`       // floating-point operations of matrix products
	Cores  float64 `json:"cores"`       // operations other than products, and of attention with a soft cap; 0: included in products
	Link   float64 `json:"link"`        // bytes sent to other ranks, while receiving as many
	Host   float64 `json:"host_link"`   // bytes between device and host memory, in each direction
	Memory float64 `json:"host_memory"` // bytes that the host's kernels read and write
	Disk   float64 `json:"disk"`        // bytes to or from the disk
}

// Cost is the cost of a step of one rank.
type Cost struct {
	Flops   float64 `json:"flops"`
	Again   float64 `json:"recompute_flops"` // for recomputing activations, included in Flops
	Sent    int64   `json:"sent_bytes"`      // to other ranks
	Moved   int64   `json:"moved_bytes"`     // between device and host memory, in both directions
	Disk    int64   `json:"disk_bytes"`      // to and from the disk
	Compute float64 `json:"compute_seconds"`
	Idle    float64 `json:"idle_seconds"`    // while the pipeline fills and drains
	Exposed float64 `json:"exposed_seconds"` // communication not hidden by computation
	Update  float64 `json:"update_seconds"`  // of offloaded state and of whole matrices
}

// Seconds returns the duration of the step.
func (c Cost) Seconds() float64 { return c.Compute + c.Idle + c.Exposed + c.Update }

// Operations counts the work issued on a rank's compute queue.
type Operations struct {
	Flops  float64 // of matrix products and attention, counted as a model's: two products forward, four backward
	Again  float64 // the part of Flops that recomputes activations
	Capped float64 // the part of Flops in attention with a soft cap on scores
	Other  float64 // operations other than products, if soft caps make them significant
}

// Plus returns o + times*p.
func (o Operations) Plus(p Operations, times float64) Operations {
	return Operations{o.Flops + times*p.Flops, o.Again + times*p.Again, o.Capped + times*p.Capped, o.Other + times*p.Other}
}

// count adds a kernel of the compute queue. Attention's gradient recomputes the scores, which does
// not count as the model's arithmetic, and a query counts half of all positions.
func (l *Recording) count(k Kernel, w Work) {
	o := Operations{Flops: w.Flops, Other: w.Other}
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

// Event implements fsdp.Listener. It distinguishes recomputation from other passes.
func (l *Recording) Event(e fsdp.Event) {
	if e.Op == fsdp.Recompute {
		l.again = !e.Done
	}
}

// Arena implements fsdp.Listener.
func (l *Recording) Arena(int, string, int) {}

// Traffic is the bytes that a rank moves in a step. Values with two entries are for the first
// micro-batch and for each later one.
type Traffic [moves]int64

const (
	sentApart = iota // to replicas
	sentOnce         // within the shard group, once per step
	sentEach         // and there per micro-batch
	_
	fetched // offloaded parameters, brought to the device for a gather
	_
	gradients // to the host, and back for accumulation
	_
	updated     // between device and host during the update
	hostKernels // read and written by the host's kernels during the update
	diskState   // optimizer state read from and written to disk
	diskUpdated // parameters written to disk
	diskParams  // parameters read from disk for a gather
	_
	tookApart // nanoseconds of sending on known hardware, like the first three
	tookOnce
	tookEach
	_
	tookEnds // of the step's first gather and last reduction, which no pass hides
	moves
)

// took returns the index of the time for sent bytes with the given index.
func took(sent int) int { return sent - sentApart + tookApart }

// Plus returns t + times*u.
func (t Traffic) Plus(u Traffic, times int64) Traffic {
	for i := range t {
		t[i] += times * u[i]
	}
	return t
}

// over returns the total of a two-entry value in a step of micros micro-batches.
func (t *Traffic) over(at, micros int) int64 { return t[at] + int64(micros-1)*t[at+1] }

// HostUpdate returns the seconds of an update's host kernels, with memory of the given bytes per
// second.
func (t Traffic) HostUpdate(rate float64) float64 { return per(t[hostKernels], rate) }

// Meter measures the traffic of a trainer's dry run.
type Meter struct {
	Traffic
	keepGrads bool
	host      *Recording // of the host's kernels
	micro     int        // 0: the first micro-batch; 1: a later one
	updating  bool       // all passes are done
	pending   int64      // nanoseconds of the work issued since the last event
	ends      [2]int64   // nanoseconds of the first gather, and of the last reduction so far
	seconds   func(k Kernel) float64
}

// NewMeter makes a meter the listener of a trainer's configuration on devices that only count.
// seconds returns the duration of a collective; it is nil if unknown.
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

// Step runs a step and measures it.
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
			if x.Kernel >= 0 && m.host.Kernels[x.Kernel].Op != sumOfSquares { // norms are computed while gradients arrive
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

// meteredCompute detects the end of a micro-batch by the sum of its losses.
type meteredCompute struct {
	dry.Queue
	m *Meter
}

func (q meteredCompute) Sum(device.Buffer, device.Buffer) { q.m.micro = 1 }

// Offloaded implements offload.Listener. Copies are already counted by meteredQueue.
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

// Event implements fsdp.Listener. The event's communication has already been issued.
func (m *Meter) Event(e fsdp.Event) {
	at, once := sentEach+m.micro, false
	switch e.Op {
	case fsdp.Exchange: // included in the passes
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

// meteredGroup measures the duration of operations.
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

// Load is the work of a rank's step, to be weighed.
type Load struct {
	Micro   Operations // of a micro-batch
	Busy    float64    // seconds of computation and of matrix exchange per micro-batch; 0: derive from the rates
	Traffic Traffic
	Updates float64 // operations of whole-matrix updates
}

// Weigh estimates the cost of a step from the rates. If units are gathered ahead, computation
// hides the traffic of a micro-batch as far as possible. The estimate ranks candidates; a
// simulation gives the duration of a step.
func Weigh(c *config.Config, l Load, r Rates) (cost Cost) {
	n, t, micro := c.Train.Accumulate, &l.Traffic, l.Micro
	times := float64(n)
	cost.Flops, cost.Again, cost.Compute = micro.Flops*times, micro.Again*times, micro.Flops*times/r.Flops
	switch {
	case l.Busy > 0:
		cost.Compute = times * l.Busy
	case r.Cores > 0 && micro.Other > 0:
		cost.Compute = times * ((micro.Flops-micro.Capped)/r.Flops + (micro.Capped+micro.Other)/r.Cores)
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
	hidden := max(0, cost.Compute-traffic) / times // by the micro-batch with the once-per-step traffic
	cost.Exposed = max(cost.Exposed+max(0, once-hidden), 1e-9*float64(t[tookEnds]))
	return cost
}

// per returns the seconds for some bytes. A machine may lack the rate if there are none.
func per(bytes int64, rate float64) float64 {
	if bytes == 0 {
		return 0
	}
	return float64(bytes) / rate
}
