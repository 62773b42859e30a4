package collective

import (
	"zeroth/device"
	"zeroth/shard"
)

// Dry is a rank of a group whose other ranks do not exist: its operations move
// nothing. On a device that only counts that is what they should do.
type Dry struct{ At, Of int }

// DryWorld is the groups of rank r of a mesh in which the other ranks do not exist.
func DryWorld(m shard.Mesh, r int) (ranks Ranks) {
	for _, of := range dimensions(m) {
		if of.role != Saves && of.role != Ends {
			*ranks.of(of.role, 0) = Dry{m.Index(r, of.axes...), m.Size(of.axes...)}
		}
	}
	if m.Pipeline < 2 {
		return ranks
	}
	if at, of := m.At(r, shard.Pipeline), ranks.Replica.Size(); at == 0 || at == m.Pipeline-1 {
		ranks.Ends = Dry{min(1, at)*of + ranks.Replica.Rank(), 2 * of}
	}
	for l := range ranks.Links {
		ranks.Links[l] = Dry{l & 1, 2} // of which rank 0 sends
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
