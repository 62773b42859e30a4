package kernel

// DecodeLen is the number of elements of a piece of RunDecode.
const DecodeLen = 1 << 12

// RunDecode decodes pieces [lo, hi) of a coded matrix.
func RunDecode(t *Args, _ *Worker, lo, hi int) {
	dst := t.M[0].Buf.Slice(lo*DecodeLen, min(hi*DecodeLen, t.M[0].Buf.N))
	t.Code.Decode(dst, t.B[1].Words(), lo*DecodeLen, t.M[0].Cols)
}
