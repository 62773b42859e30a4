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

// Fill sets all state of one kind from src, which writes the float32 elements
// of a part into dst, and the parameters from their master copies. Ranks that
// hold the same state ask for a share of it each and exchange them, so that
// replicas together read it once; state that rests on the host each reads for
// itself, because groups need not reach it. All ranks call it, or none.
func (t *Trainer) Fill(kind string, src func(p Part, dst []float32) error) error {
	room := make([]float32, staging)
	all := func(u int) shard.Range { return shard.Range{Hi: t.runner.Units[u].Layout.ShardLen()} }
	return t.eachTile(true, all, func(q Update, u int, in shard.Range, st offload.State) error {
		if err := q.Wait(); err != nil { // then the host may touch the tile
			return err
		}
		read := func(p Part, at device.Buffer) error {
			if at.Host {
				return src(p, at.F32())
			}
			if err := src(p, room[:at.N]); err != nil {
				return err
			}
			q.Copy(at, device.OfF32(room[:at.N]))
			return q.Wait()
		}
		if st.OnHost {
			return t.parts(kind, u, in, st, read)
		}
		g := t.cfg.Groups.Replica
		n := in.Len() / g.Size() // what cannot be shared out, less than Size elements, all read
		own := shard.Range{Lo: in.Lo + g.Rank()*n, Hi: in.Lo + (g.Rank()+1)*n}
		for _, r := range []shard.Range{own, {Lo: in.Lo + g.Size()*n, Hi: in.Hi}} {
			if err := t.parts(kind, u, r, st, read); err != nil {
				return err
			}
		}
		g.AllGather(t.cfg.Comm, t.vector(kind, st).Slice(0, g.Size()*n))
		return t.cfg.Comm.Wait()
	})
}

// Each hands this rank's share of all state of one kind to dst, as float32
// elements in memory that room gives for a part of n elements. The shares of
// all ranks together are the state, once: replicas of a shard split it.
func (t *Trainer) Each(kind string, room func(n int) []float32, dst func(p Part, src []float32) error) error {
	return t.eachPart(kind, t.share, func(q Update, p Part, at device.Buffer) error {
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
// unit's shard, with where they are at hand and the queue to work on them.
func (t *Trainer) eachPart(kind string, of func(unit int) shard.Range, f func(q Update, p Part, at device.Buffer) error) error {
	return t.eachTile(false, of, func(q Update, u int, in shard.Range, st offload.State) error {
		return t.parts(kind, u, in, st, func(p Part, at device.Buffer) error { return f(q, p, at) })
	})
}

// parts calls f for the parts of all parameters that lie in a range of a tile,
// at most staging elements at a time, with where they are at hand.
func (t *Trainer) parts(kind string, unit int, in shard.Range, st offload.State, f func(p Part, at device.Buffer) error) error {
	l, vec := t.runner.Units[unit].Layout, t.vector(kind, st)
	for pc := range l.Pieces(t.cfg.Groups.Shard.Rank()) {
		at := pc.InShard.Intersect(in)
		for lo := at.Lo; lo < at.Hi; lo += staging {
			hi := min(lo+staging, at.Hi)
			from := pc.InParam.Lo + lo - pc.InShard.Lo
			p := Part{l.Params[pc.Param], kind, shard.Range{Lo: from, Hi: from + hi - lo}}
			if err := f(p, vec.Slice(lo-st.At.Lo, hi-st.At.Lo)); err != nil {
				return fmt.Errorf("%s of %s: %w", kind, p.Param.Name, err)
			}
		}
	}
	return nil
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

// eachTile borrows the state of every tile that has elements in a range of its
// unit's shard, once all updates issued so far are done. If f changes it, the
// parameters follow their master copies.
func (t *Trainer) eachTile(change bool, of func(unit int) shard.Range, f func(q Update, unit int, in shard.Range, st offload.State) error) error {
	if err := t.settle(); err != nil {
		return err
	}
	for i, u := range t.runner.Units {
		for j := range t.store.Tiles(i) {
			in := t.store.Tile(i, j).Intersect(of(i))
			if in.Len() == 0 {
				continue
			}
			done, err := t.borrow(i, j, change, in, f)
			if err != nil {
				return fmt.Errorf("unit %s: %w", u.Name, err)
			}
			if change {
				u.MarkUpdated(done)
			}
		}
	}
	return t.settle()
}

func (t *Trainer) borrow(unit, tile int, change bool, in shard.Range, f func(Update, int, shard.Range, offload.State) error) (device.Event, error) {
	st := t.store.Acquire(unit, tile)
	q, _ := t.updates(st.OnHost)
	q.After(st.Ready[0])
	q.After(st.Ready[1])
	err := f(q, unit, in, st)
	change = change && err == nil
	if change && st.Param.N > 0 {
		q.Cast(st.Param, st.Master)
	}
	return t.store.Release(unit, tile, q.Mark(), change), err
}

// settle waits until every update so far has reached where it rests.
func (t *Trainer) settle() error {
	errs := []error{t.cfg.Update.Wait()}
	if t.cfg.HostUpdate != nil {
		errs = append(errs, t.cfg.HostUpdate.Wait())
	}
	for _, q := range t.store.Queues() {
		errs = append(errs, q.Wait())
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
