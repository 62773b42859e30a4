package forecast

import (
	"fmt"
	"math"
	"strings"

	"zeroth/collective"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/job/trace"
	"zeroth/offload"
	"zeroth/shard"
	"zeroth/zero"
)

// Step is the simulated time of a training step on some hardware. The simulation runs the
// operations that a dry run issues on each queue.
type Step struct {
	Hardware string  `json:"hardware"`
	Source   string  `json:"source,omitempty"`
	Ranks    int     `json:"ranks"`
	Seconds  float64 `json:"step_seconds"`
	Compute  float64 `json:"compute_seconds"`               // time in a step in which the compute queue is busy
	Exposed  float64 `json:"exposed_communication_seconds"` // time in which the comm queue is busy and the compute queue is idle
	Offload  float64 `json:"exposed_offload_seconds"`       // time in which only copies, disk transfers and updates of offloaded state are in progress
	Bubble   float64 `json:"pipeline_bubble,omitempty"`     // share of a step in which a pipeline's rank is idle; a mean
	Tokens   float64 `json:"tokens_per_second"`             // for all ranks
	Flops    float64 `json:"model_flops"`                   // of a rank in a step, without recomputation; in a pipeline a mean
	Again    float64 `json:"recompute_flops"`               // of a rank in a step, for recomputation; in a pipeline a mean
	Sent     int64   `json:"sent_bytes"`                    // by a rank in a step; in a pipeline by the one that sends most
	Used     float64 `json:"utilisation"`                   // MFU: Flops a second, as a share of the peak

	Moves   string `json:"collectives,omitempty"`         // describes what moves them
	Between int64  `json:"bytes_between_hosts,omitempty"` // sent to others by the first rank's host in a step, without NCCL's traffic

	Training *Training `json:"training,omitempty"` // on a number of tokens; nil if none was given

	Trace *trace.Trace `json:"-"` // of a rank at each pipeline stage, for some steps; nil if not requested
	Job   *spec.Job    `json:"-"` // the simulated job, with fewer micro-batches if there are many
}

// Training is the cost of training on a number of tokens.
type Training struct {
	Tokens   float64 `json:"tokens"`
	Steps    int64   `json:"steps"`
	Days     float64 `json:"days"`
	GPUHours float64 `json:"gpu_hours"`
}

// Train sets what training on a number of tokens takes.
func (f *Step) Train(tokens float64) {
	seconds := tokens / f.Tokens
	f.Training = &Training{tokens, int64(math.Ceil(seconds / f.Seconds)), seconds / 86400, seconds / 3600 * float64(f.Ranks)}
}

// CostModel gives the times of kernels on some hardware.
type CostModel struct {
	Name, Source string
	Seconds      func(on setup.QueueRole, k Kernel, w Work) float64 // seconds on dedicated processors
	Wants        func(on setup.QueueRole) float64                   // processors
	There        float64                                            // processors available per rank
	Shared       bool                                               // ranks of other stages can use processors that a stage leaves idle
	Peak         float64                                            // operations per second of a rank

	// Moves describes what moves collectives; Between returns the bytes that one sends from the
	// first rank's host to others. Planned is called before these and Seconds, with the bounce
	// memory of a rank's groups. All may be nil.
	Moves   string
	Between func(k Kernel) int64
	Planned func(bounce map[Group]int)

	Untraced bool // do not record a trace
}

// costs returns the cost model of one device per rank. Only the device's own kernels use it.
func (m *moving) costs() CostModel {
	wants := func(on setup.QueueRole) float64 {
		if on == setup.Compute || on == setup.Update {
			return 1
		}
		return 0
	}
	return CostModel{
		Name: m.Name, Source: m.source(), Seconds: m.seconds, Wants: wants, There: 1, Peak: m.PeakOf(m.job.Precision),
		Moves: m.transport(), Between: m.between, Planned: func(bounce map[Group]int) { m.bounce = bounce },
	}
}

// Simulate simulates the job on some hardware.
func Simulate(c *setup.Job, h *Hardware) (*Step, error) { return simulate(c, h, false) }

// SimulateUntraced is like Simulate but keeps no trace, which would be large for thousands of
// layers and many settings.
func SimulateUntraced(c *setup.Job, h *Hardware) (*Step, error) { return simulate(c, h, true) }

