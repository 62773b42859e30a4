package nn

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// LoRA adds low-rank adapters to linear layers (Hu et al., arXiv 2106.09685). An adapted layer adds
// Scale · drop(x)·Aᵀ·Bᵀ to its output, with A (rank, in) and B (out, rank). Their parameters have
// PEFT's names: the layer's name with lora_A.weight and lora_B.weight. B starts at 0, A with the
// variance of PEFT's.
type LoRA struct {
	Rank       int // 0: no adapters
	Alpha      float64
	Stabilized bool      // rsLoRA (Kalajdzievski, arXiv 2312.03732); see Scale
	Dropout    float64   // of the input of an adapter in training; see Dropout
	Targets    []string  // suffixes of layers' names: "q_proj", "attn.c_proj"; or only AllLinear
	Ranks      []Pattern // of layers with another rank than Rank, at least 1
	Alphas     []Pattern // of layers with another alpha than Alpha
	Saved      []string  // suffixes of the names of modules that are trained and saved whole: "lm_head"
}

// Pattern gives layers a value. The first of several patterns that match a layer applies.
type Pattern struct {
	Name  string
	Value float64

	match *regexp.Regexp
}

// NewPattern returns a pattern for layers with the name, or a name that ends with it after a dot.
// The name may be a regular expression; one that is not well formed is an error.
func NewPattern(name string, value float64) (Pattern, error) {
	match, err := regexp.Compile(`^(.*\.)?(` + name + `)$`)
	if err != nil {
		return Pattern{}, fmt.Errorf("%q is not a name or a regular expression: %w", name, err)
	}
	return Pattern{name, value, match}, nil
}

// Matches reports whether the pattern gives a layer its value.
func (p Pattern) Matches(layer string) bool { return p.match.MatchString(layer) }

// valueOf returns the value of a layer, usual if no pattern matches it.
func valueOf(layer string, patterns []Pattern, usual float64) float64 {
	for _, p := range patterns {
		if p.Matches(layer) {
			return p.Value
		}
	}
	return usual
}

// RankOf returns the rank of a layer's adapter.
func (l LoRA) RankOf(layer string) int { return int(valueOf(layer, l.Ranks, float64(l.Rank))) }

// Scale returns the factor of a layer's adapter: alpha/rank or, if Stabilized, alpha/√rank.
func (l LoRA) Scale(layer string) float64 {
	rank := float64(l.RankOf(layer))
	if l.Stabilized {
		rank = math.Sqrt(rank)
	}
	return valueOf(layer, l.Alphas, l.Alpha) / rank
}

// AllLinear targets every linear layer of the blocks.
const AllLinear = "all-linear"

// Targeted reports whether the linear layer with this name has an adapter.
func (l LoRA) Targeted(name string) bool {
	return l.Rank > 0 && slices.ContainsFunc(l.Targets, func(t string) bool {
		return t == AllLinear || name == t || strings.HasSuffix(name, "."+t)
	})
}

// Saves reports whether a parameter belongs to a module that is trained and saved whole, or to a
// part of one.
func (l LoRA) Saves(param string) bool {
	if l.Rank == 0 || IsAdapter(param) {
		return false
	}
	for module := param; ; {
		dot := strings.LastIndexByte(module, '.')
		if dot < 0 {
			return false
		}
		module = module[:dot]
		if slices.ContainsFunc(l.Saved, func(s string) bool { return strings.HasSuffix(module, s) }) {
			return true
		}
	}
}

// Trains reports whether a parameter is trained together with adapters and saved with them.
func (l LoRA) Trains(param string) bool { return IsAdapter(param) || l.Saves(param) }

// IsAdapter reports whether a parameter belongs to an adapter.
func IsAdapter(name string) bool {
	return strings.HasSuffix(name, ".lora_A.weight") || strings.HasSuffix(name, ".lora_B.weight")
}

// attach gives the layers of f, if it is targeted, an adapter with parameters that it appends to
// those of the block. The place is counted over all layers of the model.
func (l LoRA) attach(to *params, f fused, c Cut, place int) {
	if !l.Targeted(f.name) {
		return
	}
	in, out := f.whole(c)
	rank, drop := l.RankOf(f.name), inputDropout{p: l.Dropout, place: placeAdapters + place}
	if f.inner {
		drop.first = c.Index * f.in
	}
	down := to.add(f.divide(c, weight(f.name+".lora_A.weight", float32(1/math.Sqrt(3*float64(in))), rank, in), -1, 1))
	f.cut(to.add(f.divide(c, weight(f.name+".lora_B.weight", 0, out, rank), 0, -1)), func(x *linear, up rows) {
		if x.up.exist() { // several parts are one layer
			up.lo = x.up.lo
		}
		x.down, x.up, x.rank, x.scale, x.drop = down, up, rank, float32(l.Scale(f.name)), drop
	})
}
