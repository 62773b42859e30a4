package fsdp

import (
	"zeroth/device"
	"zeroth/nn"
)

// InputGrad runs the part of Backward that replaces d by the gradient of the chunk's input.
// WeightGrad must follow for the same micro-batch.
func (r *Runner) InputGrad(f *Flight, bt *nn.Batch, micro int, d device.Buffer) {
	defer r.blame()
	r.micro = micro
	c, work := r.cfg.Compute, r.arenas[0]
	next := f.Hi - 1
	for i := next; i >= f.Lo; i-- {
		next = r.ahead(f, next, i, -1)
		s := r.await(i, -1)
		p, floor, dw := &f.passed[i-f.Lo], work.Mark(), r.deferring(f, i, micro)
		r.restore(f, &f.keeping, bt, i)
		if s.deferred == nil {
			dw = r.gradient(s, micro)
		} else {
			bt.Later = &f.later
		}
		r.pass(Backward, i, false, false)
		s.mod.Backward(c, &f.keeping, s.w, dw, bt, p.x, d, &p.saved)
		r.pass(Backward, i, false, true)
		bt.Later, p.noted[1] = nil, f.later.Len()
		work.Release(floor)
		r.leave(s)
		if s.deferred == nil {
			r.reduceAll(s, i, micro)
		}
	}
}

// WeightGrad runs the part of Backward that InputGrad has deferred.
func (r *Runner) WeightGrad(f *Flight, micro int) {
	defer r.blame()
	r.micro = micro
	c := r.cfg.Compute
	for i := f.Hi - 1; i >= f.Lo; i-- {
		s, p := &r.steps[i], &f.passed[i-f.Lo]
		if s.deferred == nil {
			continue
		}
		c.Label(s.units[0].labels[Weights])
		dw := r.gradient(s, micro)
		r.pass(Weights, i, false, false)
		f.later.Compute(c, p.noted[0], p.noted[1])
		for k, later := range s.deferred {
			if !later && dw[k].N > 0 {
				c.Cast(dw[k], p.rest[k])
			}
		}
		r.pass(Weights, i, false, true)
		r.reduceAll(s, i, micro)
	}
	f.later.Clear()
	f.kept.Release(f.passed[0].mark)
}

// deferring returns the buffers for gradients in the Backward of a step that defers weight
// gradients: those that are not deferred stay with the flight.
func (r *Runner) deferring(f *Flight, i, micro int) []device.Buffer {
	s, p := &r.steps[i], &f.passed[i-f.Lo]
	p.noted[0] = f.later.Len()
	if s.deferred == nil {
		return nil
	}
	own := s.dw
	if r.cfg.Policy.KeepGrads && micro == 0 {
		own = s.kept
	}
	p.rest = append(p.rest[:0], own...)
	for k, later := range s.deferred {
		if !later && own[k].N > 0 {
			p.rest[k] = f.kept.Take(device.F32, own[k].N)
		}
	}
	return p.rest
}
