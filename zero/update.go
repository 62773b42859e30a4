package zero

import (
	"fmt"
	"slices"

	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/offload"
	"zeroth/optim"
)

// How far a unit has come in an update.
const (
	moving  = 1 + iota // its momentum has its new value
	updated            // all of its state has
)

// update begins an update, and issues it unless it repeats.
func (t *Trainer) update(lr, gradScale float64) {
	t.Updates++
	clear(t.progress)
	for i, g := range t.groups {
		t.hypers[i] = optim.Hyper{LR: lr * g.LR, Decay: g.Decay, GradScale: gradScale, Scale: g.Scale}
	}
	switch {
	case t.cfg.Delayed:
		t.updateLater()
	case !t.Repeats():
		_ = t.updateAll()
	}
}

// Repeats reports whether the update is issued, and issued again after a loss, by Complete: ranks exchange matrices within
// it, so some may have updated units that others have not.
func (t *Trainer) Repeats() bool {
	return t.cfg.More && slices.ContainsFunc(t.cfg.Rules, func(r optim.Rule) bool { _, ok := r.(optim.Whole); return ok })
}

// Complete completes the update of the last step if it repeats. When it returns, all ranks have done so: none overwrites gradients
// that another needs. If it fails because ranks were lost, all others call it again after Regroup, also those that have completed it.
func (t *Trainer) Complete() error {
	if !t.Repeats() || t.passed.Skipped {
		return nil
	}
	err := t.updateAll()
	if err == nil {
		t.cfg.Comm.After(t.cfg.Update.Mark())
		if t.cfg.HostUpdate != nil {
			t.cfg.Comm.After(t.cfg.HostUpdate.Mark())
		}
		err = t.Meet()
	}
	if err != nil {
		t.close()
		return fmt.Errorf("update of step %d: rank %d: %w", t.Steps, t.cfg.Groups.World.Rank(), t.cause(err))
	}
	return nil
}

// updateAll issues what is left of the update of every unit, in the order of their use in the next step. Ranks exchange
// all matrices, even if some of them need none.
func (t *Trainer) updateAll() error {
	whole := 0 // number of units so far that need whole matrices
	for i, u := range t.runner.Units {
		if u.Frozen {
			continue
		}
		t.emit(fsdp.Update, u, 0)
		r, ok := t.cfg.Rules[u.Rule].(optim.Elementwise)
		if ok || u.Own().Len() == 0 { // or it is on the master
			t.updateEach(i, r)
			continue
		}
		if err := t.advance(whole); err != nil {
			return err
		}
		whole++
	}
	for k := range 2 * t.matrices.lag() {
		if err := t.advance(whole + k); err != nil {
			return err
		}
	}
	for range t.matrices.elsewhere {
		if err := t.confirm(); err != nil {
			return err
		}
	}
	if w := t.cfg.Offload.Write; w != nil {
		t.kept = w.Mark()
	}
	return nil
}

// updateEach issues the update of a unit with an elementwise rule.
func (t *Trainer) updateEach(i int, rule optim.Elementwise) {
	if t.progress[i] == updated {
		return
	}
	t.progress[i] = updated
	var done device.Event
	for j := range t.store.Tiles(i) {
		st, q := t.borrow(i, j, offload.All)
		t.updateTile(q, rule, st, t.pieces[i][j])
		done = t.store.Release(i, j, q.Mark(), true)
	}
	t.runner.Units[i].MarkUpdated(done)
}

// joiner is a queue that launches updates of neighbouring pieces together.
type joiner interface {
	JoinUpdates()
	EndUpdates()
}

// updateTile issues a rule's steps of the runs of a tile.
func (t *Trainer) updateTile(q Update, rule optim.Elementwise, st offload.State, runs []run) {
	if j, ok := q.(joiner); ok {
		j.JoinUpdates()
		defer j.EndUpdates()
	}
	for _, r := range runs {
		rule.Step(q, t.Updates, t.hypers[r.group], t.piece(st, r))
	}
}

// updateLater sets the parameters in use from their master copies, for which the next step waits,
// and then issues the updates of the masters, which overlap with the next step's passes.
func (t *Trainer) updateLater() {
	for i, u := range t.runner.Units {
		if u.Frozen {
			continue
		}
		var done device.Event
		for j := range t.store.Tiles(i) {
			st, q := t.borrow(i, j, offload.All)
			q.Cast(st.Param, st.Master)
			done = t.store.Release(i, j, q.Mark(), true)
		}
		u.MarkUpdated(done)
	}
	for i := len(t.runner.Units) - 1; i >= 0; i-- { // in the order in which the next step writes gradients
		u := t.runner.Units[i]
		if u.Frozen {
			continue
		}
		rule := t.cfg.Rules[u.Rule].(optim.Elementwise)
		t.emit(fsdp.Update, u, 0)
		for j := range t.store.Tiles(i) {
			st, q := t.borrow(i, j, offload.All)
			st.Param = device.Buffer{} // unchanged
			t.updateTile(q, rule, st, t.pieces[i][j])
			u.MarkRead(t.store.Release(i, j, q.Mark(), false))
		}
	}
}

// borrow acquires the state of a tile, or a part of it, and makes its update queue wait for it.
func (t *Trainer) borrow(unit, tile int, part offload.Part) (offload.State, Update) {
	st := t.store.Acquire(unit, tile, part)
	q := t.updates(st.OnHost)
	q.Label(t.runner.Units[unit].Label(fsdp.Update))
	q.After(st.Ready[0])
	q.After(st.Ready[1])
	return st, q
}

// piece returns a run of a tile with the state that its update needs, valid until the next call.
func (t *Trainer) piece(st offload.State, r run) optim.Piece {
	lo, hi := r.at.Lo, r.at.Hi
	p := optim.Piece{Grad: st.Grad.Slice(lo, hi), State: t.state[:len(st.Vec)]}
	if st.Master.N > 0 {
		p.Master = st.Master.Slice(lo, hi)
	}
	if st.Param.N > 0 {
		p.Param = st.Param.Slice(lo, hi)
	}
	for i, v := range st.Vec {
		p.State[i] = v.Slice(lo, hi)
	}
	return p
}
