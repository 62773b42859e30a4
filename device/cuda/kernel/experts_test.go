//go:build cuda

package kernel

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"zeroth/device"
)

// router returns a random router of E experts.
func (b *bench) router(E int) device.Router {
	r := device.Router{Score: device.Score(b.rng.IntN(2)), TopK: 1 + b.rng.IntN(min(E, 8)), Normalize: b.flip(), Scale: 1.5}
	if b.flip() {
		r.Floor = 1e-20
	}
	if n := 4; E%n == 0 && E > n && b.flip() {
		r.Groups, r.TopGroups, r.GroupBest = n, 1+b.rng.IntN(n), 1+b.rng.IntN(2)
		r.TopK = min(r.TopK, r.TopGroups*E/n)
	}
	r.Bias = b.flip()
	return r
}

// TestRoutes also selects as many experts as a router may have.
func TestRoutes(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, E := 1+b.rng.IntN(20), []int{1, 8, 31, 64, 128}[i%5]
			r := b.router(E)
			if i == 3 {
				r = device.Router{TopK: 64, Scale: 1}
			}
			logits, bias := b.mat("logits", device.F32, rows, E, 2), b.vec("bias", b.float(), E, 0.1)
			experts, weights := b.make("experts", device.I32, 1, rows*r.TopK).bits(), b.make("weights", device.F32, 1, rows*r.TopK).near(1e-6)
			dweights, dlogits := b.vec("dweights", device.F32, rows*r.TopK, 1), b.make("dlogits", b.float(), rows, E).near(1e-5)
			return func(q operations) {
				q.Route(experts.Buf, weights.Buf, logits.Mat, bias.Buf, r)
				q.RouteGrad(dlogits.Mat, logits.Mat, experts.Buf, weights.Buf, dweights.Buf, r)
			}
		})
	}
}

// TestEqualScores checks ties, and rows that are not numbers, which select different experts.
func TestEqualScores(t *testing.T) {
	check(t, 1, func(b *bench) func(operations) {
		logits := b.make("logits", device.F32, 4, 70).fill(func(i int) float64 { return float64(i / 70 * (i % 3)) })
		experts, weights := b.make("experts", device.I32, 1, 4*40).bits(), b.make("weights", device.F32, 1, 4*40).near(1e-6)
		return func(q operations) {
			q.Route(experts.Buf, weights.Buf, logits.Mat, device.Buffer{}, device.Router{TopK: 40, Scale: 1})
		}
	})
	e := started(t)[0]
	e.reset()
	b := &bench{e: e}
	nan := b.makeWith("logits", device.F32, 1, 9, 0, 0).fill(func(i int) float64 { return math.NaN() })
	experts, weights := b.makeWith("experts", device.I32, 1, 3, 0, 0), b.makeWith("weights", device.F32, 1, 3, 0, 0)
	(&Ops{To: e}).Route(experts.Buf, weights.Buf, nan.Mat, device.Buffer{}, device.Router{TopK: 3, Scale: 1})
	if got := experts.Buf.I32(); e.err != nil || !slices.Equal(got, []int32{0, 1, 2}) {
		t.Errorf("%v selected: %v", got, e.err)
	}
}

// TestBalances has rows of padding.
func TestBalances(t *testing.T) {
	for i := range times(20) {
		check(t, uint64(i), func(b *bench) func(operations) {
			rows, E := 1+b.rng.IntN(20), []int{1, 8, 31, 64, 128}[i%5]
			k := 1 + b.rng.IntN(min(E, 8))
			logits, stats := b.mat("logits", device.F32, rows, E, 2), b.make("stats", device.F32, rows, 2*E).near(1e-6)
			dlogits, loss := b.mat("dlogits", b.float(), rows, E, 1e-2).near(1e-5), b.vec("loss", device.F32, 1, 1).near(1e-6)
			sums := b.vec("sums", device.F32, 2*E, 0).near(1e-6)
			target := b.make("target", device.I32, 1, rows)
			for j := range rows {
				target.Buf.I32()[j] = int32(b.rng.IntN(5) - 2)
			}
			for j := range 2 * E {
				sums.Buf.F32()[j] = float32(b.rng.IntN(9))
			}
			copy(target.before, target.Buf.Raw())
			copy(sums.before, sums.Buf.Raw())
			return func(q operations) {
				q.Balance(stats.Mat, logits.Mat, target.Buf, k)
				q.BalanceTotal(sums.Buf, loss.Buf, k)
				q.BalanceGrad(dlogits.Mat, logits.Mat, target.Buf, sums.Buf.Slice(0, E), 2)
			}
		})
	}
}

// choices returns K different experts of E for each row, ascending.
func (b *bench) choices(rows, K, E int) *operand {
	o := b.make("experts", device.I32, 1, rows*K)
	for i := range rows {
		row := b.rng.Perm(E)[:K]
		slices.Sort(row)
		for j, e := range row {
			o.Buf.I32()[i*K+j] = int32(e)
		}
	}
	copy(o.before, o.Buf.Raw())
	return o
}

