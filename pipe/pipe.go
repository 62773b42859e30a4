// Package pipe has the schedules of pipelines, as data: which actions each rank takes, in
// which order.
//
// A pipeline divides a model's layers into stages, and a step's batch into micro-batches.
// Each micro-batch goes forward through all stages and then backward; while one stage works
// on one micro-batch, the others work on others. Ranks are idle while the pipeline fills
// and drains: the bubble. Schedules differ in how long that is, and in how many
// micro-batches a rank has in flight, which are forward and not yet backward:
//
//   - GPipe (Huang et al., arXiv 1811.06965) runs all micro-batches forward, then all
//     backward.
//   - 1F1B (Narayanan et al., arXiv 2006.09503, PipeDream-Flush) goes backward as soon as it
//     can: as fast as GPipe, with at most as many in flight as there are stages to come.
//   - Interleaved1F1B (Narayanan et al., arXiv 2104.04473) gives each rank several stages,
//     Virtual of them, so that the pipeline fills in shorter steps: a smaller bubble, more in
//     flight, more transfers.
//   - ZBH1 (Qi et al., arXiv 2401.10241) is 1F1B whose backward pass is divided: gradients of
//     inputs, which the stage before waits for, come first, gradients of weights fill the
//     bubble.
//
// With p ranks, m micro-batches, v stages a rank, and F, I and W the time of a rank's forward
// pass and of both parts of the backward pass, B = I + W:
//
//	                 time of a step              in flight at rank r
//	GPipe            (m + p-1)(F + B)            m
//	1F1B             (m + p-1)(F + B)            min(m, p-r)
//	Interleaved1F1B  m(F + B) + (p-1)(F + B)/v   min(mv, 2(p-r-1) + (v-1)p + 1), of 1/v rank's layers each
//	ZBH1             m(F + B) + (p-1)(F + I-W)   min(m, p), until W
package pipe

import (
	"fmt"
	"slices"
	"sync"
)

// Schedule is the order in which the ranks of a pipeline work.
type Schedule string

// The schedules.
const (
	GPipe       Schedule = "GPipe"
	OneF1B      Schedule = "1F1B"
	Interleaved Schedule = "Interleaved1F1B"
	ZBH1        Schedule = "ZBH1"
)

// Schedules lists the schedules.
var Schedules = []string{string(GPipe), string(OneF1B), string(Interleaved), string(ZBH1)}

// Shape is a pipeline: Ranks ranks with Virtual stages each, and Micro micro-batches a step.
// Stage s is on rank s mod Ranks.
type Shape struct {
	Schedule              Schedule
	Ranks, Virtual, Micro int
}

// Stages returns the number of stages.
func (s Shape) Stages() int { return s.Ranks * s.Virtual }

// Most is the largest product of stages and micro-batches.
const Most = 1 << 18

// Check returns an error if there is no such pipeline.
func (s Shape) Check() error {
	switch {
	case s.Ranks < 1 || s.Virtual < 1 || s.Micro < 1:
		return fmt.Errorf("pipe: %+v", s)
	case !slices.Contains(Schedules, string(s.Schedule)):
		return fmt.Errorf("pipe: no schedule %q", s.Schedule)
	case s.Schedule != Interleaved && s.Virtual > 1:
		return fmt.Errorf("%s has one stage a rank, not %d", s.Schedule, s.Virtual)
	case s.Schedule == Interleaved && s.Virtual == 1:
		return fmt.Errorf("%s has several stages a rank, not one", s.Schedule)
	case s.Virtual > 1 && s.Micro%s.Ranks != 0:
		return fmt.Errorf("%d micro-batches are no whole rounds of %d stages", s.Micro, s.Ranks)
	case s.Stages() > Most/s.Micro:
		return fmt.Errorf("%d stages × %d micro-batches are more than %d", s.Stages(), s.Micro, Most)
	}
	return nil
}

// Kind is what an action does for a micro-batch at a stage.
type Kind uint8

