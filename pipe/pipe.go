// Package pipe contains the schedules of pipelines as data: the actions of each rank, in order.
//
// A pipeline divides a model's layers into stages and a step's batch into micro-batches. Each
// micro-batch passes forward through all stages and then backward; while one stage works on one
// micro-batch, the others work on others. Ranks are idle while the pipeline fills and drains: the
// bubble. Schedules differ in its length, and in how many micro-batches a rank has in flight,
// between their forward and backward passes:
//
//   - GPipe (Huang et al., arXiv 1811.06965) runs all micro-batches forward, then all
//     backward.
//   - 1F1B (Narayanan et al., arXiv 2006.09503, PipeDream-Flush) runs backward passes as early
//     as possible: as fast as GPipe, with at most as many micro-batches in flight as stages remain.
//   - Interleaved1F1B (Narayanan et al., arXiv 2104.04473) gives each rank several stages,
//     Virtual of them, so that the pipeline fills in shorter steps: a smaller bubble, more
//     micro-batches in flight, more transfers.
//   - ZBH1 (Qi et al., arXiv 2401.10241) is 1F1B with a divided backward pass: gradients of
//     inputs, for which the previous stage waits, come first; gradients of weights fill the
//     bubble.
//
// With p ranks, m micro-batches, v stages per rank, and F, I and W the times of a rank's forward
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

// Schedule names the order in which the ranks of a pipeline work.
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

// Shape describes a pipeline: Ranks ranks with Virtual stages each, and Micro micro-batches per
// step. Stage s is on rank s mod Ranks.
type Shape struct {
	Schedule              Schedule
	Ranks, Virtual, Micro int
}

// Stages returns the number of stages.
func (s Shape) Stages() int { return s.Ranks * s.Virtual }

// MaxPasses is the maximum product of stages and micro-batches.
const MaxPasses = 1 << 18

// Check returns an error if the shape is invalid.
func (s Shape) Check() error {
	switch {
	case s.Ranks < 1 || s.Virtual < 1 || s.Micro < 1:
		return fmt.Errorf("pipe: %+v", s)
	case !slices.Contains(Schedules, string(s.Schedule)):
		return fmt.Errorf("pipe: no schedule %q", s.Schedule)
	case s.Schedule != Interleaved && s.Virtual > 1:
		return fmt.Errorf("%s has one stage per rank, not %d", s.Schedule, s.Virtual)
	case s.Schedule == Interleaved && s.Virtual == 1:
		return fmt.Errorf("%s needs several stages per rank, not one", s.Schedule)
	case s.Virtual > 1 && s.Micro%s.Ranks != 0:
		return fmt.Errorf("%d micro-batches are not a multiple of %d ranks", s.Micro, s.Ranks)
	case s.Stages() > MaxPasses/s.Micro:
		return fmt.Errorf("%d stages × %d micro-batches are more than %d", s.Stages(), s.Micro, MaxPasses)
	}
	return nil
}

// Full returns after how many micro-batches a pipeline is full: the further ones of a step are like the
// one before them, except for the last. With one rank the first micro-batch differs, too.
func (s Shape) Full() int {
	if s.Ranks == 1 {
		return 2
	}
	return 4 * s.Ranks
}

// Few returns how many of a step's micro-batches suffice for a rank to do everything that it does in
// the step, with as many in flight: with one rank the last one after those of Full, with GPipe all.
func (s Shape) Few() int {
	switch {
	case s.Ranks == 1:
		return min(s.Full()+1, s.Micro)
	case s.Schedule == GPipe:
		return s.Micro
	}
	return min(s.Full(), s.Micro)
}

// Timed returns how many of a step's micro-batches determine its time. Further ones come in rounds of
// the given number, each as long as the last. With one rank a round is a micro-batch, and the last one,
// like the one before it, waits for a buffer of ids.
func (s Shape) Timed() (micro, round int) {
	most := max(4, s.Full())
	if s.Micro <= most {
		return s.Micro, s.Ranks
	}
	return most - (most+s.Ranks-s.Micro%s.Ranks)%s.Ranks, s.Ranks
}

// Kind is the kind of an action.
type Kind uint8

// The kinds of actions.
const (
	Forward      Kind = iota
	Backward          // the whole backward pass
	InputGrad         // the part of Backward for which the previous stage waits
	WeightGrad        // the rest of Backward
	SendForward       // send the stage's output to the next stage
	RecvForward       // receive the stage's input from the previous stage
	SendBackward      // send the gradient of the stage's input to the previous stage
	RecvBackward      // receive the gradient of its output from the next stage
	kinds
)

