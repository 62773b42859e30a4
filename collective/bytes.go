package collective

import (
	"unsafe"

	"zeroth/device"
)

// GatherBytes gives every rank what each rank passed, in rank order. It waits
// for the queue. It is for messages between ranks, not for tensors: it
// allocates, and every rank receives as much as the longest message of all.
func GatherBytes(g Group, q device.Queue, mine []byte) ([][]byte, error) {
	sizes := make([]int32, g.Size())
	sizes[g.Rank()] = int32(len(mine))
	AllGather(g, q, device.OfI32(sizes))
	if err := q.Wait(); err != nil {
		return nil, err
	}
	var words int // of 4 bytes, the longest message
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
