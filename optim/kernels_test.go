package optim

import (
	"math"

	"zeroth/device"
)

// host implements the kernels as documented in device/kernels.go: float32 arithmetic, one
// element after the other.
type host struct{}

func (host) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	for i := range w.N {
		w, g, m, v := &w.F32()[i], g.F32()[i], &m.F32()[i], &v.F32()[i]
		g = g*a.GradScale + a.L2**w
		*m = a.Beta1**m + (1-a.Beta1)*g
		*v = a.Beta2**v + (1-a.Beta2)*g*g
		*w = *w*a.Shrink - a.Step**m/(float32(math.Sqrt(float64(*v)))*a.RootC2+a.Eps)
	}
	publish(p, w)
}

func (h host) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	wide := [2]device.Buffer{}
	for i, b := range []device.Buffer{m, v} {
		s := make([]float32, b.N, b.N+2)
		copy(device.Narrowed(s, b.Type).Raw(), b.Raw())
		device.Widen(s, b.Type)
		wide[i] = device.OfF32(s)
	}
	h.AdamW(w, p, g, wide[0], wide[1], a)
	copy(m.Raw(), device.Narrow(wide[0].F32(), m.Type).Raw())
	copy(v.Raw(), device.Narrow(wide[1].F32(), v.Type).Raw())
}

func (host) SGD(w, p, g, m device.Buffer, a device.SGD) {
	for i := range w.N {
		w := &w.F32()[i]
		step := g.F32()[i]*a.GradScale + a.Decay**w
		if m.N > 0 {
			step += a.Momentum * m.F32()[i]
			m.F32()[i] = step
		}
		*w -= a.LR * step
	}
	publish(p, w)
}

func (host) Lion(w, p, g, m device.Buffer, a device.Lion) {
	for i := range w.N {
		w, m := &w.F32()[i], &m.F32()[i]
		g := g.F32()[i] * a.GradScale
		u := a.Beta1**m + (1-a.Beta1)*g
		if u != 0 {
			u = float32(math.Copysign(1, float64(u)))
		}
		*m = a.Beta2**m + (1-a.Beta2)*g
		*w = *w*a.Shrink - a.LR*u
	}
	publish(p, w)
}

func (host) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	for i := range y.N {
		y.F32()[i] = alpha*a.F32()[i] + beta*b.F32()[i]
	}
	publish(p, y)
}

// publish copies the master to a float32 parameter.
func publish(p, w device.Buffer) {
	if p.N > 0 {
		copy(p.F32(), w.F32())
	}
}
