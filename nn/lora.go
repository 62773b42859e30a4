package nn

import (
	"math"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/shard"
)

// LoRA is low-rank adapters beside linear layers (Hu et al., arXiv 2106.09685): to
// what a layer puts out comes Alpha/Rank · x·Aᵀ·Bᵀ, with A (Rank, in) and B (out,
// Rank). Their parameters are called as PEFT calls them: the layer's name with
// lora_A.weight and lora_B.weight. B begins at 0, A as PEFT's with the same variance.
type LoRA struct {
	Rank    int // 0: there are none
	Alpha   float64
	Targets []string // ends of layers' names: "q_proj", "attn.c_proj"; or AllLinear alone
}

// AllLinear targets every linear layer of the blocks.
const AllLinear = "all-linear"

// Targeted says whether the linear layer of a name has an adapter.
func (l LoRA) Targeted(name string) bool {
	return l.Rank > 0 && slices.ContainsFunc(l.Targets, func(t string) bool {
		return t == AllLinear || name == t || strings.HasSuffix(name, "."+t)
	})
}

// params are the adapter's of a layer with so many inputs and outputs.
func (l LoRA) params(name string, in, out int) (a, b shard.Param) {
	a = weight(name+".lora_A.weight", float32(1/math.Sqrt(3*float64(in))), l.Rank, in)
	return a, weight(name+".lora_B.weight", 0, out, l.Rank)
}

// IsAdapter says whether a parameter is an adapter's.
func IsAdapter(name string) bool {
	return strings.HasSuffix(name, ".lora_A.weight") || strings.HasSuffix(name, ".lora_B.weight")
}

// low is x·aᵀ, scaled: (R, Rank).
func (l LoRA) low(q Ops, mem Scratch, x, a device.Mat) device.Mat {
	u := device.Matrix(mem.Take(x.Buf.Type, x.Rows*l.Rank), x.Rows, l.Rank)
	q.MatMul(u, x, a.T(), device.Buffer{}, false)
	q.Scale(u.Buf, float32(l.Alpha/float64(l.Rank)))
	return u
}

// forward adds to y what the adapter makes of x.
func (l LoRA) forward(q Ops, mem Scratch, y, x, a, b device.Mat) {
	defer mem.Release(mem.Mark())
	q.MatMul(y, l.low(q, mem, x, a), b.T(), device.Buffer{}, true)
}

// upGrad sets the gradient of b.
func (l LoRA) upGrad(q Ops, mem Scratch, db, dy, x, a device.Mat) {
	defer mem.Release(mem.Mark())
	q.MatMul(db, dy.T(), l.low(q, mem, x, a), device.Buffer{}, false)
}

// downGrad sets that of a, or with add adds to it, where several layers share it.
func (l LoRA) downGrad(q Ops, mem Scratch, da, dy, x, b device.Mat, add bool) {
	defer mem.Release(mem.Mark())
	q.MatMul(da, l.low(q, mem, dy, b.T()).T(), x, device.Buffer{}, add)
}

// inputGrad adds to dx the gradient of x by way of the adapter.
func (l LoRA) inputGrad(q Ops, mem Scratch, dx, dy, a, b device.Mat) {
	defer mem.Release(mem.Mark())
	q.MatMul(dx, l.low(q, mem, dy, b.T()), a, device.Buffer{}, true)
}
