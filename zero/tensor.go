package zero

import (
	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
)

// exchange is a group whose ranks divide the work of modules, as an nn.Group.
type exchange struct {
	collective.Group
	t  *Trainer
	op fsdp.Op
}

// exchange returns one of the rank's groups as an nn.Group, or nil if there is none.
func (t *Trainer) exchange(g collective.Group, op fsdp.Op) nn.Group {
	if g == nil {
		return nil
	}
	return exchange{g, t, op}
}

// Gather implements nn.Group.
func (g exchange) Gather(whole, own device.Buffer) {
	g.AllGather(g.t.cfg.Compute, whole, own)
	g.t.exchanged(g.op, whole, g.Group)
}

// Reduce implements nn.Group.
func (g exchange) Reduce(own, whole device.Buffer) {
	g.ReduceScatter(g.t.cfg.Compute, own, whole)
	g.t.exchanged(g.op, whole, g.Group)
}

// exchanged reports the bytes that the rank sends of a buffer to the others of a group.
func (t *Trainer) exchanged(op fsdp.Op, whole device.Buffer, g collective.Group) {
	if l := t.cfg.Listener; l != nil {
		l.Event(fsdp.Event{Op: op, Step: -1, Sent: sent(whole, g, 1), Micro: t.micro})
	}
}

// pieces returns the number and length of sequences in a micro-batch for a rank's modules: chunks,
// if ranks divide positions.
func (c *Config) pieces() (sequences, positions int) {
	if n := c.Mesh.Context; n > 1 {
		return 2 * c.B, c.T / (2 * n)
	}
	return c.B, c.T
}

// fields returns the fields of a micro-batch: those of the data and, if ranks divide positions, the
// starts of documents.
func (c *Config) fields() []data.Field {
	if c.Mesh.Context > 1 && len(c.Fields) == 2 {
		return data.TokenFields(c.T, true)
	}
	return c.Fields
}

// types are the types of fields in memory.
var types = [...]device.DType{data.Int32: device.I32, data.Float32: device.F32}

// valuesOf returns the elements of a host's buffer.
func valuesOf(b device.Buffer) data.Values {
	if b.Type == device.F32 {
		return data.Values{F32: b.F32()}
	}
	return data.Values{I32: b.I32()}
}

// pick moves the rank's chunks of a micro-batch to the front if ranks divide positions, and makes
// document starts relative to each chunk's first position.
func (t *Trainer) pick(in *input) {
	g := t.cfg.Groups.Context
	if g == nil {
		return
	}
	ids := [...][]int32{in.fields[0].Host.I32(), in.fields[1].Host.I32(), in.fields[2].Host.I32()}
	start := ids[2]
	if len(in.fields) > len(in.values) {
		clear(start)
	}
	_, n := t.cfg.pieces()
	to := 0
	for s := range t.cfg.B {
		for _, chunk := range nn.Chunks(g.Rank(), g.Size()) {
			from := s*t.cfg.T + chunk*n
			for _, x := range ids {
				copy(x[to:to+n], x[from:])
			}
			for i := range start[to : to+n] {
				start[to+i] -= int32(chunk * n)
			}
			to += n
		}
	}
}
