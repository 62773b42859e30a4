package kernel

import (
	"math"

	"zeroth/device"
)

// Elementwise functions implemented in Go on every instruction set.

// Mul computes a*b and AddScalar computes a+s.
var (
	Mul       = [3]EachFunc{eachGo(func(a, b, _ float32) float32 { return a * b })}
	AddScalar = [3]EachFunc{eachGo(func(a, _, s float32) float32 { return a + s })}
)

// Activations and ActivationGrads are indexed by activation and compute f(a) and b*f'(a). VecISA
// has faster versions for GeluTanh.
var (
	Activations = [...][3]EachFunc{
		device.GeluErf: {eachGo(func(a, _, _ float32) float32 { return float32(float64(a) * normal(float64(a))) })},
		device.Relu:    {eachGo(func(a, _, _ float32) float32 { return max(a, 0) })},
		device.Silu:    {eachGo(func(a, _, _ float32) float32 { return Silu(a) })},
		device.Tanh:    {eachGo(func(a, _, _ float32) float32 { return float32(math.Tanh(float64(a))) })},
	}
	ActivationGrads = [...][3]EachFunc{
		device.GeluErf: {eachGo(geluErfGrad)},
		device.Relu:    {eachGo(reluGrad)},
		device.Silu:    {eachGo(siluGrad)},
		device.Tanh:    {eachGo(tanhGrad)},
	}
)

// normal returns the distribution function of the standard normal distribution.
func normal(x float64) float64 { return (1 + math.Erf(x/math.Sqrt2)) / 2 }

func geluErfGrad(a, b, _ float32) float32 {
	x := float64(a)
	return float32(float64(b) * (normal(x) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)))
}

func reluGrad(a, b, _ float32) float32 {
	if a > 0 {
		return b
	}
	return 0
}

func siluGrad(a, b, _ float32) float32 {
	_, slope := SiluSlope(a)
	return b * slope
}

func tanhGrad(a, b, _ float32) float32 {
	y := math.Tanh(float64(a))
	return float32(float64(b) * (1 - y*y))
}
