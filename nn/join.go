package nn

import (
	"slices"

	"zeroth/shard"
)

// Joined returns a copy of the model in which queries, keys and values of a block are one product,
// and gate and up another, in both passes, if the weights are neighbours in a unit. GPUs multiply
// wide matrices faster. The gradient of the input is then one sum instead of several rounded ones,
// so its bits differ from the CPU's, which uses separate products. Parameters begin at
// multiples of begin elements of a unit.
func (m *Model) Joined(begin int) *Model {
	x := *m
	x.Modules = slices.Clone(m.Modules)
	for i, mod := range m.Modules {
		if b, ok := mod.(joiner); ok {
			x.Modules[i] = b.join(follows(mod.Params(), m.Uses[i], begin))
		}
	}
	return &x
}

// joiner is a Module that may join products.
type joiner interface {
	// join returns a copy that joins layers; follows is of each parameter.
	join(follows []bool) Module
}

// follows reports for each parameter of a module whether it begins in its unit where the one before
// it ends, and both are trained or both frozen.
func follows(params []shard.Param, uses []Use, begin int) []bool {
	of := make([]bool, len(params))
	for _, at := range ParamIndices(uses) {
		for i := 1; i < len(at); i++ {
			a, b := at[i-1], at[i]
			of[b] = b == a+1 && params[a].Frozen == params[b].Frozen && params[a].Reserved() == params[a].Numel() && params[a].Numel()%begin == 0
		}
	}
	return of
}

// joined returns layers as one, without weights if they cannot be joined: their rows must follow
// each other, without adapters.
func joined(of params, follows []bool, layers ...*linear) (all linear) {
	all.weight, all.bias = layers[0].weight, layers[0].bias
	for i, l := range layers {
		if l.up.exist() || i > 0 && !(all.weight.extend(layers[i-1].weight, l.weight, of, follows) && all.bias.extend(layers[i-1].bias, l.bias, of, follows)) {
			return linear{}
		}
	}
	return all
}

// extend appends next to rows whose last ones are last, and reports whether that is possible: next
// follows last in the same parameter, or begins the parameter that follows.
func (r *rows) extend(last, next rows, of params, follows []bool) bool {
	if last.exist() != next.exist() {
		return false
	}
	same := last.param == next.param && last.hi == next.lo
	begins := next.lo == 0 && next.param == last.param+1 && follows[next.param] && last.hi*last.cols == of[last.param].Numel()
	r.hi += next.hi - next.lo
	return !next.exist() || same || begins
}
