package collective

import (
	"slices"

	"zeroth/device"
	"zeroth/shard"
)

// Dry is a rank of a group whose other ranks do not exist: its operations move
// nothing. On a device that only counts that is what they should do.
type Dry struct{ At, Of int }

// DryWorld is the groups of rank r of a mesh in which the other ranks do not exist.
func DryWorld(m shard.Mesh, r int) (ranks Ranks) {
	for _, of := range table(m) {
		if at := slices.Index(of.ranks, r); at >= 0 && of.role != Saves {
			*ranks.of(of.role, at) = Dry{at, len(of.ranks)}
		}
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
