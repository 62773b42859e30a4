package cpu

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// groupSizes has groups around every size at which products change their form.
var groupSizes = []int{0, 1, 7, 8, 9, 63, 64, 65, 0}

// offsetsOf returns offsets of groups as a sort would.
func offsetsOf(sizes []int) (o *guarded, rows int) {
	o = newVec(device.I32, len(sizes)+1).fill(func(i int) float64 {
		if i > 0 {
			rows += sizes[i-1]
		}
		return float64(rows)
	})
	return o, rows
}

// groupOf returns a group operand of n matrices with gaps between rows and matrices.
func groupOf(dt device.DType, n, rows, cols int) (*guarded, device.MatGroup) {
	all := newMat(dt, n*rows+n-1, cols)
	one := all.RowRange(0, rows)
	one.Buf = all.Buf
	return all, device.MatGroup{Mat: one, Stride: (rows + 1) * all.Ld}
}

// products returns, in float64, x·m or x·mᵀ.
func productOf(x, m device.Mat) (y []float64) {
	k, n := m.Dims()
	left, right := elements(x.Buf), elements(m.Buf)
	for i := range x.Rows {
		for j := range n {
			sum := 0.0
			for p := range k {
				at := p*m.Ld + j
				if m.Trans {
					at = j*m.Ld + p
				}
				sum += left(i*x.Ld+p) * right(at)
			}
			y = append(y, sum)
		}
	}
	return y
}

// TestMatMulGroups compares rows of groups with a slow loop, and rows after the last group with what
// they were.
func TestMatMulGroups(t *testing.T) {
	nightly.Long(t)
	eachType(t, func(t *testing.T, dt device.DType) {
		for _, sizes := range [][]int{groupSizes, {0, 130, 0}, {5}, {200, 3, 100, 90, 127, 128, 60}} {
			for form := range 4 {
				trans, add, N, K := form&1 > 0, form&2 > 0, 40, 66
				var want []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(1, uint64(form)))
					offsets, P := offsetsOf(sizes)
					rows, cols := K, N
					if trans {
						rows, cols = N, K
					}
					c, a := newMat(dt, P+3, N).normal(rng, 0, 1), newMat(dt, P+3, K).normal(rng, 0, 1)
					all, b := groupOf(dt, len(sizes), rows, cols)
					all.normal(rng, 0, 1)
					b.Trans = trans
					want = c.values()
					at := 0
					for g, n := range sizes {
						for i, v := range productOf(a.RowRange(at, at+n), b.At(g)) {
							if !add {
								want[at*N+i] = 0
							}
							want[at*N+i] += v
						}
						at += n
					}
					q.MatMulGroups(c.Mat, a.Mat, b, offsets.Buf, add)
					return []*guarded{c}
				})
				near(t, fmt.Sprintf("groups %v, transposed %v, added %v", sizes, trans, add), out[0], want, 4e-6)
			}
		}
	})
}

// TestWeightGradGroups compares gradients of groups with a slow loop: without rows, zeros or the old
// ones, and nothing between matrices.
func TestWeightGradGroups(t *testing.T) {
	nightly.Long(t)
	eachType(t, func(t *testing.T, dt device.DType) {
		for _, sizes := range [][]int{groupSizes, {0, 130, 0}, {5}, {200, 3, 100, 90, 127, 128, 60}} {
			for _, add := range []bool{false, true} {
				M, N := 34, 40
				var want []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(2, 3))
					offsets, P := offsetsOf(sizes)
					dy, x := newMat(dt, P+2, M).normal(rng, 0, 1), newMat(dt, P+2, N).normal(rng, 0, 1)
					all, dw := groupOf(device.F32, len(sizes), M, N)
					all.normal(rng, 0, 1)
					want = all.values()
					rows, columns, at := dy.values(), x.values(), 0
					for g, n := range sizes {
						for i := range M {
							for j := range N {
								sum := 0.0
								for r := at; r < at+n; r++ {
									sum += rows[r*M+i] * columns[r*N+j]
								}
								if add {
									sum += want[(g*(M+1)+i)*N+j]
								}
								want[(g*(M+1)+i)*N+j] = sum
							}
						}
						at += n
					}
					q.WeightGradGroups(dw, dy.Mat, x.Mat, offsets.Buf, add)
					return []*guarded{all}
				})
				near(t, fmt.Sprintf("groups %v, added %v", sizes, add), out[0], want, 4e-6)
			}
		}
	})
}

