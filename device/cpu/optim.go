package cpu

import (
	"math"

	"zeroth/device"
)

// update issues a rule over the blocks of w (master copy), g (gradient) and
// the states, all float32 and of equal length; p, if not empty, receives w
// rounded to its type. A state may be empty where the rule allows it.
func (q *Queue) update(t *task, run func(*task, *worker, int, int), w, p, g, m, v device.Buffer) {
	wantLen(t.name, g, device.F32, w.N)
	wantLen(t.name, w, device.F32, g.N)
	if p.N != 0 {
		wantVec(t.name, p, w.N)
	}
	t.b[0], t.b[1], t.b[2], t.b[3], t.b[4] = w, p, g, m, v
	q.kernel(t, run, blocks(w.N), pieceWork/blockLen)
}

// part is the elements of blocks [lo, hi) of a float32 operand of update; none
// of an empty one.
func (t *task) part(i, lo, hi int) []float32 {
	b := t.b[i]
	if b.N == 0 {
		return nil
	}
	return b.Slice(lo*blockLen, min(hi*blockLen, b.N)).F32()
}

// publish rounds the blocks [lo, hi) of w into p.
func (t *task) publish(w []float32, lo int) {
	if t.b[1].N != 0 {
		at := lo * blockLen
		store(t.b[1].Slice(at, at+len(w)), w)
	}
}

// AdamW is one step of Adam with decoupled decay; see device.AdamW.
func (q *Queue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	wantLen("adamw", m, device.F32, w.N)
	wantLen("adamw", v, device.F32, w.N)
	t := q.issue("adamw")
	t.adamw = a
	q.update(t, runAdamW, w, p, g, m, v)
}

func runAdamW(t *task, _ *worker, lo, hi int) {
	for b := lo; b < hi; b++ {
		w := t.part(0, b, b+1)
		adamW(w, t.part(2, b, b+1), t.part(3, b, b+1), t.part(4, b, b+1), &t.adamw)
		t.publish(w, b)
	}
}

func adamW(w, g, m, v []float32, a *device.AdamW) {
	n := len(w)
	g, m, v = g[:n], m[:n], v[:n]
	b1, b2, c1, c2 := a.Beta1, a.Beta2, 1-a.Beta1, 1-a.Beta2
	scale, l2, shrink, step, root, eps := a.GradScale, a.L2, a.Shrink, a.Step, a.RootC2, a.Eps
	for i, x := range w {
		d := g[i]*scale + l2*x
		mi := b1*m[i] + c1*d
		vi := b2*v[i] + c2*d*d
		m[i], v[i] = mi, vi
		w[i] = x*shrink - step*mi/(float32(math.Sqrt(float64(vi)))*root+eps)
	}
}

// SGD is one step of stochastic gradient descent; see device.SGD. Without
// momentum m may be empty.
func (q *Queue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	if m.N != 0 || a.Momentum != 0 {
		wantLen("sgd", m, device.F32, w.N)
	}
	t := q.issue("sgd")
	t.sgd = a
	q.update(t, runSGD, w, p, g, m, device.Buffer{})
}

func runSGD(t *task, _ *worker, lo, hi int) {
	a := &t.sgd
	for b := lo; b < hi; b++ {
		w, g, m := t.part(0, b, b+1), t.part(2, b, b+1), t.part(3, b, b+1)
		for i, x := range w {
			d := g[i]*a.GradScale + a.Decay*x
			if m != nil {
				d = a.Momentum*m[i] + d
				m[i] = d
			}
			w[i] = x - a.LR*d
		}
		t.publish(w, b)
	}
}

// Lion is one step of Lion; see device.Lion. The sign of 0 is 0.
func (q *Queue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	wantLen("lion", m, device.F32, w.N)
	t := q.issue("lion")
	t.lion = a
	q.update(t, runLion, w, p, g, m, device.Buffer{})
}

func runLion(t *task, _ *worker, lo, hi int) {
	a := &t.lion
	c1, c2 := 1-a.Beta1, 1-a.Beta2
	for b := lo; b < hi; b++ {
		w, g, m := t.part(0, b, b+1), t.part(2, b, b+1), t.part(3, b, b+1)
		for i, x := range w {
			d := g[i] * a.GradScale
			u := sign(a.Beta1*m[i] + c1*d)
			m[i] = a.Beta2*m[i] + c2*d
			w[i] = x*a.Shrink - a.LR*u
		}
		t.publish(w, b)
	}
}

// sign is 1, -1 or 0; NaN stays NaN, so that a bad gradient shows. Its branch
// is nearly never taken, unlike one on the sign.
func sign(x float32) float32 {
	if x == 0 || x != x {
		return x
	}
	return math.Float32frombits(math.Float32bits(x)&(1<<31) | 0x3f800000)
}
