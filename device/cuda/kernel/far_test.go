//go:build cuda && !gpu

package kernel

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"zeroth/device"
)

// TestRowsFarApart checks that matrices of more elements than 32 bits count give the same bits as small ones
// in the kernels of rows: rows are 2^30 elements apart in a file of which only they exist.
func TestRowsFarApart(t *testing.T) {
	const rows, cols, heads, vocab, far = 5, 64, 4, 96, 1<<30 + 64
	if emuKind() != "" {
		t.Skip("sanitizers keep a byte for eight of the memory")
	}
	started(t)
	e, _ := startEmulator(t, emulatorIn, "", 4*rows*far+64<<20, os.Stderr)
	defer e.close()
	run := func(dt device.DType, ld int) (values [][]float64) {
		e.reset()
		b := &bench{e: e, rng: rand.New(rand.NewPCG(1, 2))}
		q := &Ops{To: e, Work: b.workSpace()}
		vec := func(dt device.DType, n int) device.Buffer { return b.vec("", dt, n, 1).Buf }
		m, r, loss, lse, delta, dw := vec(device.F32, rows), vec(device.F32, rows), vec(device.F32, rows), vec(device.F32, heads*rows), vec(device.F32, heads*rows), b.vec("", device.F32, cols, 1)
		gain, db, ids := vec(dt, cols), vec(device.F32, cols), b.ints("", rows, 0, rows).Buf
		at := (e.used + 255) &^ 255
		matOf := func(dt device.DType, cols int) *operand {
			o := &operand{Mat: device.Mat{Buf: device.Buffer{Type: dt, Host: true, N: (rows-1)*ld + cols, Ptr: unsafe.Pointer(&e.mem[at])}, Rows: rows, Cols: cols, Ld: ld}}
			at += 4 * cols
			return o.fill(func(int) float64 { return b.rng.NormFloat64() })
		}
		mat := func() *operand { return matOf(dt, cols) }
		x, y, z, w, o, dq, dk, dv, wide, dwte := mat(), mat(), mat(), mat(), mat(), mat(), mat(), mat(), matOf(dt, vocab), matOf(device.F32, cols)
		a, none := device.Attn{B: 1, T: rows, H: heads, KV: heads, D: cols / heads, Scale: 0.3}, device.Buffer{}
		check := func(of ...*operand) {
			if e.err != nil {
				t.Fatal(e.err)
			}
			for _, m := range of {
				v := make([]float64, m.Rows*m.Cols)
				for i := range v {
					v[i] = m.at(i)
				}
				values = append(values, v)
			}
		}
		q.LayerNorm(y.Mat, m, r, x.Mat, gain, gain, 1e-5)
		q.LayerNormGrad(z.Mat, dw.Buf, db, y.Mat, x.Mat, gain, m, r, true)
		check(y, z, dw)
		q.RMSNorm(y.Mat, r, z.Mat, gain, 1e-5)
		q.RMSNormGrad(w.Mat, dw.Buf, y.Mat, z.Mat, gain, r, true)
		q.Rope(y.Mat, device.Rope{T: rows, D: cols / heads, Theta: 10000}, false)
		check(y, w, dw)
		q.Gate(o.Mat, y.Mat, w.Mat, device.Silu)
		q.GateGrad(x.Mat, z.Mat, o.Mat, y.Mat, w.Mat, device.Silu)
		check(o, x, z)
		q.Embed(y.Mat, x.Mat, z.Mat, device.Vocab{}, ids, rows, none)
		q.EmbedGrad(dwte.Mat, device.Mat{}, y.Mat, device.Vocab{}, ids, rows, none, false)
		q.SumRows(dw.Buf, y.Mat)
		check(y, dwte, dw)
		q.CopyBlock(w.Mat, z.Mat)
		q.AddRow(w.Mat, gain, false)
		q.GatherRows(o.Mat, w.Mat, ids)
		check(w, o)
		q.CrossEntropyGrad(loss, wide.Mat, ids, 0.5, 0)
		check(wide)
		q.Attention(o.Mat, lse, x.Mat, y.Mat, z.Mat, a)
		q.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, delta, w.Mat, o.Mat, lse, x.Mat, y.Mat, z.Mat, a)
		check(o, dq, dk, dv)
		return values
	}
	for _, dt := range anyFloat {
		got, want := run(dt, far), run(dt, 2048)
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%v: result %d begins with %v, want %v", dt, i, got[i][:8], want[i][:8])
			}
		}
	}
}