// pairsOf returns K experts of each row, ascending, of E.
func pairsOf(rng *rand.Rand, R, K, E int) *guarded {
	var all []int
	for range R {
		row := rng.Perm(E)[:K]
		slices.Sort(row)
		all = append(all, row...)
	}
	return newVec(device.I32, R*K).fill(func(i int) float64 { return float64(all[i]) })
}

// TestSortAndGather compares the sort with a stable sort of all pairs, and gathers and sums rows by it.
func TestSortAndGather(t *testing.T) {
	const R, K, C = 70, 3, 37
	eachType(t, func(t *testing.T, dt device.DType) {
		for _, of := range []struct{ E, first, groups int }{{8, 0, 8}, {8, 3, 4}, {3, 0, 3}, {9, 8, 1}, {4, 7, 2}} {
			var places, pairs []int // pairs in the order of the sort; places of the pairs
			var x0, base0, gathered, sums []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				rng := rand.New(rand.NewPCG(4, uint64(of.E)))
				experts := pairsOf(rng, R, K, of.E)
				order, at, offsets := newVec(device.I32, R*K), newVec(device.I32, R*K), newVec(device.I32, of.groups+1)
				x, y := newMat(dt, R, C).normal(rng, 0, 1), newMat(dt, R*K, C).fill(func(int) float64 { return 5 })
				base, sum := newMat(dt, R, C).normal(rng, 0, 1), newMat(dt, R, C)
				x0, base0 = x.values(), base.values()
				q.Sort(order.Buf, at.Buf, offsets.Buf, experts.Buf, of.first)
				q.GatherRows(y.Mat, x.Mat, order.Buf)
				q.SumGroups(sum.Mat, base.Mat, y.Mat, at.Buf)
				return []*guarded{order, at, offsets, experts, y, sum}
			})
			experts := out[3].values()
			pairs, places = nil, make([]int, R*K)
			ends := []float64{0}
			for g := range of.groups {
				for i, e := range experts {
					if int(e) == of.first+g {
						pairs = append(pairs, i)
					}
				}
				ends = append(ends, float64(len(pairs)))
			}
			for i := range places {
				places[i] = slices.Index(pairs, i)
			}
			for i := range R * K {
				for j := range C {
					if i < len(pairs) {
						gathered = append(gathered, x0[pairs[i]/K*C+j])
					} else {
						gathered = append(gathered, 5)
					}
				}
			}
			for i := range R {
				for j := range C {
					sum := base0[i*C+j]
					for _, p := range places[i*K : (i+1)*K] {
						if p >= 0 {
							sum += gathered[p*C+j]
						}
					}
					sums = append(sums, sum)
				}
			}
			for i, p := range out[0].values() {
				if i < len(pairs) && int(p) != pairs[i] || i >= len(pairs) && p != -1 {
					t.Fatalf("%+v: pair %g is at %d of %v", of, p, i, pairs)
				}
			}
			for i, p := range out[1].values() {
				if int(p) != places[i] {
					t.Fatalf("%+v: pair %d is at %g, want %d", of, i, p, places[i])
				}
			}
			if !slices.Equal(out[2].values(), ends) {
				t.Fatalf("%+v: offsets %v, want %v", of, out[2].values(), ends)
			}
			near(t, "gathered rows", out[4], gathered, 0)
			near(t, "sums", out[5], sums, 1e-7)
		}
	})
}

var gates = map[device.Activation][2]func(x float64) float64{
	device.Silu: {silu64, siluSlope64},
	device.Relu: {func(x float64) float64 { return max(0, x) }, func(x float64) float64 {
		if x > 0 {
			return 1
		}
		return 0
	}},
}

