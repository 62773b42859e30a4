package zero

import (
	"cmp"
	"fmt"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/shard"
)

// Master is the kind of state that contains the parameters in float32. Other kinds are named by the
// rule's States.
const Master = "master"

// Previous is the kind of state that contains the parameters in use if they are older than the last
// update (Config.Delayed).
const Previous = "previous"

// Kinds lists the kinds of state that parameters have.
func (t *Trainer) Kinds() []string {
	all := []string{Master}
	if t.cfg.Delayed {
		all = append(all, Previous)
	}
	for _, r := range t.cfg.Rules {
		for _, kind := range r.States() {
			if !slices.Contains(all, kind) {
				all = append(all, kind)
			}
		}
	}
	return all
}

// KindsOf lists the kinds of state of a parameter. A frozen one has only Master, which is the
// parameter as stored, or the name of its code, whose elements are words.
func KindsOf(p shard.Param, rules []optim.Rule, delayed bool) []string {
	kinds := []string{Master}
	switch {
	case p.Code != 0:
		return []string{device.Code(p.Code).String()}
	case p.Frozen:
		return kinds
	case delayed:
		kinds = append(kinds, Previous)
	}
	return append(kinds, rules[p.Rule].States()...)
}

// kindsOf selects the kinds that a unit has; codes count as Master.
func (t *Trainer) kindsOf(unit int, kinds []string) []string {
	u := t.runner.Units[unit]
	own := KindsOf(u.Layout.Params[0], t.cfg.Rules, t.cfg.Delayed)
	if u.Code != device.Floats && slices.Contains(kinds, Master) {
		return own
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return !slices.Contains(own, kind) })
}

// Part is a range of one parameter's state of one kind. If Param has Codes, its elements are words,
// which pass as the bits of float32.
type Part struct {
	Param shard.Param
	Kind  string
	At    shard.Range // elements of the flattened parameter
}

// staging is the number of elements that pass through host memory at a time.
const staging = 1 << 20

// Want is a part and the destination for its elements in float32.
type Want struct {
	Part
	Into []float32
}

// Fill sets one kind of state, part by part; see FillAll.
func (t *Trainer) Fill(kind string, src func(p Part, dst []float32) error) error {
	return t.FillAll([]string{kind}, func(want []Want) error {
		for _, w := range want {
			if err := src(w.Part, w.Into); err != nil {
				return fmt.Errorf("%s of %s: %w", kind, w.Param.Name, err)
			}
		}
		return nil
	})
}

// FillAll sets all state of some kinds from src, which is called with many parts at once, and sets
// the parameters from their master copies. Ranks that hold the same state each read a share of it
// and exchange them, so that replicas together read it once; only state in host memory that groups
// cannot reach is read by each. All ranks must call FillAll. Frozen parameters are filled once.
func (t *Trainer) FillAll(kinds []string, src func(want []Want) error) error {
	f := filler{t: t, src: src, memory: Staging(), previous: slices.Contains(kinds, Previous)}
	all := func(u int) shard.Range {
		if t.filled && t.runner.Units[u].Frozen {
			return shard.Range{}
		}
		return shard.Range{Hi: t.runner.Units[u].Own().Len()}
	}
	for _, u := range t.runner.Units {
		if u.Own().Len() == 0 { // it changes on the master
			u.MarkUpdated(device.Event{})
		}
	}
	change := following
	if f.previous {
		change = changed
	}
	err := t.eachTile(change, all, func(q Update, u int, in shard.Range, st offload.State) error {
		for _, e := range st.Ready { // then the host may access the tile
			if err := e.Await(); err != nil {
				return err
			}
		}
		return f.fill(kinds, q, u, in, st)
	})
	t.filled = t.filled || err == nil && slices.Contains(kinds, Master)
	return err
}

// filler fills tiles.
type filler struct {
	t      *Trainer
	src    func([]Want) error
	want   []Want                // parts in host-accessible memory: requested together
	memory func(n int) []float32 // memory for a part elsewhere

	previous bool // also fill the parameters in use, see Previous
}