func simulate(c *setup.Job, h *Hardware, untraced bool) (*Step, error) {
	if err := h.Serves(c, c.Zero.Offload.Any(), c.Zero.Offload.Disk()); err != nil {
		return nil, input.BadInput(err)
	}
	m := h.moving(c)
	costs := m.costs()
	costs.Untraced = untraced
	return SimulateWith(m.job, costs)
}

// mostSeconds is the longest simulation in seconds, limited by whole nanoseconds.
const mostSeconds = 1e9

// simulatedSteps is the number of simulated steps. The first starts with nothing gathered and
// no updates in flight. Later ones take as long as the second.
const simulatedSteps = 2

// Recorded returns the operations issued in some steps of the job by the first rank of each
// pipeline stage.
func Recorded(c *setup.Job, steps int) ([]*Recording, error) {
	return recorded(c, steps, (*zero.Trainer).DryRun)
}

// recorded is like Recorded with another first step.
func recorded(c *setup.Job, steps int, first func(*zero.Trainer)) (places []*Recording, err error) {
	tasks := 0
	for at := range setup.Pipeline(c.Job) {
		l, err := recordedAt(c, at, steps, first, &tasks)
		if err != nil {
			return nil, err
		}
		places = append(places, l)
	}
	return places, nil
}

// recordedAt is like recorded for one pipeline stage. It adds to tasks.
func recordedAt(c *setup.Job, at, steps int, first func(*zero.Trainer), tasks *int) (*Recording, error) {
	var l *Recording
	d, err := setup.OpenDry(c, at, func(z *zero.Config) { l = RecordAll(z) })
	if err != nil {
		return nil, err
	}
	for i := range steps {
		l.begin(steps - i)
		first(d.Trainer)
		first = (*zero.Trainer).DryRun
		if n := *tasks + l.tasks()*steps/(i+1); n > spec.MostTasks {
			return nil, input.BadInput(fmt.Errorf("%d steps have %d tasks, but at most %d are simulated; "+
				"want fewer layers, larger loss chunks or less offloading", steps, n, spec.MostTasks))
		}
		l.ends = append(l.ends, len(l.waits)-1)
	}
	*tasks += l.tasks()
	l.bounce = map[Group]int{}
	bytes := d.Bounce()
	for role, g := range groups(spec.Mesh(c.Job)) {
		l.bounce[g] = max(l.bounce[g], bytes[role])
	}
	return l, nil
}

// groups returns the groups of a mesh's ranks that reduce, by role.
func groups(m shard.Mesh) map[collective.Role]Group {
	share, same := m.Holders()
	shared, replicas := m.Size(share...), m.Size(same...)
	stride := shared * m.Size(shard.Tensor) // from a replica to the next
	if m.Copies {
		stride = m.Size(shard.Tensor)
	}
	experts, copies := m.ExpertHolders()
	apart := func(outer shard.Axis) int { // as if the ranks of a group of experts were evenly spaced
		if m.Size(outer) > 1 {
			return m.Size(shard.Expert, shard.Tensor)
		}
		return m.Size(shard.Tensor)
	}
	copied := m.Size(shard.Shard, shard.Expert, shard.Context, shard.Tensor) // from a replica of experts to the next
	if m.Copies {
		copied = apart(shard.Replicate)
	}
	return map[collective.Role]Group{
		collective.Shard:         {shared, m.Size(shard.Tensor)},
		collective.Replica:       {replicas, stride},
		collective.Context:       {m.Size(shard.Context), m.Size(shard.Tensor)},
		collective.Tensor:        {m.Size(shard.Tensor), 1},
		collective.Updates:       {m.Size(shard.Tensor), 1},
		collective.Joint:         {m.Size(collective.JointAxes(m, m.Holders)...), 1},
		collective.Experts:       {m.Size(shard.Expert, shard.Tensor), m.Size(shard.Context)},
		collective.ExpertShard:   {m.Size(experts...), apart(shard.Shard)},
		collective.ExpertReplica: {m.Size(copies...), copied},
		collective.ExpertJoint:   {m.Size(collective.JointAxes(m, m.ExpertHolders)...), m.Size(shard.Expert)},
	}
}