// TestPairs sorts, gathers, gates and sums; some pairs may be of experts of other ranks.
func TestPairs(t *testing.T) {
	for i := range times(40) {
		check(t, uint64(i), func(b *bench) func(operations) {
			E := 1 + b.rng.IntN(40)
			rows, K := 1+b.rng.IntN(120), 1+b.rng.IntN(min(E, 5))
			first := b.rng.IntN(E)
			groups := 1 + b.rng.IntN(E-first)
			if b.flip() {
				first, groups = 0, E
			}
			cols, dt, n := []int{1, 5, 64, 200, 264}[b.rng.IntN(5)], b.float(), rows*K
			ints := func(what string, n int) *operand { return b.make(what, device.I32, 1, n).bits() }
			order, at, offsets, experts := ints("order", n), ints("at", n), ints("offsets", groups+1), b.choices(rows, K, E)
			x, y := b.mat("x", dt, rows, cols, 1), b.mat("y", dt, n, cols, 1).bits()
			base, sum := b.mat("base", b.float(), rows, cols, 1), b.make("sum", b.float(), rows, cols).near(1e-6)
			other := func(what string) *operand { return b.mat(what, b.float(), n, cols, 1).near(1e-6) }
			gate, up, act, dy := other("gate"), other("up"), other("act"), other("dy")
			weights, dweights := b.vec("weights", device.F32, n, 1), b.vec("dweights", device.F32, n, 1).near(1e-5)
			f := b.activation()
			if i%4 == 0 { // tanh-free functions of one type, in words
				gate, up, act, dy = b.aligned("gate", dt, n, 256, 1).near(1e-6), b.aligned("up", dt, n, 256, 1).near(1e-6), b.aligned("act", dt, n, 256, 1).near(1e-6), b.aligned("dy", dt, n, 256, 1)
			}
			return func(q operations) {
				q.Sort(order.Buf, at.Buf, offsets.Buf, experts.Buf, first)
				q.GatherRows(y.Mat, x.Mat, order.Buf)
				to := device.Mat{}
				if i%2 == 0 {
					to = base.Mat
				}
				q.SumGroups(sum.Mat, to, y.Mat, at.Buf)
				q.GateRows(act.Mat, gate.Mat, up.Mat, f, weights.Buf, order.Buf)
				q.GateRowsGrad(gate.Mat, up.Mat, dweights.Buf, dy.Mat, gate.Mat, up.Mat, f, weights.Buf, order.Buf)
			}
		})
	}
}

// offsets returns those of groups with these sizes.
func (b *bench) offsets(sizes ...int) (o *operand, rows int) {
	o = b.make("offsets", device.I32, 1, len(sizes)+1)
	for i, n := range sizes {
		o.Buf.I32()[i] = int32(rows)
		rows += n
	}
	o.Buf.I32()[len(sizes)] = int32(rows)
	copy(o.before, o.Buf.Raw())
	return o, rows
}

// TestProductsOfGroups compares kernels on tensor cores, for operands of one type in whole words, and
// those on ordinary cores.
func TestProductsOfGroups(t *testing.T) {
	sizes := [][]int{{0, 1, 7, 8, 9, 0, 63, 64, 65}, {0, 130, 0}, {3}, {260, 1}}
	for i := range times(40) {
		tensor, from := i%2 == 0, map[bool]int{false: launchesOf(t, false), true: launchesOf(t, true)}
		check(t, uint64(i), func(b *bench) func(operations) {
			offsets, P := b.offsets(sizes[i/2%len(sizes)]...)
			groups, rows, cols := offsets.Cols-1, 8*(1+b.rng.IntN(20)), 8*(1+b.rng.IntN(20))
			dt, to := []device.DType{device.BF16, device.F16}[b.rng.IntN(2)], device.F32
			if b.flip() {
				to = dt
			}
			mat := func(what string, dt device.DType, r, c int) *operand { return b.aligned(what, dt, r, c, 1) }
			if !tensor {
				rows, cols, dt, to = 1+b.rng.IntN(90), 1+b.rng.IntN(90), b.float(), b.float()
				mat = func(what string, dt device.DType, r, c int) *operand { return b.mat(what, dt, r, c, 1) }
			}
			add := b.flip()
			a, c := mat("a", dt, P+3, cols), mat("c", to, P+3, rows).near(3e-6)
			x, dx := mat("x", dt, P+3, rows), mat("dx", to, P+3, cols).near(3e-6)
			group := func(what string, dt device.DType) (*operand, device.MatGroup) {
				all := mat(what, dt, groups*(rows+1), cols)
				one := all.RowRange(0, rows)
				one.Buf = all.Buf
				stride := (rows + 1) * all.Ld
				return all, device.MatGroup{Mat: one, Stride: stride}
			}
			_, w := group("w", dt)
			all, dw := group("dw", device.F32)
			all.near(3e-6)
			return func(q operations) {
				q.MatMulGroups(c.Mat, a.Mat, w.T(), offsets.Buf, add)
				q.MatMulGroups(dx.Mat, x.Mat, w, offsets.Buf, add)
				q.WeightGradGroups(dw, x.Mat, a.Mat, offsets.Buf, add)
			}
		})
		if now := launchesOf(t, tensor) - from[tensor]; now != 3 || launchesOf(t, !tensor) != from[!tensor] {
			t.Fatalf("%d: %d launches on tensor cores: %v", i, now, tensor)
		}
	}
}

// launchesOf returns the launches of products of groups on tensor cores or on others.
func launchesOf(t *testing.T, tensor bool) (n int) {
	for name, count := range started(t)[0].launches {
		var form, typ string
		if is, _ := fmt.Sscanf(name, "groups_%2s_%s", &form, &typ); (is == 2) == tensor && (is == 2 || name == "groups_mul" || name == "groups_grad") {
			n += count
		}
	}
	return n
}
