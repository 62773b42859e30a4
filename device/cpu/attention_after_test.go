package cpu

import (
	"fmt"
	"math"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// TestAttentionGradAfterOthers divides a sequence into pieces of any length: gradients of queries
// must equal those of the whole, and those of keys and values must add up to them.
func TestAttentionGradAfterOthers(t *testing.T) {
	nightly.Long(t)
	const exact = 3e-5   // the gradients of values are sums of sums
	const tiled = 0x3p-6 // 1.4 times the largest difference of all cases
	for tol, with := range map[float64]func(*testing.T, func(*testing.T)){exact: withVec, tiled: withTiles} {
		with(t, func(t *testing.T) {
			for _, dt := range []device.DType{device.F32, device.BF16} {
				for i, a := range attnShapes {
					a.B = 1
					for j, a := range variants(a) {
						if dt == device.BF16 && !(!nightly.All() && tol == exact) || dt == device.F32 && tol == exact {
							all := newAttnCase(dt, a, true)
							for k, n := range []int{1 + a.T/5, 64} {
								if nightly.Every(2, i+j+k) {
									all.gradAfter(t, n, tol)
								}
							}
						}
					}
				}
			}
		})
	}
}

// gradAfter tests pieces of n positions.
func (all *attnCase) gradAfter(t *testing.T, n int, tol float64) {
	t.Helper()
	q, a, dt := queueOf(t, 2), all.a, all.q.Buf.Type
	within := tol * math.Sqrt(dot(all.wantQ, all.wantQ)/float64(len(all.wantQ)))
	lse, dk, dv := all.lse.values(), make([]float64, a.T*a.KV*a.D), make([]float64, a.T*a.KV*a.D)
	for past := 0; past < a.T; past += n {
		part := a
		part.Past, part.T = past, min(n, a.T-past)
		part.Drop.Row += uint64(past)
		if a.Start.N > 0 {
			part.Start = newVec(device.I32, part.T).fill(func(i int) float64 { return float64(a.Start.I32()[past+i] - int32(past)) }).Buf
		}
		own := newVec(device.F32, a.H*part.T).fill(func(i int) float64 { return lse[i/part.T*a.T+past+i%part.T] })
		dq, delta := newMat(dt, part.T, a.H*a.D), newVec(device.F32, a.H*part.T)
		out := []*guarded{dq, newMat(device.F32, part.Keys(), a.KV*a.D), newMat(device.F32, part.Keys(), a.KV*a.D)}
		rows := func(m *guarded) device.Mat { return m.RowRange(past, past+part.T) }
		q.AttentionGrad(dq.Mat, out[1].Mat, out[2].Mat, delta.Buf, rows(all.do), rows(all.o), own.Buf, rows(all.q), all.k.RowRange(0, part.Keys()), all.v.RowRange(0, part.Keys()), part)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, m := range out {
			m.checkGuards(t)
		}
		for i, sum := range [][]float64{dk, dv} {
			for j, x := range out[1+i].values() {
				sum[j] += x
			}
		}
		for i, x := range out[0].values() {
			if want := all.wantQ[past*a.H*a.D+i]; math.Abs(x-want) > within+epsilon(dt)*math.Abs(want) {
				t.Fatalf("%+v: dq %d after %d is %g, want %g", a, i, past, x, want)
			}
		}
	}
	for i, want := range [][]float64{all.wantK, all.wantV} {
		got := newMat(device.F32, a.T, a.KV*a.D).fill(func(j int) float64 { return [][]float64{dk, dv}[i][j] })
		near(t, fmt.Sprintf("%+v, pieces of %d: %s", a, n, []string{"dk", "dv"}[i]), got, want, tol)
	}
}
