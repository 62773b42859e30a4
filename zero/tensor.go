package zero

import (
	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
)

// tensor is the group whose ranks divide matrices between them, as modules know it.
type tensor struct {
	collective.Group
	t *Trainer
}

// tensor returns the rank's, nil if matrices are whole.
func (t *Trainer) tensor() nn.Group {
	if t.cfg.Groups.Tensor == nil {
		return nil
	}
	return tensor{t.cfg.Groups.Tensor, t}
}

// Gather implements nn.Group.
func (g tensor) Gather(whole, own device.Buffer) {
	g.AllGather(g.t.cfg.Compute, whole, own)
	g.t.exchanged(g.t.cfg.Compute, whole, g.Group)
}

// Reduce implements nn.Group.
func (g tensor) Reduce(own, whole device.Buffer) {
	g.ReduceScatter(g.t.cfg.Compute, own, whole)
	g.t.exchanged(g.t.cfg.Compute, whole, g.Group)
}

// exchanged tells how much the rank sends of a buffer to the ranks that divide matrices with it.
func (t *Trainer) exchanged(q device.Queue, whole device.Buffer, g collective.Group) {
	if l := t.cfg.Listener; l != nil {
		l.Event(fsdp.Event{Op: fsdp.Exchange, Step: -1, Sent: sent(whole, g, 1), Queue: q, Micro: t.micro})
	}
}