// SimulateWith is like Simulate with a given cost model. It simulates only a few of many
// micro-batches. Each further round of them takes as long as the last.
func SimulateWith(c *setup.Job, p CostModel) (*Step, error) {
	n, round := c.PipelineShape().Timed()
	if c.Train.Sums == "tree" {
		n = c.Train.Accumulate // each adds to other sums
	}
	few, first := coarse(setup.Micros(c, n)), (*zero.Trainer).DryRun
	if p.Untraced {
		first = (*zero.Trainer).DryEnds
	}
	places, err := recorded(few, simulatedSteps, first)
	if err != nil {
		return nil, err
	}
	f, err := simulated(few, places, p)
	if n == c.Train.Accumulate || err != nil {
		return f, err
	}
	for i, l := range places {
		places[i] = l.shorter()
	}
	p.Untraced = true
	fewer, err := simulated(few, places, p)
	if err != nil {
		return nil, err
	}
	f.extend(fewer, float64((c.Train.Accumulate-n)/round))
	f.rate(c.Job, p)
	return f, nil
}

// coarse sets larger pieces of offloaded state than in a run, if a unit has so many of them that a simulation would
// have too many tasks. A hundred overlap as well as a thousand.
func coarse(c *setup.Job) *setup.Job {
	if !c.Zero.Offload.Any() || c.Hooks.Tile > 0 {
		return c
	}
	most := 0
	for _, u := range spec.Network(c.Job).Units() {
		n := 0
		for _, p := range u.Params {
			n += p.Numel()
		}
		most = max(most, n/(c.Parallel.Shard*c.Parallel.Tensor))
	}
	if most > 512*offload.TileLen {
		c.Hooks.Tile = most / 128
	}
	return c
}

// extend adds as many times what a step has more than one with fewer micro-batches.
func (f *Step) extend(fewer *Step, times float64) {
	idle, less := f.Bubble*f.Seconds, fewer.Bubble*fewer.Seconds
	for _, s := range []struct{ all, less *float64 }{
		{&f.Seconds, &fewer.Seconds}, {&f.Compute, &fewer.Compute}, {&f.Exposed, &fewer.Exposed}, {&f.Offload, &fewer.Offload},
		{&f.Flops, &fewer.Flops}, {&f.Again, &fewer.Again}, {&idle, &less},
	} {
		*s.all += times * (*s.all - *s.less)
	}
	f.Bubble = idle / f.Seconds
	f.Between += int64(times) * (f.Between - fewer.Between)
	f.Sent += int64(times) * (f.Sent - fewer.Sent)
}

// simulated returns the last of some recorded steps.
func simulated(c *setup.Job, places []*Recording, p CostModel) (*Step, error) {
	r := &simulation{shared: p.Shared}
	for _, l := range places {
		r.ranks = append(r.ranks, newPlace(l, p))
	}
	r.run(!p.Untraced)
	if !(r.now < mostSeconds) {
		return nil, input.BadInput(fmt.Errorf("%d steps on %s would take %.3g seconds, more than %.3g; "+
			"want faster hardware or a smaller job", simulatedSteps, p.Name, r.now, mostSeconds))
	}
	f := &Step{Hardware: p.Name, Source: p.Source, Ranks: c.Parallel.Ranks, Moves: p.Moves, Job: c.Job}
	r.sum(f, p)
	f.rate(c.Job, p)
	return f, nil
}

// step returns the operations of the last step.
func (l *Recording) step() Operations {
	return Operations{l.Flops - l.before.Flops, l.Again - l.before.Again, l.Sent - l.before.Sent}
}

// modelFlops returns the operations of a step without recomputation.
func (l *Recording) modelFlops() float64 { return l.step().Flops - l.step().Again }

// ModelFlops returns the operations of a rank in a step of the job, without recomputation; in a
// pipeline, or if replicas differ, their mean over the ranks. It is the Flops of a Step.
func ModelFlops(c *setup.Job) (flops float64, err error) {
	n, _ := c.PipelineShape().Timed()
	places, err := Recorded(setup.Micros(c, n), 1)
	if err != nil {
		return 0, err
	}
	for _, l := range places {
		flops += l.modelFlops() / float64(len(places))
	}
	micros := float64(c.Train.Batch) / float64(c.Train.MicroBatch*c.Parallel.DataRanks())
	return flops * micros / float64(n), nil
}