func (f *filler) fill(kinds []string, q Update, u int, in shard.Range, st offload.State) error {
	t, g, own := f.t, f.t.runner.Units[u].Replica, []shard.Range{in}
	n := in.Len() / g.Size() // the remainder, less than Size elements, is read by all
	shared := n > 0 && g.Size() > 1 && (!st.OnHost || t.sums.Device.Host) && Begin(t.cfg.Rules) == 1
	if shared {
		own = []shard.Range{{Lo: in.Lo + g.Rank()*n, Hi: in.Lo + (g.Rank()+1)*n}, {Lo: in.Lo + g.Size()*n, Hi: in.Hi}}
	}
	f.want = f.want[:0]
	kinds = t.kindsOf(u, kinds)
	for _, kind := range kinds {
		for _, r := range own {
			if err := t.parts(kind, u, r, st, func(p Part, at device.Buffer) error { return f.ask(q, p, at) }); err != nil {
				return err
			}
		}
	}
	if len(f.want) > 0 {
		if err := f.src(f.want); err != nil {
			return err
		}
	}
	if !shared {
		return nil
	}
	t.cfg.Comm.Label("unit " + t.runner.Units[u].Name + ": state")
	for _, kind := range kinds {
		collective.AllGather(g, t.cfg.Comm, t.vector(u, kind, st).Slice(0, g.Size()*n))
	}
	q.After(t.cfg.Comm.Mark()) // overlaps with reading the next tile
	return nil
}

// ask requests a part in host-accessible memory, and reads any other part, or one that is not
// float32, immediately.
func (f *filler) ask(q Update, p Part, at device.Buffer) error {
	if at.Type != device.F32 {
		buf := f.memory(at.N)
		if err := f.src([]Want{{p, buf}}); err != nil {
			return err
		}
		if i := device.Overflow(buf, at.Type); i >= 0 {
			return &device.TooLarge{Tensor: p.Param.Name, Element: p.At.Lo + i, Value: buf[i], Type: at.Type.String(), Want: "another precision"}
		}
		q.Copy(at, device.Narrow(buf, at.Type))
		return q.Wait()
	}
	if at.Host {
		f.want = append(f.want, Want{p, at.F32()})
		return nil
	}
	w := device.Onto(at, func(n int) device.Buffer { return device.OfF32(f.memory(n)) })
	if err := f.src([]Want{{p, w.Host.F32()}}); err != nil {
		return err
	}
	w.Send(q)
	return q.Wait()
}

// Each passes this rank's share of one kind of state to dst; see EachAll.
func (t *Trainer) Each(kind string, memory func(n int) []float32, dst func(p Part, src []float32) error) error {
	return t.each(t.share, []string{kind}, memory, dst, nil)
}

// EachAll passes this rank's share of the state of the trained parameters, or of the frozen ones,
// to dst, as float32 elements in memory from memory(n). The shares of all ranks together are the
// whole state once: replicas divide their shard, and state on disk is read ahead. State in
// host-accessible memory is instead passed to inPlace, without a copy; it is unchanged until the
// next step. With a nil inPlace, all state is copied.
func (t *Trainer) EachAll(frozen bool, memory func(n int) []float32, dst, inPlace func(p Part, src []float32) error) error {
	of := func(u int) (r shard.Range) {
		if t.runner.Units[u].Frozen == frozen {
			r = t.share(u)
		}
		return r
	}
	return t.each(of, t.Kinds(), memory, dst, inPlace)
}

