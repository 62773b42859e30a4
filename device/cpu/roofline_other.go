//go:build !amd64 && !arm64

package cpu

func streamTriad(dst, a, b []float32) { triadGo(dst, a, b) }
func streamRewrite(x, _, _ []float32) { rewriteGo(x) }
func streamUpdate(x, a, _ []float32)  { updateGo(x, a) }
func streamRead(_, a, _ []float32)    { readGo(a) }
