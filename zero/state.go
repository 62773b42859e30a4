package zero

import (
	"fmt"

	"zeroth/device"
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
const staging = 1 << 16

// Fill sets this rank's part of all state of one kind from src, which writes
// the float32 elements of a part into dst. All ranks call it, or none.
func (t *Trainer) Fill(kind string, src func(p Part, dst []float32) error) error {
	q := t.cfg.Update
	err := t.eachPart(kind, func(p Part, at, host device.Buffer) error {
		if err := src(p, host.F32()); err != nil {
			return err
		}
		q.Copy(at, host)
		return q.Wait()
	})
	if err != nil || kind != Master {
		return err
	}
	return t.publish()
}

// publish sets the parameters from their master copies.
func (t *Trainer) publish() error {
	q := t.cfg.Update
	for i, u := range t.runner.Units {
		st, err := t.store.Acquire(i)
		if err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
		if u.Param.Type != device.F32 {
			q.Cast(u.Param, st.Master)
		}
		done := q.Mark()
		u.MarkUpdated(done)
		if err := t.store.Release(i, done); err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	return q.Wait()
}

// Each hands this rank's part of all state of one kind to dst, as float32
// elements that dst must not keep.
func (t *Trainer) Each(kind string, dst func(p Part, src []float32) error) error {
	q := t.cfg.Update
	return t.eachPart(kind, func(p Part, at, host device.Buffer) error {
		q.Copy(host, at)
		if err := q.Wait(); err != nil {
			return err
		}
		return dst(p, host.F32())
	})
}

// eachPart calls f for this rank's parts of all parameters, at most staging
// elements at a time, with where they live and host memory of that length.
func (t *Trainer) eachPart(kind string, f func(p Part, at, host device.Buffer) error) error {
	host := device.OfF32(make([]float32, staging))
	for i, u := range t.runner.Units {
		st, err := t.store.Acquire(i)
		if err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
		vec := st.Master
		for j, name := range t.cfg.Rule.States() {
			if name == kind {
				vec = st.Vec[j]
			}
		}
		for pc := range u.Layout.Pieces(t.cfg.Groups.Shard.Rank()) {
			for lo := 0; lo < pc.InParam.Len(); lo += staging {
				n := min(staging, pc.InParam.Len()-lo)
				p := Part{u.Layout.Params[pc.Param], kind, shard.Range{Lo: pc.InParam.Lo + lo, Hi: pc.InParam.Lo + lo + n}}
				at := vec.Slice(pc.InShard.Lo+lo, pc.InShard.Lo+lo+n)
				if err := f(p, at, host.Slice(0, n)); err != nil {
					return fmt.Errorf("%s of %s: %w", kind, p.Param.Name, err)
				}
			}
		}
		if err := t.store.Release(i, t.cfg.Update.Mark()); err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	return nil
}