func (t *Trainer) each(of func(unit int) shard.Range, kinds []string, memory func(n int) []float32, dst, inPlace func(p Part, src []float32) error) error {
	return t.eachTile(unchanged, of, func(q Update, u int, in shard.Range, st offload.State) error {
		for _, kind := range t.kindsOf(u, kinds) {
			err := t.parts(kind, u, in, st, func(p Part, at device.Buffer) error {
				if inPlace != nil && at.Host && at.Type == device.F32 && t.store.Resident(u) {
					return inPlace(p, at.F32())
				}
				src := memory(max(2, at.N))[:at.N] // see device.Narrowed
				q.Copy(device.Narrowed(src, at.Type), at)
				if err := q.Wait(); err != nil {
					return err
				}
				device.Widen(src, at.Type)
				return dst(p, src)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Staged is a part in separate memory.
type Staged struct {
	Part
	Data []float32
}

// Snapshot starts to copy this rank's share of all state, or only of that of the trained
// parameters, as after the last step, to memory from memory(n), and returns at once: the copies are
// issued on the queues of the updates, before the next update, so that training continues. Wait
// returns when the parts are complete; it may be called from any goroutine. The shares of all ranks
// together are the whole state once.
func (t *Trainer) Snapshot(trained bool, memory func(n int) []float32) (parts []Staged, wait func() error) {
	type copied struct {
		to []float32
		t  device.DType
	}
	var narrow []copied // parts that are not float32
	for i, u := range t.runner.Units {
		if trained && u.Frozen {
			continue
		}
		label := "unit " + u.Name + ": snapshot"
		for j := range t.store.Tiles(i) {
			in := t.store.Tile(i, j).Intersect(t.share(i))
			if in.Len() == 0 {
				continue
			}
			st := t.store.Peek(i, j, in)
			q := t.updates(st.OnHost)
			q.Label(label)
			q.After(st.Ready[0])
			q.After(st.Ready[1])
			for _, kind := range t.kindsOf(i, t.Kinds()) {
				to, from := memory(in.Len()), t.vector(i, kind, st).Slice(in.Lo-st.At.Lo, in.Hi-st.At.Lo)
				q.Copy(device.Narrowed(to, from.Type), from)
				if from.Type != device.F32 {
					narrow = append(narrow, copied{to, from.Type})
				}
				for pc := range u.Layout.Pieces(u.Shard.Rank()) {
					if at := pc.InShard.Intersect(in); at.Len() > 0 {
						lo := pc.InParam.Lo + at.Lo - pc.InShard.Lo
						p := Part{u.Layout.Params[pc.Param], kind, shard.Range{Lo: lo, Hi: lo + at.Len()}}
						parts = append(parts, Staged{p, to[at.Lo-in.Lo : at.Hi-in.Lo]})
					}
				}
			}
			t.store.Release(i, j, q.Mark(), false)
		}
	}
	done := []device.Event{t.cfg.Update.Mark()}
	if t.cfg.HostUpdate != nil {
		done = append(done, t.cfg.HostUpdate.Mark())
	}
	return parts, func() error {
		var errs [2]error
		for i, e := range done { // wait for all even after an error, before memory is reused
			errs[i] = e.Await()
		}
		if err := cmp.Or(errs[0], errs[1]); err != nil {
			return err
		}
		for _, s := range narrow {
			device.Widen(s.to, s.t)
		}
		return nil
	}
}

// Staging returns an allocator for one part at a time, for a dst of Each that does not retain it.
// Memory grows to the largest part.
func Staging() func(n int) []float32 {
	var memory []float32
	return func(n int) []float32 {
		if n > len(memory) {
			memory = make([]float32, min(staging, max(n, 2*len(memory))))
		}
		return memory[:n]
	}
}

// StateLen returns the number of elements of state that EachAll passes on this rank.
func (t *Trainer) StateLen() (n int) {
	for u := range t.runner.Units {
		n += t.share(u).Len() * len(t.kindsOf(u, t.Kinds()))
	}
	return n
}

// share returns this rank's part of a unit's shard among its replicas.
func (t *Trainer) share(u int) shard.Range {
	g := t.runner.Units[u].Replica
	all, align := t.runner.Units[u].Own().Len(), max(fsdp.Align, Begin(t.cfg.Rules))
	n := all / g.Size() / align * align
	if g.Rank() == g.Size()-1 { // after a loss, shares may differ
		return shard.Range{Lo: g.Rank() * n, Hi: all}
	}
	return shard.Range{Lo: g.Rank() * n, Hi: (g.Rank() + 1) * n}
}

// parts calls f with the parts of parameters in a range of a tile, at most staging elements at a
// time, and their buffers.
func (t *Trainer) parts(kind string, unit int, in shard.Range, st offload.State, f func(p Part, at device.Buffer) error) error {
	u, vec := t.runner.Units[unit], t.vector(unit, kind, st)
	for pc := range u.Layout.Pieces(u.Shard.Rank()) {
		at := pc.InShard.Intersect(in)
		for lo := at.Lo; lo < at.Hi; lo += staging {
			hi := min(lo+staging, at.Hi)
			from := pc.InParam.Lo + lo - pc.InShard.Lo
			p := Part{u.Layout.Params[pc.Param], kind, shard.Range{Lo: from, Hi: from + hi - lo}}
			if err := f(p, vec.Slice(lo-st.At.Lo, hi-st.At.Lo)); err != nil {
				return fmt.Errorf("%s of %s: %w", kind, p.Param.Name, err)
			}
		}
	}
	return nil
}

// vector returns the buffer of one kind of a unit's state.
func (t *Trainer) vector(unit int, kind string, st offload.State) device.Buffer {
	switch {
	case t.runner.Units[unit].Code != device.Floats: // words pass as they are
		words := st.Param
		words.Type = device.F32
		return words
	case kind == Master && st.Master.N == 0: // frozen
		return st.Param
	case kind == Master:
		return st.Master
	case kind == Previous:
		return t.runner.Units[unit].Param.Slice(st.At.Lo, st.At.Hi)
	}
	for i, name := range t.cfg.Rules[t.runner.Units[unit].Rule].States() {
		if name == kind {
			return st.Vec[i]
		}
	}
	panic("zero: no state called " + kind)
}

// borrowed is an acquired tile of a unit's state, of which the elements in are used.
type borrowed struct {
	unit, tile int
	in         shard.Range
	st         offload.State
}

// change describes what happens to borrowed state.
type change uint8

const (
	unchanged change = iota
	following        // it changes, and the parameters must be set from their master copies
	changed          // it changes together with the parameters in use
)

// eachTile acquires the state of every tile that overlaps a range of its unit's shard, once all
// updates issued so far are done, and calls f with one after the other, while the next ones are
// fetched.
func (t *Trainer) eachTile(to change, of func(unit int) shard.Range, f func(q Update, unit int, in shard.Range, st offload.State) error) error {
	if err := t.settle(); err != nil {
		return err
	}
	var ahead []borrowed // not yet processed
	err := func() error {
		for i := range t.runner.Units {
			for j := range t.store.Tiles(i) {
				b := borrowed{unit: i, tile: j, in: t.store.Tile(i, j).Intersect(of(i))}
				if b.in.Len() == 0 {
					continue
				}
				for len(ahead) > 0 && !t.canOverlap(ahead, b) {
					if err := t.work(ahead[0], to, f); err != nil {
						return err
					}
					ahead = ahead[1:]
				}
				if to != unchanged {
					b.st = t.store.Acquire(i, j, offload.All)
				} else {
					b.st = t.store.Peek(i, j, b.in)
				}
				ahead = append(ahead, b)
			}
		}
		for ; len(ahead) > 0; ahead = ahead[1:] {
			if err := t.work(ahead[0], to, f); err != nil {
				return err
			}
		}
		return nil
	}()
	for _, b := range ahead[min(1, len(ahead)):] { // the first has failed and is released
		t.store.Release(b.unit, b.tile, b.st.Ready[1], false)
	}
	if err != nil {
		return err
	}
	return t.settle()
}

// mostAhead is the maximum number of tiles borrowed at once if nothing is staged.
const mostAhead = 4

// canOverlap reports whether a tile can be borrowed in addition to others.
func (t *Trainer) canOverlap(ahead []borrowed, b borrowed) bool {
	for _, a := range ahead {
		if !t.store.CanOverlap(a.unit, a.tile, b.unit, b.tile) {
			return false
		}
	}
	return len(ahead) < mostAhead
}

// work calls f with a borrowed tile and releases it.
func (t *Trainer) work(b borrowed, to change, f func(Update, int, shard.Range, offload.State) error) error {
	st, u := b.st, t.runner.Units[b.unit]
	q := t.updates(st.OnHost)
	q.After(st.Ready[0])
	q.After(st.Ready[1])
	err := f(q, b.unit, b.in, st)
	if err != nil {
		to = unchanged
	}
	if to == following && st.Param.N > 0 && !u.Frozen {
		q.Cast(st.Param, st.Master)
	}
	done := t.store.Release(b.unit, b.tile, q.Mark(), to == following || to == changed && u.Frozen)
	if err != nil {
		return fmt.Errorf("unit %s: %w", u.Name, err)
	}
	if to != unchanged {
		u.MarkUpdated(done)
	}
	return nil
}

// settle waits until all updates have reached their storage.
func (t *Trainer) settle() error {
	errs := []error{t.cfg.Update.Wait()}
	if t.cfg.HostUpdate != nil {
		errs = append(errs, t.cfg.HostUpdate.Wait())
	}
	for _, q := range t.store.Queues() {
		errs = append(errs, q.Wait())
	}
	return cmp.Or(errs...)
}
