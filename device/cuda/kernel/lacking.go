package kernel

import (
	"fmt"

	"zeroth/device"
)

// What has no kernel yet. A job that needs it is refused before it begins (see
// job/build); whoever calls it all the same has not asked.

func lacks(what string) { panic("cuda: there is no kernel for " + what) }

// Activate sets y = f(x), of GeluTanh alone; y may be x.
func (o *Ops) Activate(y, x device.Buffer, f device.Activation) {
	if f != device.GeluTanh {
		lacks(f.String())
	}
	o.Gelu(y, x)
}

// ActivateGrad sets dx = dy*f'(x), of GeluTanh alone; dx may be dy.
func (o *Ops) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	if f != device.GeluTanh {
		lacks(f.String())
	}
	o.GeluGrad(dx, x, dy)
}

// Mul is not there.
func (o *Ops) Mul(_, _, _ device.Buffer) { lacks("products element by element") }

// AddScalar is not there.
func (o *Ops) AddScalar(_, _ device.Buffer, s float32) { lacks(fmt.Sprintf("the sum with %g", s)) }