// TestGateRows compares gates with factors of rows, and their gradients, with slow loops. Their
// results may be operands.
func TestGateRows(t *testing.T) {
	const rows, sorted, cols = 9, 7, 1100
	eachType(t, func(t *testing.T, dt device.DType) {
		for f, of := range gates {
			var y0, dgate0, dup0, dw0 []float64
			out := onWorkers(t, func(q *Queue) []*guarded {
				rng := rand.New(rand.NewPCG(5, 6))
				gate, up, dy := newMat(dt, rows, cols).normal(rng, 0, 2), newMat(dt, rows, cols).normal(rng, 0, 1), newMat(dt, rows, cols).normal(rng, 0, 1)
				weights := newVec(device.F32, rows).normal(rng, 0.3, 0.1)
				order := newVec(device.I32, rows).fill(func(i int) float64 {
					if i >= sorted {
						return -1
					}
					return float64((i * 4) % rows)
				})
				y, dw := newMat(dt, rows, cols).fill(func(int) float64 { return 3 }), newVec(device.F32, rows).fill(func(int) float64 { return 3 })
				y0, dgate0, dup0, dw0 = y.values(), gate.values(), up.values(), dw.values()
				dys := dy.values()
				for i := range sorted {
					pair := (i * 4) % rows
					dw0[pair] = 0
					for at := i * cols; at < (i+1)*cols; at++ {
						g, u, w := dgate0[at], dup0[at], value(weights.Buf, pair)
						dw0[pair] += dys[at] * of[0](g) * u
						y0[at] = w * of[0](g) * u
						dgate0[at], dup0[at] = w*dys[at]*u*of[1](g), w*dys[at]*of[0](g)
					}
				}
				q.GateRows(y.Mat, gate.Mat, up.Mat, f, weights.Buf, order.Buf)
				q.GateRowsGrad(gate.Mat, up.Mat, dw.Buf, dy.Mat, gate.Mat, up.Mat, f, weights.Buf, order.Buf)
				return []*guarded{y, gate, up, dw}
			})
			near(t, f.String(), out[0], y0, 4e-7)
			near(t, f.String()+": dgate", out[1], dgate0, 6e-7)
			near(t, f.String()+": dup", out[2], dup0, 6e-7)
			near(t, f.String()+": dweights", out[3], dw0, 4e-6)
		}
	})
}

// TestOneExpert checks that a mixture with one expert has the bits of a dense MLP in float32.
func TestOneExpert(t *testing.T) {
	const R, C, F = 70, 48, 40
	q := queueOf(t, 2)
	rng := rand.New(rand.NewPCG(7, 8))
	mat := func(r, c int) device.Mat { return newGuarded(device.F32, r, c, 0).normal(rng, 0, 1).Mat }
	one := func(m device.Mat) device.MatGroup { return device.MatGroup{Mat: m, Stride: m.Rows * m.Cols} }
	x, up, down, dy := mat(R, C), mat(2*F, C), mat(C, F), mat(R, C)
	logits := mat(R, 1)
	var out [2][]device.Mat
	for i := range out {
		hidden, act, dact, dw, y, dx := mat(R, 2*F), mat(R, F), mat(R, F), mat(2*F, C), mat(R, C), mat(R, C)
		gate, value := hidden.Columns(0, F), hidden.Columns(F, 2*F)
		if i == 0 {
			q.MatMul(hidden, x, up.T(), device.Buffer{}, false)
			q.Gate(act, gate, value, device.Silu)
			q.MatMul(y, act, down.T(), device.Buffer{}, false)
			q.AddTo(y.Buf, y.Buf, x.Buf)
			q.MatMul(dact, dy, down, device.Buffer{}, false)
			q.GateGrad(gate, value, dact, gate, value, device.Silu)
			q.WeightGrad(dw, device.Buffer{}, hidden, x)
			q.MatMul(dx, hidden, up, device.Buffer{}, false)
		} else {
			experts, order, at, offsets := newVec(device.I32, R).Buf, newVec(device.I32, R).Buf, newVec(device.I32, R).Buf, newVec(device.I32, 2).Buf
			weights, dweights := newVec(device.F32, R).Buf, newVec(device.F32, R).Buf
			xs, ys := mat(R, C), mat(R, C)
			q.Route(experts, weights, logits, device.Buffer{}, device.Router{TopK: 1, Normalize: true, Scale: 1})
			q.Sort(order, at, offsets, experts, 0)
			q.GatherRows(xs, x, order)
			q.MatMulGroups(hidden, xs, one(up).T(), offsets, false)
			q.GateRows(act, gate, value, device.Silu, weights, order)
			q.MatMulGroups(ys, act, one(down).T(), offsets, false)
			q.SumGroups(y, x, ys, at)
			q.GatherRows(ys, dy, order)
			q.MatMulGroups(dact, ys, one(down), offsets, false)
			q.GateRowsGrad(gate, value, dweights, dact, gate, value, device.Silu, weights, order)
			q.WeightGradGroups(one(dw), hidden, xs, offsets, false)
			q.MatMulGroups(xs, hidden, one(up), offsets, false)
			q.SumGroups(dx, device.Mat{}, xs, at)
		}
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		out[i] = []device.Mat{y, act, hidden, dw, dx}
	}
	for i, name := range []string{"y", "act", "dhidden", "dw", "dx"} {
		if !bytes.Equal(out[0][i].Buf.Raw(), out[1][i].Buf.Raw()) {
			t.Errorf("%s: other bits than those of a dense MLP", name)
		}
	}
}

