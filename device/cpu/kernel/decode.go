package kernel

import "zeroth/device"

// DecodeLen is the number of elements of a piece of RunDecode.
const DecodeLen = 1 << 12

// RunDecode decodes pieces [lo, hi) of a coded matrix.
func RunDecode(t *Args, _ *Worker, lo, hi int) {
	dst := t.B[0].Slice(lo*DecodeLen, min(hi*DecodeLen, t.B[0].N))
	device.DecodeNF4(dst, t.B[1].Words(), lo*DecodeLen)
}
