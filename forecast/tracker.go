package forecast

import (
	"fmt"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/zero"
)

// Tracker records the memory in use at each event of a trainer, in a dry run or a real one. It
// implements fsdp.Listener.
//
// Events are in order of issue, but work on other queues takes time. A gathered unit counts from
// its gather on, and a reduced gradient until its slot is needed again. So the recorded use is
// never less than the actual use at any instant of a run.
type Tracker struct {
	policy fsdp.Policy
	micros int       // micro-batches of the step
	first  int       // micro-batches recorded at the beginning, besides the last
	model  *nn.Model // of the rank

	On      bool // record events
	now     Amounts
	arenas  [][]segment    // segments in use in each arena, from the bottom
	purpose Category       // category of the next arena memory
	passing bool           // a module's pass is being issued
	left    map[string]int // len(Moments) at the last use of a unit
	at      *Moment        // of the current event; nil between events, and for events not recorded
	Moments []*Moment
	sent    Sent // bytes sent by the rank,
	second  Sent // and those of the second micro-batch
}

// segment is contiguous memory of an arena, in bytes.
type segment struct {
	from, to int
	purpose  Category
}

// NewTracker makes a tracker the listener of a trainer's configuration.
func NewTracker(z *zero.Config) *Tracker {
	w := &Tracker{policy: z.Policy, micros: z.Micro, first: z.Shape().Full(), model: z.Part()}
	z.Listener = w
	return w
}

// Begin resets the tracker before the step to track.
func (w *Tracker) Begin() {
	*w = Tracker{policy: w.policy, micros: w.micros, first: w.first, model: w.model, On: true, purpose: SavedActivations, left: map[string]int{}}
}

// Rest adds the part of allocated memory that is in use at all times.
func (w *Tracker) Rest(allocated device.Bytes) {
	for _, m := range w.Moments {
		for c, bytes := range atRest(allocated) {
			m.InUse[c] += bytes
		}
	}
}

// Event implements fsdp.Listener.
func (w *Tracker) Event(e fsdp.Event) {
	if !w.On {
		return
	}
	w.sent.add(e)
	if e.Micro == 1 {
		w.second.add(e)
	}
	if e.Units == nil {
		return
	}
	u := e.Units[0]
	switch e.Op {
	case fsdp.InUse:
		w.change(e)
	case fsdp.Forward, fsdp.Recompute, fsdp.Backward, fsdp.Weights:
		w.pass(e)
	case fsdp.Gather, fsdp.Reduce, fsdp.GatherUpdate, fsdp.ScatterUpdate:
		w.collective(e, u.Shard)
	case fsdp.Replicate, fsdp.ShareUpdate:
		w.collective(e, u.Replica)
	case fsdp.Vacate:
		w.at = nil
	case fsdp.Norm, fsdp.Update:
		w.event(e)
	}
}

// change applies a change of the memory in use.
func (w *Tracker) change(e fsdp.Event) {
	of, unit := categoryOf(e.Use), e.Units[0].Name
	if e.Stays {
		for _, m := range w.Moments[w.left[unit]:] {
			m.InUse[of] += e.Bytes
		}
	}
	if of == GatheredUnits && e.Bytes < 0 {
		w.left[unit] = len(w.Moments)
	}
	w.add(of, e.Bytes)
}

// collective records an event that needs several ranks.
func (w *Tracker) collective(e fsdp.Event, g collective.Group) {
	if w.at = nil; g.Size() > 1 {
		w.event(e)
	}
}

// pass records the beginning or end of a module's pass. Arena memory of a pass is work space,
// except what a forward pass saves. Between passes it is module outputs.
func (w *Tracker) pass(e fsdp.Event) {
	w.at, w.purpose, w.passing = nil, SavedActivations, !e.Done
	if e.Done {
		return
	}
	w.event(e)
	switch {
	case e.Op == fsdp.Recompute:
		w.purpose = Recomputed
	case e.Op == fsdp.Backward || !e.Saves:
		w.purpose = WorkSpace
	}
}

