// Package dry implements a device that only counts: it runs the real schedule without memory or
// arithmetic, to determine how many bytes each category needs.
package dry

import "zeroth/device"

// Device counts the bytes that would be allocated. Its buffers have no memory. It may be used from
// one goroutine only.
type Device struct {
	Host  bool // it represents memory that the host can address
	usage device.Usage
}

// Alloc implements device.Device; it never fails.
func (d *Device) Alloc(t device.DType, n int, use device.Use) (device.Buffer, error) {
	b := device.Buffer{Type: t, Host: d.Host, Use: use, N: n}
	d.usage.Add(use, int64(b.Bytes()))
	return b, nil
}

// Free implements device.Device.
func (d *Device) Free(b device.Buffer) { d.usage.Add(b.Use, -int64(b.Bytes())) }

// Usage implements device.Device.
func (d *Device) Usage() device.Usage { return d.usage }

// Queue accepts all work and does nothing.
type Queue struct{}

func (Queue) Name() string            { return "" }
func (Queue) Trace(func(device.Span)) {}
func (Queue) Close()                  {}

func (Queue) Do(func() error)                                         {}
func (Queue) Call(string, func() error)                               {}
func (Queue) Copy(_, _ device.Buffer)                                 {}
func (Queue) Mark() (e device.Event)                                  { return }
func (Queue) After(device.Event)                                      {}
func (Queue) Wait() error                                             { return nil }
func (Queue) Label(string)                                            {}
func (Queue) Labelled() string                                        { return "" }
func (Queue) Zero(device.Buffer)                                      {}
func (Queue) CopyAll(string, []device.Buffer, []device.Buffer)        {}
func (Queue) SumAll(string, []device.Buffer, []device.Buffer)         {}
func (Queue) Cast(_, _ device.Buffer)                                 {}
func (Queue) Decode(_ device.Mat, _ device.Buffer, _ device.Code)     {}
func (Queue) Activate(_, _ device.Buffer, _ device.Activation)        {}
func (Queue) ActivateGrad(_, _, _ device.Buffer, _ device.Activation) {}
func (Queue) Mul(_, _, _ device.Buffer)                               {}
func (Queue) AddScalar(_, _ device.Buffer, _ float32)                 {}
func (Queue) Scale(device.Buffer, float32)                            {}
func (Queue) Axpby(_, _, _, _ device.Buffer, _, _ float32)            {}
func (Queue) Normalize(_, _ device.Buffer, _ float32)                 {}
func (Queue) CopyBlock(_, _ device.Mat)                               {}
func (Queue) AddTo(_, _, _ device.Buffer)                             {}
func (Queue) Dropout(_, _, _ device.Buffer, _ device.Dropout)         {}

func (Queue) MatMul(_, _, _ device.Mat, _ device.Buffer, _ bool)                            {}
func (Queue) SumRows(device.Buffer, device.Mat)                                             {}
func (Queue) MatMulOnto(_, _, _, _ device.Mat, _ device.Buffer)                             {}
func (Queue) MatMulActivate(_, _, _, _ device.Mat, _ device.Buffer, _ device.Activation)    {}
func (Queue) MatMulActivateGrad(_, _, _, _ device.Mat, _ device.Activation)                 {}
func (Queue) WeightGrad(_ device.Mat, _ device.Buffer, _, _ device.Mat)                     {}
func (Queue) CrossEntropy(device.Buffer, device.Mat, device.Buffer, float32)                {}
func (Queue) CrossEntropyGrad(_ device.Buffer, _ device.Mat, _ device.Buffer, _, _ float32) {}
func (Queue) Sum(_, _ device.Buffer)                                                        {}
func (Queue) SumSquares(_, _ device.Buffer)                                                 {}
func (Queue) AdamW(_, _, _, _, _ device.Buffer, _ device.AdamW)                             {}
func (Queue) AdamW8(_, _, _, _, _ device.Buffer, _ device.AdamW)                            {}
func (Queue) SGD(_, _, _, _ device.Buffer, _ device.SGD)                                    {}
func (Queue) Lion(_, _, _, _ device.Buffer, _ device.Lion)                                  {}
func (Queue) Embed(_, _, _ device.Mat, _ device.Vocab, _ device.Buffer, _ int, _ device.Buffer) {
}
func (Queue) EmbedGrad(_, _, _ device.Mat, _ device.Vocab, _ device.Buffer, _ int, _ device.Buffer, _ bool) {
}
func (Queue) CrossEntropyPart(_ device.Buffer, _ device.Mat, _ device.Vocab, _ device.Buffer, _ float32) {
}
func (Queue) CrossEntropyMerge(_, _ device.Buffer, _ device.Mat, _ device.Vocab, _ device.Buffer, _, _ float32, _ bool) {
}
func (Queue) LayerNorm(_ device.Mat, _, _ device.Buffer, _ device.Mat, _, _ device.Buffer, _ float32) {
}
func (Queue) LayerNormGrad(_ device.Mat, _, _ device.Buffer, _, _ device.Mat, _, _, _ device.Buffer, _ bool) {
}
func (Queue) RMSNorm(_ device.Mat, _ device.Buffer, _ device.Mat, _ device.Buffer, _ float32) {}
func (Queue) RMSNormGrad(_ device.Mat, _ device.Buffer, _, _ device.Mat, _, _ device.Buffer, _ bool) {
}
func (Queue) Route(_, _ device.Buffer, _ device.Mat, _ device.Buffer, _ device.Router)     {}
func (Queue) RouteGrad(_, _ device.Mat, _, _, _ device.Buffer, _ device.Router)            {}
func (Queue) Balance(_, _ device.Mat, _ device.Buffer, _ int)                              {}
func (Queue) BalanceTotal(_, _ device.Buffer, _ int)                                       {}
func (Queue) BalanceGrad(_, _ device.Mat, _, _ device.Buffer, _ float32)                   {}
func (Queue) Sort(_, _, _, _ device.Buffer, _ int)                                         {}
func (Queue) GatherRows(_, _ device.Mat, _ device.Buffer)                                  {}
func (Queue) SumGroups(_, _, _ device.Mat, _ device.Buffer)                                {}
func (Queue) MatMulGroups(_, _ device.Mat, _ device.MatGroup, _ device.Buffer, _ bool)     {}
func (Queue) WeightGradGroups(_ device.MatGroup, _, _ device.Mat, _ device.Buffer, _ bool) {}
func (Queue) GateRows(_, _, _ device.Mat, _ device.Activation, _, _ device.Buffer)         {}
func (Queue) GateRowsGrad(_, _ device.Mat, _ device.Buffer, _, _, _ device.Mat, _ device.Activation, _, _ device.Buffer) {
}
func (Queue) Rope(device.Mat, device.Rope, bool)                                         {}
func (Queue) Gate(_, _, _ device.Mat, _ device.Activation)                               {}
func (Queue) GateGrad(_, _, _, _, _ device.Mat, _ device.Activation)                     {}
func (Queue) Attention(_ device.Mat, _ device.Buffer, _, _, _ device.Mat, _ device.Attn) {}
func (Queue) AttentionGrad(_, _, _ device.Mat, _ device.Buffer, _, _ device.Mat, _ device.Buffer, _, _, _ device.Mat, _ device.Attn) {
}
