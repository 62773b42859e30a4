//go:build !amd64 && !arm64

package kernel

func streamTriad(dst, a, b []float32) { TriadGo(dst, a, b) }
func streamRewrite(x, _, _ []float32) { RewriteGo(x) }
func streamUpdate(x, a, _ []float32)  { UpdateGo(x, a) }
func streamRead(_, a, _ []float32)    { readGo(a) }