// Arena implements fsdp.Listener.
func (w *Tracker) Arena(arena int, what string, height int) {
	if !w.On {
		return
	}
	for len(w.arenas) <= arena {
		w.arenas = append(w.arenas, nil)
	}
	a := &w.arenas[arena]
	if !w.passing {
		w.at = nil
	}
	if of := w.purpose; height > top(*a) {
		if what == nn.Logits {
			of = Logits
		}
		w.raise(a, height, of)
	} else {
		w.lower(a, height)
	}
}

// add adds the bytes that an event sends.
func (s *Sent) add(e fsdp.Event) {
	switch e.Op {
	case fsdp.Replicate, fsdp.ShareUpdate:
		s.Replicate += e.Sent
	case fsdp.Exchange:
		s.Tensor += e.Sent
	case fsdp.ExchangeKeys:
		s.Context += e.Sent
	case fsdp.ExchangeRows:
		s.Expert += e.Sent
	default:
		s.Shard += e.Sent
	}
}

// event begins an event. It does not record micro-batches between the first ones and the last,
// which equal the one before them.
func (w *Tracker) event(e fsdp.Event) {
	w.at = nil
	if e.Micro >= w.first && e.Micro < w.micros-1 {
		return
	}
	u := e.Units[0]
	first, _ := u.Steps()
	w.at = &Moment{Phase: Phase(e.Op.String()), Unit: u.Name, Micro: e.Micro, module: e.Step, InUse: w.now, reduces: e.Op == fsdp.Backward && e.Step == first && u.Shard.Size() > 1}
	w.Moments = append(w.Moments, w.at)
}

// extend extrapolates the tracked step to the given number of micro-batches by repeating the
// second before the last.
func (w *Tracker) extend(micros int) {
	more := micros - w.micros
	if more == 0 {
		return
	}
	for _, m := range w.Moments {
		if m.Micro == w.micros-1 {
			m.Micro += more
		}
	}
	w.sent.Shard += int64(more) * w.second.Shard
	w.sent.Replicate += int64(more) * w.second.Replicate
	w.sent.Tensor += int64(more) * w.second.Tensor
	w.sent.Context += int64(more) * w.second.Context
	w.sent.Expert += int64(more) * w.second.Expert
	w.micros = micros
}

// add changes the memory in use. A moment records the highest use during its event.
func (w *Tracker) add(c Category, bytes int64) {
	w.now[c] += bytes
	if w.at != nil && w.now.Total() > w.at.InUse.Total() {
		w.at.InUse = w.now
	}
}

// raise fills an arena up to a height with memory of a category.
func (w *Tracker) raise(arena *[]segment, to int, purpose Category) {
	from := top(*arena)
	if to <= from {
		return
	}
	if n := len(*arena); n > 0 && (*arena)[n-1].purpose == purpose {
		(*arena)[n-1].to = to
	} else {
		*arena = append(*arena, segment{from, to, purpose})
	}
	w.add(purpose, int64(to-from))
}

// lower frees an arena down to a height.
func (w *Tracker) lower(arena *[]segment, to int) {
	for n := len(*arena); n > 0 && (*arena)[n-1].to > to; n = len(*arena) {
		s := &(*arena)[n-1]
		w.add(s.purpose, -int64(s.to-max(s.from, to)))
		s.to = max(s.from, to)
		if s.to == s.from {
			*arena = (*arena)[:n-1]
		}
	}
}

// top returns the height of an arena.
func top(arena []segment) int {
	if len(arena) == 0 {
		return 0
	}
	return arena[len(arena)-1].to
}

// Name returns a moment's display name.
func (w *Tracker) Name(m *Moment) string {
	what := m.Unit
	switch {
	case m.module == 0 && !w.model.Before:
		what = "the embedding"
	case m.module == len(w.model.Modules)-1 && !w.model.After:
		what = "the output layer"
	}
	name := string(m.Phase) + " of " + what
	if m.reduces && (!w.policy.KeepGrads || m.Micro == w.micros-1) {
		name += ", before its reduce-scatter"
	}
	if m.Micro >= 0 && w.micros > 1 {
		name += fmt.Sprintf(", micro-batch %d of %d", m.Micro+1, w.micros)
	}
	return name
}