// The kinds of actions.
const (
	Forward      Kind = iota
	Backward          // all of it
	InputGrad         // the part of Backward that the stage before waits for
	WeightGrad        // the rest of it
	SendForward       // the stage's output, to the next stage
	RecvForward       // the stage's input, from the stage before
	SendBackward      // the gradient of the stage's input, to the stage before
	RecvBackward      // the gradient of its output, from the next stage
	kinds
)

func (k Kind) String() string {
	return [kinds]string{"forward", "backward", "input gradient", "weight gradient", "send forward", "receive forward", "send backward", "receive backward"}[k]
}

// Action is what a rank does for a micro-batch at one of its stages.
type Action struct {
	Kind         Kind
	Stage, Micro int
}

func (a Action) String() string {
	return fmt.Sprintf("%v of micro-batch %d at stage %d", a.Kind, a.Micro, a.Stage)
}

// Order returns what a rank computes in a step, in order. At each stage backward passes, and
// weight gradients, are in the order of micro-batches: so sums of gradients have the same
// bits in every schedule.
func (s Shape) Order(rank int) []Action {
	switch s.Schedule {
	case GPipe:
		return s.alternate(rank, s.Micro)
	case ZBH1:
		return s.split(rank)
	case Interleaved:
		return s.alternate(rank, 2*(s.Ranks-rank-1)+(s.Virtual-1)*s.Ranks)
	}
	return s.alternate(rank, s.Ranks-rank-1)
}

// alternate returns some forward passes, then one forward and one backward in turn, then the
// backward passes that are left.
func (s Shape) alternate(rank, first int) []Action {
	n := s.Micro * s.Virtual
	first = min(first, n)
	order := make([]Action, 0, 2*n)
	for k := range n + first {
		if k < n {
			order = append(order, s.pass(Forward, rank, k))
		}
		if k >= first {
			order = append(order, s.pass(Backward, rank, k-first))
		}
	}
	return order
}

// pass returns a rank's pass number k in one direction. Several stages a rank take turns with
// as many micro-batches as there are ranks.
func (s Shape) pass(kind Kind, rank, k int) Action {
	round, within := k/s.Stages(), k%s.Stages()
	chunk := within / s.Ranks
	if kind == Backward {
		chunk = s.Virtual - 1 - chunk
	}
	if s.Virtual == 1 {
		return Action{kind, rank, k}
	}
	return Action{kind, chunk*s.Ranks + rank, round*s.Ranks + within%s.Ranks}
}

// split returns 1F1B with its backward passes in two parts. Rank r leaves r weight gradients
// for the bubble at the end.
func (s Shape) split(rank int) (order []Action) {
	for _, a := range s.alternate(rank, s.Ranks-rank-1) {
		if a.Kind == Forward {
			order = append(order, a)
			continue
		}
		order = append(order, Action{InputGrad, rank, a.Micro})
		if late := a.Micro - rank; late >= 0 {
			order = append(order, Action{WeightGrad, rank, late})
		}
	}
	for m := max(0, s.Micro-rank); m < s.Micro; m++ {
		order = append(order, Action{WeightGrad, rank, m})
	}
	return order
}

// Evaluation returns what the ranks do to take every micro-batch forward alone, as Programs does.
func (s Shape) Evaluation() [][]Action {
	return recent.get(played{s, false}, func() [][]Action {
		orders := make([][]Action, s.Ranks)
		for r := range orders {
			for k := range s.Micro * s.Virtual {
				orders[r] = append(orders[r], s.pass(Forward, r, k))
			}
		}
		return s.lower(orders)
	})
}

// Programs returns what each rank does in a step: Order with transfers between the stages.
// All programs are parts of one order of all actions, in which each transfer is one action
// of both ranks. So ranks that wait for each other in every transfer never wait in a circle.
// Nobody changes them.
func (s Shape) Programs() [][]Action {
	return recent.get(played{s, true}, func() [][]Action {
		orders := make([][]Action, s.Ranks)
		for r := range orders {
			orders[r] = s.Order(r)
		}
		return s.lower(orders)
	})
}

// played is a shape whose ranks train, or else evaluate.
type played struct {
	Shape
	train bool
}

// recent are the programs of some shapes that were asked for last: whoever plans a pipeline
// asks for each rank.
var recent programs

