package fsdp

import (
	"zeroth/device"
	"zeroth/shard"
)

// Unit holds the parameters of one module, or of several that share them.
type Unit struct {
	Name string
	Groups
	Layout *shard.Layout
	Frozen bool          // it has no gradient and no update
	Rule   int           // shard.Param's rule, the same for all parameters
	Single bool          // the parameters are float32, whatever the type of others
	Code   device.Code   // of the parameters, which then are frozen; Layout is that of their codes
	Values *shard.Layout // with Code: of the decoded parameters, in one shard
	Param  device.Buffer // (ShardLen) Type: this rank's shard; empty if ParamOffloaded or MasterOnly
	Master device.Buffer // (ShardLen) float32, with MasterOnly: set before the first pass; every gather casts it
	Grad   device.Buffer // (ShardLen) float32: once Reduced fires, summed over all ranks and micro-batches; in host memory if GradOffloaded

	Reduced device.Event

	// Set between LayOut and New. The parameter of a unit that is Whole is neither offloaded nor MasterOnly.
	ParamOffloaded, MasterOnly, GradOffloaded bool

	index   int             // in Runner.Units
	whole   bool            // it has its own slot
	updated device.Event    // the shard has its newest value
	stale   bool            // its slot does not have the newest value
	read    device.Event    // the previous step's gradient may be overwritten
	slot    int             // of its parameters
	dwSlot  int             // of its unsharded gradient in one micro-batch
	kept    device.Buffer   // (Len) float32: with KeepGrads, the unsharded gradient across micro-batches
	sums    []device.Buffer // (ShardLen) float32, with Config.Tree: of the nodes of this rank's shard; the first is Grad
	sent    device.Event    // if GradOffloaded, Grad contains the sum so far
	partial device.Buffer   // (ShardLen) float32: for a tied unit, the sum to be replicated and sent
	first   int             // the first step that uses the unit
	last    int             // the last step that uses the unit
	labels  [ops]string
	gaps    []shard.Range // of Layout
	self    [1]*Unit
	inUse   [slotKinds]bool
	stays   bool // in its slot, since its last use
}

// Stored returns how a parameter is laid out in its unit: as it is or, with a Code, as words of I32.
func Stored(p shard.Param) shard.Param {
	if p.Code == 0 || p.Codes != nil {
		return p
	}
	return shard.Param{Name: p.Name, Shape: []int{device.Code(p.Code).Words(p.Flat())}, Frozen: true, Code: p.Code, Codes: &p}
}

// trained reports whether the unit has a gradient.
func (u *Unit) trained() bool { return !u.Frozen }

// coded reports whether the unit is stored as codes.
func (u *Unit) coded() bool { return u.Code != device.Floats }

// shared reports whether several steps use the unit, on this or another stage.
func (u *Unit) shared() bool { return u.first != u.last || u.Tied }

// Steps returns the first and the last step that uses the unit.
func (u *Unit) Steps() (first, last int) { return u.first, u.last }

// Parameters returns the number of elements of its parameters.
func (u *Unit) Parameters() (n int) {
	if u.coded() {
		return u.Values.Numel()
	}
	return u.Layout.Numel()
}

// Padding returns the bytes on the device that belong to no parameter in its parameters, its gradient and
// other buffers of a shard, on the rank with the last shard.
func (u *Unit) Padding(others []device.Buffer) (bytes int64) {
	pad := u.Layout.Len() - u.Layout.Numel()
	add := func(b device.Buffer, whole bool) {
		if n := min(pad, u.Layout.ShardLen()); b.N > 0 && whole {
			bytes += int64(b.Type.Bytes(pad))
		} else if b.N > 0 {
			bytes += int64(b.Type.Bytes(n))
		}
	}
	add(u.Param, u.whole)
	if add(u.kept, true); u.kept.N == 0 && !u.GradOffloaded {
		add(u.Grad, false)
	}
	for _, b := range others {
		add(b, false)
	}
	return bytes
}

// Itself returns the unit in the form of Event.Units.
func (u *Unit) Itself() []*Unit { return u.self[:] }

// Whole reports whether the unit's parameters stay whole on the device.
func (u *Unit) Whole() bool { return u.whole }

// Label returns the label of an operation on the unit, for queues.
func (u *Unit) Label(o Op) string { return u.labels[o] }

// MarkUpdated records that the shard has a new value once e fires.
func (u *Unit) MarkUpdated(e device.Event) { u.updated, u.stale = e, true }

// MarkRead records that the gradient is read until e fires, after the shard has its new value: the
// next step writes no gradient before that.
func (u *Unit) MarkRead(e device.Event) { u.read = e }
