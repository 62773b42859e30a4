package zero

import (
	"fmt"

	"zeroth/device"
	"zeroth/offload"
	"zeroth/shard"
)

// Master is the kind of state that holds the parameters themselves, in
// float32; the other kinds are named by the rule's States.
const Master = "master"

// Kinds lists the kinds of state every parameter has.
func (t *Trainer) Kinds() []string { return append([]string{Master}, t.cfg.Rule.States()...) }

// Part is some elements of one parameter's state of one kind.
type Part struct {
	Param shard.Param
	Kind  string
	At    shard.Range // elements of the flattened parameter
}

// staging is how many elements pass through host memory at a time.
const staging = 1 << 20

// Fill sets this rank's part of all state of one kind from src, which writes
// the float32 elements of a part into dst. All ranks call it, or none.
func (t *Trainer) Fill(kind string, src func(p Part, dst []float32) error) error {
	q, room := t.cfg.Update, make([]float32, staging)
	all := func(u int) shard.Range { return shard.Range{Hi: t.runner.Units[u].Layout.ShardLen()} }
	err := t.eachPart(kind, all, func(p Part, at device.Buffer) error {
		dst := room[:at.N]
		if err := src(p, dst); err != nil {
			return err
		}
		q.Copy(at, device.OfF32(dst))
		return q.Wait()
	})
	if err != nil || kind != Master {
		return err
	}
	return t.eachState(func(u int, st offload.State) error {
		unit := t.runner.Units[u]
		if unit.Param.Type != device.F32 {
			q.Cast(unit.Param, st.Master)
		}
		unit.MarkUpdated(q.Mark())
		return q.Wait()
	})
}

// Each hands this rank's share of all state of one kind to dst, as float32
// elements in memory that room gives for a part of n elements. The shares of
// all ranks together are the state, once: replicas of a shard split it.
func (t *Trainer) Each(kind string, room func(n int) []float32, dst func(p Part, src []float32) error) error {
	q := t.cfg.Update
	return t.eachPart(kind, t.share, func(p Part, at device.Buffer) error {
		src := room(at.N)
		q.Copy(device.OfF32(src), at)
		if err := q.Wait(); err != nil {
			return err
		}
		return dst(p, src)
	})
}

// Room is memory for one part at a time, for a dst of Each that keeps none.
func Room() func(n int) []float32 {
	room := make([]float32, staging)
	return func(n int) []float32 { return room[:n] }
}

// ShareLen is the most elements of one kind that Each hands out on a rank.
func (t *Trainer) ShareLen() (n int) {
	for u := range t.runner.Units {
		n += t.share(u).Len()
	}
	return n
}

// share is this rank's part of the shard of a unit among the ranks that hold
// the same.
func (t *Trainer) share(u int) shard.Range {
	g := t.cfg.Groups.Replica
	n := t.runner.Units[u].Layout.ShardLen() / g.Size()
	return shard.Range{Lo: g.Rank() * n, Hi: (g.Rank() + 1) * n}
}

// eachPart calls f for the parts of all parameters that lie in a range of each
// unit's shard, at most staging elements at a time, with where they live.
func (t *Trainer) eachPart(kind string, of func(unit int) shard.Range, f func(p Part, at device.Buffer) error) error {
	return t.eachState(func(u int, st offload.State) error {
		l, vec := t.runner.Units[u].Layout, t.vector(kind, st)
		for pc := range l.Pieces(t.cfg.Groups.Shard.Rank()) {
			in := pc.InShard.Intersect(of(u))
			for lo := in.Lo; lo < in.Hi; lo += staging {
				hi := min(lo+staging, in.Hi)
				from := pc.InParam.Lo + lo - pc.InShard.Lo
				p := Part{l.Params[pc.Param], kind, shard.Range{Lo: from, Hi: from + hi - lo}}
				if err := f(p, vec.Slice(lo, hi)); err != nil {
					return fmt.Errorf("%s of %s: %w", kind, p.Param.Name, err)
				}
			}
		}
		return nil
	})
}

// vector is the part of a unit's state that a kind names.
func (t *Trainer) vector(kind string, st offload.State) device.Buffer {
	if kind == Master {
		return st.Master
	}
	for i, name := range t.cfg.Rule.States() {
		if name == kind {
			return st.Vec[i]
		}
	}
	panic("zero: no state called " + kind)
}

// eachState borrows the state of every unit in turn, once all updates issued
// so far are done.
func (t *Trainer) eachState(f func(unit int, st offload.State) error) error {
	if err := t.cfg.Update.Wait(); err != nil {
		return err
	}
	for i, u := range t.runner.Units {
		st, err := t.store.Acquire(i)
		if err == nil {
			err = f(i, st)
		}
		if err == nil {
			err = t.store.Release(i, t.cfg.Update.Mark())
		}
		if err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	return nil
}