// TestLargeGradientGroups checks that gradients of groups that are written past the caches have the bits of others.
func TestLargeGradientGroups(t *testing.T) {
	const N, K = 1024, 528 // the last tiles of a row are cut
	rng, q := rand.New(rand.NewPCG(9, 1)), queueOf(t, 2)
	sizes := []int{33, 0, 128, 300}
	offsets, rows := offsetsOf(sizes)
	x, dy, all := aligned(rng, device.BF16, rows, K), aligned(rng, device.BF16, rows, N), aligned(rng, device.F32, 4*N, K)
	q.WeightGradGroups(device.MatGroup{Mat: device.Mat{Buf: all.Buf, Rows: N, Cols: K, Ld: K}, Stride: N * K}, dy, x, offsets.Buf, false)
	for at, i := 0, 0; i < len(sizes); i++ {
		want := newGuarded(device.F32, N, K, 0).fill(func(int) float64 { return 0 }).Mat
		if sizes[i] > 0 {
			q.WeightGrad(want, device.Buffer{}, dy.RowRange(at, at+sizes[i]), x.RowRange(at, at+sizes[i]))
		}
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(all.RowRange(i*N, (i+1)*N).Buf.Raw(), want.Buf.Raw()) {
			t.Errorf("group %d of %d rows: other bits than those of one product", i, sizes[i])
		}
		at += sizes[i]
	}
}

// TestGroupsAreChecked checks that operands that do not fit are refused.
func TestGroupsAreChecked(t *testing.T) {
	q := queueOf(t, 1)
	_, b := groupOf(device.F32, 2, 4, 4)
	a, c := newMat(device.F32, 6, 4), newMat(device.F32, 6, 4)
	three, i32 := newVec(device.I32, 4).Buf, newVec(device.I32, 6).Buf
	weights := newVec(device.F32, 6).Buf
	mustPanic(t, "a group too many", func() { q.MatMulGroups(c.Mat, a.Mat, b, three, false) })
	mustPanic(t, "overlapping matrices", func() { q.MatMulGroups(c.Mat, a.Mat, device.MatGroup{Mat: b.Mat, Stride: 3}, three.Slice(0, 3), false) })
	mustPanic(t, "pairs that no rows have", func() { q.GatherRows(c.Mat, newMat(device.F32, 4, 4).Mat, i32) })
	for _, r := range []device.Router{{}, {TopK: 5}, {TopK: 1, Groups: 3, TopGroups: 1, GroupBest: 1}, {TopK: 3, Groups: 2, TopGroups: 1, GroupBest: 1}} {
		mustPanic(t, fmt.Sprintf("%+v", r), func() { q.Route(i32, weights, a.Mat, device.Buffer{}, r) })
	}
}
