package collective

import (
	"unsafe"

	"zeroth/device"
)

// GatherBytes gathers each rank's message, mine, in rank order. It blocks until q has run. It is
// meant for messages, not tensors: it allocates, and pads every message to the longest.
func GatherBytes(g Group, q device.Queue, mine []byte) ([][]byte, error) {
	sizes := make([]int32, g.Size())
	sizes[g.Rank()] = int32(len(mine))
	AllGather(g, q, device.OfI32(sizes))
	if err := q.Wait(); err != nil {
		return nil, err
	}
	var words int // words of 4 bytes in the longest message
	for _, n := range sizes {
		words = max(words, (int(n)+3)/4)
	}
	whole := make([]int32, words*g.Size())
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(whole))), 4*len(whole))
	copy(b[4*words*g.Rank():], mine)
	AllGather(g, q, device.OfI32(whole))
	if err := q.Wait(); err != nil {
		return nil, err
	}
	all := make([][]byte, g.Size())
	for r, n := range sizes {
		all[r] = b[4*words*r:][:n]
	}
	return all, nil
}