// newPlace returns a pipeline stage whose kernels take the times of the cost model.
func newPlace(l *Recording, p CostModel) *pipelineRank {
	if p.Planned != nil {
		p.Planned(l.bounce)
	}
	r := &pipelineRank{Recording: l, there: p.There}
	for _, q := range l.Queues {
		r.wants = append(r.wants, p.Wants(q.Role))
		for i, k := range l.Kernels {
			r.seconds = append(r.seconds, p.Seconds(q.Role, k, l.Work[i]))
		}
	}
	return r
}

// sum adds up the steps of all pipeline stages: their time, and how it divides on the one that
// computes most.
func (r *simulation) sum(f *Step, p CostModel) {
	const scale = 1e-9 / (simulatedSteps - 1)
	most, n, idle := r.ranks[0].spent, float64(len(r.ranks)), 0.0
	if !p.Untraced {
		f.Trace = &trace.Trace{}
	}
	for _, l := range r.ranks {
		seconds := max(most.Seconds, l.spent.Seconds)
		if l.spent.Compute > most.Compute {
			most = l.spent
		}
		most.Seconds = seconds
		idle += l.idle / n
		f.Flops += l.modelFlops() / n
		f.Again += l.step().Again / n
		f.Sent = max(f.Sent, l.step().Sent)
		f.Between += l.between(p)
		if f.Trace != nil {
			f.Trace.AddRank(l.rank, append(l.tracks, l.steps()))
		}
	}
	f.Seconds, f.Compute, f.Exposed, f.Offload = most.Seconds*scale, most.Compute*scale, most.Exposed*scale, most.Offload*scale
	if n > 1 {
		f.Bubble = idle / most.Seconds
	}
}

// steps returns the track of steps.
func (r *pipelineRank) steps() *trace.Track {
	t, from := trace.NewSteps(len(r.ended)), 0.0
	for i, end := range r.ended {
		t.Add(trace.Span{Task: fmt.Sprint("step ", i+1), Start: nanoseconds(from), End: nanoseconds(end)})
		from = end
	}
	return t
}

// between returns the bytes that the first host sends to others in the last step, in the groups
// of all pipeline stages, which are equal, and over this stage's links.
func (l *Recording) between(p CostModel) (bytes int64) {
	if p.Between == nil {
		return 0
	}
	for i, q := range l.Queues {
		for _, t := range q.Tasks[l.last[i]:] {
			if t.Kernel < 0 || l.Kernels[t.Kernel].Group.Size == 0 {
				continue
			}
			if k := l.Kernels[t.Kernel]; k.isLink() && k.Link[0] == l.rank || !k.isLink() && l.rank == 0 {
				bytes += p.Between(k)
			}
		}
	}
	return bytes
}

// rate sets the speed and MFU from the seconds.
func (f *Step) rate(c *spec.Job, p CostModel) {
	f.Tokens = float64(spec.TokensPerStep(c)) / f.Seconds
	f.Used = 0
	if p.Peak > 0 {
		f.Used = f.Flops / f.Seconds / p.Peak
	}
}

// Lines returns the result as lines of a report.
func (f *Step) Lines() []string {
	line := fmt.Sprintf("step    %s on %s: computing %s, exposed communication %s (%.1f %%)",
		show.Seconds(f.Seconds), f.Hardware, show.Seconds(f.Compute), show.Seconds(f.Exposed), 100*f.Exposed/f.Seconds)
	if f.Offload > 0 {
		line += fmt.Sprintf(", exposed offload %s (%.1f %%)", show.Seconds(f.Offload), 100*f.Offload/f.Seconds)
	}
	if f.Bubble > 0 {
		line += fmt.Sprintf(", pipeline bubble %s (%.1f %%)", show.Seconds(f.Bubble*f.Seconds), 100*f.Bubble)
	}
	rate := fmt.Sprintf("speed   %s tokens/s, %s per rank", show.Grouped(int64(f.Tokens)), show.Grouped(int64(f.Tokens/float64(f.Ranks))))
	if f.Used > 0 {
		rate += fmt.Sprintf(", MFU %.1f %%", 100*f.Used)
	}
	lines := []string{line, rate}
	if moves := f.Moves; moves != "" {
		if f.Between > 0 {
			moves += fmt.Sprintf("; a host sends %s to others per step", show.DecimalSize(f.Between))
		}
		lines = append(lines, "moves   collectives: "+moves)
	}
	if f.Source != "" {
		lines = append(lines, "rates   "+f.Source)
	}
	lines = append(lines, "overlap "+strings.ReplaceAll(overlap, "\n", " "))
	return lines
}