// String returns the kind in words.
func (k Kind) String() string {
	return [kinds]string{"forward", "backward", "input gradient", "weight gradient", "send forward", "receive forward", "send backward", "receive backward"}[k]
}

// Action is one action of a rank for a micro-batch at one of its stages.
type Action struct {
	Kind         Kind
	Stage, Micro int
}

// String describes the action.
func (a Action) String() string {
	return fmt.Sprintf("%v of micro-batch %d at stage %d", a.Kind, a.Micro, a.Stage)
}

// Order returns the passes that a rank computes in a step, in order. At each stage, backward passes
// and weight gradients are in the order of micro-batches, so that sums of gradients have the same
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

// alternate returns first forward passes, then forward and backward passes alternately, then the
// remaining backward passes.
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

// pass returns a rank's k-th pass in one direction. With several stages per rank, each runs as many
// micro-batches as there are ranks before the next one does.
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

// split returns 1F1B with divided backward passes. Rank r delays r weight gradients to fill the
// bubble.
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

// Evaluation returns the programs for forward passes of every micro-batch, like Programs.
func (s Shape) Evaluation() [][]Action {
	return recent.get(cacheKey{s, false}, func() [][]Action {
		orders := make([][]Action, s.Ranks)
		for r := range orders {
			for k := range s.Micro * s.Virtual {
				orders[r] = append(orders[r], s.pass(Forward, r, k))
			}
		}
		return s.lower(orders)
	})
}

// Programs returns the actions of each rank in a step: Order with transfers between stages. All
// programs are subsequences of one order of all actions, in which each transfer is a single action
// of both ranks. So there is no deadlock, even if ranks block in every transfer. Callers must not
// modify the result.
func (s Shape) Programs() [][]Action {
	return recent.get(cacheKey{s, true}, func() [][]Action {
		orders := make([][]Action, s.Ranks)
		for r := range orders {
			orders[r] = s.Order(r)
		}
		return s.lower(orders)
	})
}

// cacheKey identifies the programs of a shape, for training or evaluation.
type cacheKey struct {
	Shape
	train bool
}

// recent caches programs: planning a pipeline requests them for each rank.
var recent programs

type programs struct {
	mu sync.Mutex
	of map[cacheKey][][]Action
}

func (p *programs) get(s cacheKey, play func() [][]Action) [][]Action {
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
			p.of = map[cacheKey][][]Action{}
		}
		p.of[s] = all
		p.mu.Unlock()
	}
	return all
}

// lower simulates all ranks on a common clock and inserts each transfer into the programs of both
// ranks when its data has been computed.
func (s Shape) lower(orders [][]Action) [][]Action {
	p := player{Shape: s, orders: orders, next: make([]int, s.Ranks), until: make([]int, s.Ranks), programs: make([][]Action, s.Ranks)}
	for k := range p.done {
		p.done[k] = make([]int, s.Stages()*s.Micro)
	}
	for p.tick() {
	}
	return p.programs
}

// player simulates the ranks on a clock whose ticks are the time of a forward pass.
type player struct {
	Shape
	orders   [][]Action
	next     []int                 // by rank, index of the next action
	until    []int                 // by rank, end of the previous action
	done     [WeightGrad + 1][]int // by kind, stage and micro-batch, 1 + the end of an action; 0: not begun
	now      int
	programs [][]Action
}

// ticks is the duration of each kind of action.
var ticks = [...]int{Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}

// tick sends results that are complete and begins actions that can begin. It returns false when
// everything is done.
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
		if a := order[p.next[r]]; p.ready(a) {
			p.programs[r] = append(p.programs[r], a)
			p.next[r]++
			p.until[r] = p.now + ticks[a.Kind]
			*p.at(a) = 1 + p.until[r]
			began = true
		}
	}
	if more && !began && !slices.ContainsFunc(p.until, func(t int) bool { return t > p.now }) {
		panic(fmt.Sprintf("pipe: %+v: deadlock", p.Shape))
	}
	p.now++
	return more
}

func (p *player) at(a Action) *int { return &p.done[a.Kind][a.Stage*p.Micro+a.Micro] }

// ready reports whether everything an action needs is complete.
func (p *player) ready(a Action) bool {
	need, ok := p.Needs(a)
	if !ok {
		return true
	}
	done := *p.at(need)
	return done > 0 && done <= 1+p.now
}

// Needs returns the action that a depends on, if any.
func (s Shape) Needs(a Action) (need Action, ok bool) {
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

// send inserts the transfer of an action's result into both programs.
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
