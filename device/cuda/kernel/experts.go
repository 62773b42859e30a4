package kernel

import "zeroth/device"

// Operations of a mixture of experts, which GPUs do not have yet.

const noExperts = "cuda: mixtures of experts are not supported on GPUs"

// Route panics.
func (o *Ops) Route(_, _ device.Buffer, _ device.Mat, _ device.Buffer, _ device.Router) {
	panic(noExperts)
}

// RouteGrad panics.
func (o *Ops) RouteGrad(_, _ device.Mat, _, _, _ device.Buffer, _ device.Router) { panic(noExperts) }

// Sort panics.
func (o *Ops) Sort(_, _, _, _ device.Buffer, _ int) { panic(noExperts) }

// GatherRows panics.
func (o *Ops) GatherRows(_, _ device.Mat, _ device.Buffer) { panic(noExperts) }

// SumGroups panics.
func (o *Ops) SumGroups(_, _, _ device.Mat, _ device.Buffer) { panic(noExperts) }

// MatMulGroups panics.
func (o *Ops) MatMulGroups(_, _ device.Mat, _ device.MatGroup, _ device.Buffer, _ bool) {
	panic(noExperts)
}

// WeightGradGroups panics.
func (o *Ops) WeightGradGroups(_ device.MatGroup, _, _ device.Mat, _ device.Buffer, _ bool) {
	panic(noExperts)
}

// GateRows panics.
func (o *Ops) GateRows(_, _, _ device.Mat, _ device.Activation, _, _ device.Buffer) { panic(noExperts) }

// GateRowsGrad panics.
func (o *Ops) GateRowsGrad(_, _ device.Mat, _ device.Buffer, _, _, _ device.Mat, _ device.Activation, _, _ device.Buffer) {
	panic(noExperts)
}
