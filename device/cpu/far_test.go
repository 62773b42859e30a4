//go:build linux

package cpu

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"zeroth/device"
)

// farLd is the distance of rows whose third begins beyond 2^31 elements, and whose fifth beyond 2^32.
const farLd = 1<<30 + 64

// place makes matrices side by side in the same rows, ld elements apart.
type place struct {
	mem      []byte
	ld, used int // elements
	rng      *rand.Rand
}

func (p *place) mat(dt device.DType, rows, cols int) *guarded {
	from := p.mem[4*p.used:]
	p.used += (cols + 63) / 64 * 64
	b := device.Buffer{Type: dt, Host: true, N: (rows-1)*p.ld + cols, Ptr: unsafe.Pointer(&from[0])}
	return (&guarded{Mat: device.Mat{Buf: b, Rows: rows, Cols: cols, Ld: p.ld}}).normal(p.rng, 0, 1)
}

// TestRowsFarApart checks that matrices of more elements than 32 bits count give the same bits as small ones
// in every kernel of rows, on memory of which only the rows exist.
func TestRowsFarApart(t *testing.T) {
	const rows, cols, heads, vocab = 5, 64, 4, 96
	mem, err := unix.Mmap(-1, 0, 4*rows*farLd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("no address space for %d rows: %v", rows, err)
	}
	defer unix.Munmap(mem)
	run := func(t *testing.T, q *Queue, dt device.DType, ld int) (values [][]float64) {
		p := &place{mem, ld, 0, rand.New(rand.NewPCG(1, 2))}
		mat := func(cols int) *guarded { return p.mat(dt, rows, cols) }
		vec := func(dt device.DType, n int) device.Buffer { return newVec(dt, n).normal(p.rng, 1, 0.1).Buf }
		f32, none := device.F32, device.Buffer{}
		x, y, z, w, wide, o, dq, dk, dv := mat(cols), mat(cols), mat(cols), mat(cols), mat(vocab), mat(cols), mat(cols), mat(cols), mat(cols)
		dw, m, r, loss, lse, delta := vec(f32, cols), vec(f32, rows), vec(f32, rows), vec(f32, rows), vec(f32, heads*rows), vec(f32, heads*rows)
		gain, ids := vec(dt, cols), newVec(device.I32, rows).fill(func(i int) float64 { return float64(7 * i % rows) }).Buf
		dwte, square := p.mat(f32, rows, cols), p.mat(f32, rows, rows)
		a := device.Attn{B: 1, T: rows, H: heads, KV: heads, D: cols / heads, Scale: 0.3}
		check := func(mats ...*guarded) {
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			for _, m := range mats {
				values = append(values, m.values())
			}
		}
		q.LayerNorm(y.Mat, m, r, x.Mat, gain, gain, 1e-5)
		q.LayerNormGrad(z.Mat, dw, dw, y.Mat, x.Mat, gain, m, r, true)
		check(y, z)
		q.RMSNorm(y.Mat, r, z.Mat, gain, 1e-5)
		q.RMSNormGrad(w.Mat, dw, y.Mat, z.Mat, gain, r, true)
		check(y, w)
		q.Rope(y.Mat, device.Rope{T: rows, D: cols / heads, Theta: 10000}, false)
		q.Gate(o.Mat, y.Mat, w.Mat, device.Silu)
		q.GateGrad(x.Mat, z.Mat, o.Mat, y.Mat, w.Mat, device.Silu)
		check(y, o, x, z)
		q.Embed(y.Mat, x.Mat, z.Mat, device.Vocab{}, ids, rows, none)
		q.EmbedGrad(dwte.Mat, device.Mat{}, y.Mat, device.Vocab{}, ids, rows, none, false)
		q.SumRows(dw, y.Mat)
		check(y, dwte)
		values = append(values, (&guarded{Mat: device.Matrix(dw, 1, cols)}).values())
		q.MatMul(square.Mat, y.Mat, x.Mat.T(), none, false)
		q.MatMul(w.Mat, square.Mat, x.Mat, none, true)
		q.CopyBlock(z.Mat, w.Mat)
		q.GatherRows(o.Mat, z.Mat, ids)
		check(square, w, z, o)
		q.CrossEntropyGrad(loss, wide.Mat, ids, 0.5, 0)
		check(wide)
		q.Attention(o.Mat, lse, x.Mat, y.Mat, z.Mat, a)
		q.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, delta, w.Mat, o.Mat, lse, x.Mat, y.Mat, z.Mat, a)
		check(o, dq, dk, dv)
		return values
	}
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			want := run(t, queueOf(t, 2), dt, 2048)
			got := run(t, queueOf(t, 2), dt, farLd)
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("result %d: %v, want %v", i, got[i], want[i])
				}
			}
		})
	})
}
