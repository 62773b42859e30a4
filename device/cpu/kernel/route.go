package kernel

import "zeroth/device"

// best are the largest of some numbers, in descending order; of equal ones, those that came first.
type best struct {
	n, most int
	value   [device.MaxTopK]float32
	index   [device.MaxTopK]int32
}

// put adds a number.
func (b *best) put(value float32, index int) {
	if b.n == b.most && !(value > b.value[b.n-1]) {
		return
	}
	if b.n < b.most {
		b.n++
	}
	i := b.n - 1
	for ; i > 0 && value > b.value[i-1]; i-- {
		b.value[i], b.index[i] = b.value[i-1], b.index[i-1]
	}
	b.value[i], b.index[i] = value, int32(index)
}

// sorted returns the indices in ascending order.
func (b *best) sorted() []int32 {
	is := b.index[:b.n]
	for i := range is { // few, and half sorted
		for ; i > 0 && is[i] < is[i-1]; i-- {
			is[i], is[i-1] = is[i-1], is[i]
		}
	}
	return is
}

// RunRoute routes rows [lo, hi).
func RunRoute(t *Args, w *Worker, lo, hi int) {
	logits, r, E := &t.M[0], &t.Router, t.M[0].Cols
	mem := w.Floats(2 * E)
	choice, bias := mem[:E], mem[E:]
	if clear(bias); r.Bias {
		Load(bias, t.B[2])
	}
	var chosen best
	for i := lo; i < hi; i++ {
		row, choices := rowOf(logits, i, E).F32(), choice
		s := scoring(r, row)
		if r.ByLogits() {
			choices = row
		} else {
			for j, l := range row {
				choice[j] = s.of(l) + bias[j]
			}
		}
		choose(&chosen, r, choices)
		experts := t.B[0].I32()[i*r.TopK : (i+1)*r.TopK]
		copy(experts, chosen.sorted())
		weigh(t.B[1].F32()[i*r.TopK:(i+1)*r.TopK], r, s, row, experts)
	}
}

// choose sets chosen to the experts with the best choices.
func choose(chosen *best, r *device.Router, choices []float32) {
	*chosen = best{most: r.TopK}
	if r.Groups <= 1 {
		for j, v := range choices {
			chosen.put(v, j)
		}
		return
	}
	n := len(choices) / r.Groups
	groups := best{most: r.TopGroups}
	for g := range r.Groups {
		largest, sum := best{most: r.GroupBest}, float32(0)
		for j, v := range choices[g*n : (g+1)*n] {
			largest.put(v, j)
		}
		for _, v := range largest.value[:largest.n] {
			sum += v
		}
		groups.put(sum, g)
	}
	for _, g := range groups.sorted() {
		for j, v := range choices[int(g)*n : (int(g)+1)*n] {
			chosen.put(v, int(g)*n+j)
		}
	}
}

// score computes the scores of a row: exp(l-top)/sum, or 1/(1+exp(-l)) if sum is 0.
type score struct{ top, sum float32 }

func scoring(r *device.Router, row []float32) (s score) {
	if r.Score == device.Softmax {
		s.top = Largest(row)
		sum := 0.0
		for _, l := range row {
			sum += float64(Exp32(l - s.top))
		}
		s.sum = float32(sum)
	}
	return s
}

func (s score) of(l float32) float32 {
	if s.sum == 0 {
		return 1 / (1 + Exp32(-l))
	}
	return Exp32(l-s.top) / s.sum
}

// weigh sets the weights of a row's experts.
func weigh(weights []float32, r *device.Router, s score, row []float32, experts []int32) {
	for j, e := range experts {
		weights[j] = s.of(row[e])
	}
	by := r.Scale
	if r.Normalize {
		by = r.Scale / divisor(weights, r)
	}
	for j := range weights {
		weights[j] *= by
	}
}

// divisor returns the sum of the scores of a row's experts, at least the floor.
func divisor(scores []float32, r *device.Router) float32 {
	sum := float32(0)
	for _, v := range scores {
		sum += v
	}
	return max(sum, r.Floor)
}

