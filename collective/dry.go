package collective

import (
	"zeroth/device"
	"zeroth/shard"
)

// Dry is a rank of a group without other ranks: its operations do nothing. It is used on devices
// that only count.
type Dry struct{ At, Of int }

// DryWorld returns the groups of rank r of a mesh without other ranks.
func DryWorld(m shard.Mesh, r int) (ranks Ranks) {
	for _, g := range dimensions(m) {
		if g.role != Saves && g.role != Ends {
			*ranks.slot(g.role, 0) = Dry{m.Index(r, g.axes...), m.Size(g.axes...)}
		}
	}
	if m.Pipeline < 2 {
		return ranks
	}
	if at, of := m.At(r, shard.Pipeline), ranks.Replica.Size(); at == 0 || at == m.Pipeline-1 {
		ranks.Ends = Dry{min(1, at)*of + ranks.Replica.Rank(), 2 * of}
	}
	for l := range ranks.Links {
		ranks.Links[l] = Dry{l & 1, 2} // rank 0 sends
	}
	return ranks
}

func (d Dry) Rank() int                                        { return d.At }
func (d Dry) Size() int                                        { return d.Of }
func (d Dry) AllGather(_ device.Queue, _, _ device.Buffer)     {}
func (d Dry) ReduceScatter(_ device.Queue, _, _ device.Buffer) {}
func (d Dry) Broadcast(_ device.Queue, _ device.Buffer)        {}
func (d Dry) Reduce(_ device.Queue, _ device.Buffer)           {}
func (d Dry) Close() error                                     { return nil }
