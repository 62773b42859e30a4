package nn

import (
	"math"
	"slices"
	"strings"

	"zeroth/shard"
)

// LoRA adds low-rank adapters to linear layers (Hu et al., arXiv 2106.09685). An adapted layer adds
// Scale · x·Aᵀ·Bᵀ to its output, with A (Rank, in) and B (out, Rank). Their parameters have PEFT's
// names: the layer's name with lora_A.weight and lora_B.weight. B starts at 0, A with the variance
// of PEFT's.
type LoRA struct {
	Rank       int // 0: no adapters
	Alpha      float64
	Stabilized bool     // rsLoRA (Kalajdzievski, arXiv 2312.03732); see Scale
	Targets    []string // suffixes of layers' names: "q_proj", "attn.c_proj"; or only AllLinear
}

// Scale returns the factor of adapters: Alpha/Rank or, if Stabilized, Alpha/√Rank.
func (l LoRA) Scale() float64 {
	if l.Stabilized {
		return l.Alpha / math.Sqrt(float64(l.Rank))
	}
	return l.Alpha / float64(l.Rank)
}

// AllLinear targets every linear layer of the blocks.
const AllLinear = "all-linear"

// Targeted reports whether the linear layer with this name has an adapter.
func (l LoRA) Targeted(name string) bool {
	return l.Rank > 0 && slices.ContainsFunc(l.Targets, func(t string) bool {
		return t == AllLinear || name == t || strings.HasSuffix(name, "."+t)
	})
}

// IsAdapter reports whether a parameter belongs to an adapter.
func IsAdapter(name string) bool {
	return strings.HasSuffix(name, ".lora_A.weight") || strings.HasSuffix(name, ".lora_B.weight")
}

// params returns the matrices A and B of the adapter of a layer.
func (l LoRA) params(layer string, in, out int) (a, b shard.Param) {
	a = weight(layer+".lora_A.weight", float32(1/math.Sqrt(3*float64(in))), l.Rank, in)
	return a, weight(layer+".lora_B.weight", 0, out, l.Rank)
}

// attach gives a layer the adapter with the matrices down (A) and up (B).
func (l LoRA) attach(to *linear, down, up rows) {
	to.down, to.up, to.rank, to.scale = down, up, l.Rank, float32(l.Scale())
}