// RunRouteGrad computes the gradients of rows [lo, hi) of logits. With scores s of the chosen
// experts, of sum S, and weights w = Scale s/S, ds = (Scale dw - sum of dw w) / S; without
// normalization, or at the floor, S is a constant.
func RunRouteGrad(t *Args, w *Worker, lo, hi int) {
	dlogits, logits, r, E := &t.M[0], &t.M[1], &t.Router, t.M[1].Cols
	d := w.Floats(E)
	for i := lo; i < hi; i++ {
		pairs := func(b device.Buffer) device.Buffer { return b.Slice(i*r.TopK, (i+1)*r.TopK) }
		routeGrad(d, r, rowOf(logits, i, E).F32(), pairs(t.B[0]).I32(), pairs(t.B[1]).F32(), pairs(t.B[2]).F32())
		Store(rowOf(dlogits, i, E), d)
	}
}

// routeGrad sets d to the gradient of a row.
func routeGrad(d []float32, r *device.Router, row []float32, experts []int32, weights, dweights []float32) {
	s := scoring(r, row)
	var scores [device.MaxTopK]float32
	dot := 0.0
	for j, e := range experts {
		scores[j] = s.of(row[e])
		dot += float64(dweights[j]) * float64(weights[j])
	}
	S := float32(1)
	if r.Normalize {
		S = divisor(scores[:len(experts)], r)
	}
	if !r.Normalize || S == r.Floor {
		dot = 0
	}
	total := 0.0 // of the chosen s*ds
	clear(d)
	for j, e := range experts {
		d[e] = scores[j] * ((r.Scale*dweights[j] - float32(dot)) / S)
		total += float64(d[e])
	}
	if r.Score == device.Sigmoid {
		for _, e := range experts {
			d[e] *= s.of(-row[e]) // 1 minus the score
		}
		return
	}
	if r.Normalize && S != r.Floor { // the total is 0 but for rounding
		return
	}
	for j, l := range row {
		d[j] -= s.of(l) * float32(total)
	}
}

// RunBalance sets rows [lo, hi) of stats to ones for the largest logits, and then their softmax; rows of padding
// to zeros.
func RunBalance(t *Args, _ *Worker, lo, hi int) {
	stats, logits, target, E := &t.M[0], &t.M[1], t.B[0].I32(), t.M[1].Cols
	r, chosen := device.Router{TopK: t.T}, best{}
	for i := lo; i < hi; i++ {
		row, to := rowOf(logits, i, E).F32(), rowOf(stats, i, 2*E).F32()
		clear(to)
		if target[i] == Padding {
			continue
		}
		s := scoring(&r, row)
		choose(&chosen, &r, row)
		for _, e := range chosen.sorted() {
			to[e] = 1
		}
		for j, l := range row {
			to[E+j] = s.of(l)
		}
	}
}

// RunBalanceTotal replaces counts c of experts by the slopes E c / N^2 of the loss, for N rows, and adds the loss,
// on one worker.
func RunBalanceTotal(t *Args, _ *Worker, _, _ int) {
	sums, loss := t.B[0].F32(), t.B[1].F32()
	E, rows, sum := len(sums)/2, 0.0, 0.0
	for _, c := range sums[:E] {
		rows += float64(c) / float64(t.T)
	}
	for j, c := range sums[:E] {
		sums[j] = float32(float64(E) * float64(c) / max(1, rows*rows))
		sum += float64(sums[j]) * float64(sums[E+j])
	}
	loss[0] += float32(sum)
}

// RunBalanceGrad adds the gradients of rows [lo, hi).
func RunBalanceGrad(t *Args, w *Worker, lo, hi int) {
	dlogits, logits, target, slopes, E := &t.M[0], &t.M[1], t.B[0].I32(), t.B[1].F32(), t.M[1].Cols
	d, r := w.Floats(E), device.Router{}
	for i := lo; i < hi; i++ {
		if target[i] == Padding {
			continue
		}
		row, mean := rowOf(logits, i, E).F32(), 0.0
		s := scoring(&r, row)
		for j, l := range row {
			mean += float64(s.of(l)) * float64(slopes[j])
		}
		Load(d, rowOf(dlogits, i, E))
		for j, l := range row {
			d[j] += t.F * s.of(l) * (slopes[j] - float32(mean))
		}
		Store(rowOf(dlogits, i, E), d)
	}
}
