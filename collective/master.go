package collective

import (
	"fmt"

	"zeroth/device"
)

// Master is a group in which rank 0 owns whole buffers and the other ranks own nothing. AllGather
// becomes a broadcast and ReduceScatter a reduce, both in place.
type Master struct{ Group }

func (g Master) AllGather(q device.Queue, whole, own device.Buffer) {
	g.inPlace(whole, own)
	g.Broadcast(q, whole)
}

func (g Master) ReduceScatter(q device.Queue, own, whole device.Buffer) {
	g.inPlace(whole, own)
	g.Reduce(q, whole)
}

func (g Master) inPlace(whole, own device.Buffer) {
	if n := whole.N; g.Rank() == 0 && (own.N != n || own.Ptr != whole.Ptr) || g.Rank() > 0 && own.N > 0 {
		panic(fmt.Sprintf("collective: rank %d of a group with a master owns %d of %d elements", g.Rank(), own.N, n))
	}
}

// Unwrap returns the group underneath.
func (g Master) Unwrap() Group { return g.Group }