type programs struct {
	mu sync.Mutex
	of map[played][][]Action
}

func (p *programs) get(s played, play func() [][]Action) [][]Action {
	const few, short = 16, 1 << 13
	p.mu.Lock()
	all := p.of[s]
	p.mu.Unlock()
	if all != nil {
		return all
	}
	if all = play(); s.Stages()*s.Micro <= short {
		p.mu.Lock()
		if p.of == nil || len(p.of) == few {
			p.of = map[played][][]Action{}
		}
		p.of[s] = all
		p.mu.Unlock()
	}
	return all
}

// lower plays the orders of all ranks on one clock, and puts each transfer where its sender
// has computed what it sends, into the programs of both ranks.
func (s Shape) lower(orders [][]Action) [][]Action {
	p := player{Shape: s, orders: orders, next: make([]int, s.Ranks), until: make([]int, s.Ranks), programs: make([][]Action, s.Ranks)}
	for k := range p.done {
		p.done[k] = make([]int, s.Stages()*s.Micro)
	}
	for p.tick() {
	}
	return p.programs
}

// player is a run of all ranks on a clock whose ticks are the time of a forward pass.
type player struct {
	Shape
	orders   [][]Action
	next     []int                 // by rank, the action that comes
	until    []int                 // by rank, when the one before it ends
	done     [WeightGrad + 1][]int // by kind, stage and micro-batch, 1 + when an action ends; 0: it has not begun
	now      int
	programs [][]Action
}

// ticks is how long an action takes.
var ticks = [...]int{Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}

// tick sends what has been computed by now, and begins what can begin. It returns false when
// all is done.
func (p *player) tick() (more bool) {
	began := false
	for r, order := range p.orders {
		if at := p.next[r]; at > 0 && p.until[r] == p.now {
			p.send(order[at-1])
		}
		more = more || p.until[r] > p.now
	}
	for r, order := range p.orders {
		if p.next[r] == len(order) || p.until[r] > p.now {
			continue
		}
		more = true
		if a := order[p.next[r]]; p.can(a) {
			p.programs[r] = append(p.programs[r], a)
			p.next[r]++
			p.until[r] = p.now + ticks[a.Kind]
			*p.at(a) = 1 + p.until[r]
			began = true
		}
	}
	if more && !began && !slices.ContainsFunc(p.until, func(t int) bool { return t > p.now }) {
		panic(fmt.Sprintf("pipe: %+v: every rank waits", p.Shape))
	}
	p.now++
	return more
}

func (p *player) at(a Action) *int { return &p.done[a.Kind][a.Stage*p.Micro+a.Micro] }

// can says whether all that an action needs of other stages, and of its own, is done.
func (p *player) can(a Action) bool {
	need, some := p.Needs(a)
	if !some {
		return true
	}
	done := *p.at(need)
	return done > 0 && done <= 1+p.now
}

// Needs returns the action whose result one waits for.
func (s Shape) Needs(a Action) (need Action, some bool) {
	back := Backward
	if s.Schedule == ZBH1 {
		back = InputGrad
	}
	switch last := s.Stages() - 1; {
	case a.Kind == Forward:
		return Action{Forward, a.Stage - 1, a.Micro}, a.Stage > 0
	case a.Kind == WeightGrad:
		return Action{InputGrad, a.Stage, a.Micro}, true
	case a.Stage == last:
		return Action{Forward, a.Stage, a.Micro}, true
	}
	return Action{back, a.Stage + 1, a.Micro}, true
}

// send puts the transfer of what an action has computed into both programs.
func (p *player) send(a Action) {
	to, out, in := a.Stage+1, SendForward, RecvForward
	if a.Kind != Forward {
		to, out, in = a.Stage-1, SendBackward, RecvBackward
	}
	if a.Kind == WeightGrad || to < 0 || to == p.Stages() || p.Ranks == 1 {
		return
	}
	from, at := a.Stage%p.Ranks, to%p.Ranks
	p.programs[from] = append(p.programs[from], Action{out, a.Stage, a.Micro})
	p.programs[at] = append(p.programs[at], Action{in, to, a.Micro})
}
