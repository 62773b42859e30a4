package nn

import "zeroth/device"

// eachMLP calls f for the MLP of a block, or with Batch.MLPChunk for chunks of its rows, one after the
// other: f's pass and s have only rows [lo, hi) of those that this rank holds, and the hidden layer and
// the activation, of that many columns, are in the same memory for every chunk.
func (p pass) eachMLP(s *Saved, hidden, act int, f func(p pass, s Saved, lo, hi int)) {
	held := p.bt.Held()
	if p.bt.MLPChunk == 0 {
		f(p, *s, 0, held)
		return
	}
	defer p.mem.Release(p.mem.Mark())
	ranks := p.bt.Rows() / held
	most := min(held, max(1, p.bt.MLPChunk/ranks))
	hiddens, acts := p.mem.Take(p.bt.Compute, most*ranks*hidden), p.mem.Take(p.bt.Compute, most*ranks*act)
	for lo := 0; lo < held; lo += most {
		bt, part, hi := *p.bt, *s, min(held, lo+most)
		bt.lo, bt.hi = lo, hi
		part.hidden, part.act = hiddens.Slice(0, (hi-lo)*ranks*hidden), acts.Slice(0, (hi-lo)*ranks*act)
		m := &part.mlp
		for _, b := range []*device.Buffer{&part.x2, &m.before.y, &m.before.mean, &m.before.rstd, &m.out, &m.rstd} {
			*b = b.Slice(lo*(b.N/held), hi*(b.N/held))
		}
		mark := p.mem.Mark()
		f(pass{p.q, p.mem, p.w, p.dw, &bt, lo > 0}, part, lo, hi)
		p.mem.Release(mark)
	}
}

// again calls f, which computes what a pass of the block has computed before, for a Backward.
func (p pass) again(f func()) {
	if p.bt.Again != nil {
		p.bt.Again(false)
		defer p.bt.Again(true)
	}
	f()
}
