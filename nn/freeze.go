package nn

import (
	"fmt"
	"slices"

	"zeroth/device"
	"zeroth/shard"
)

// Frozen returns a copy of the model in which the parameters selected by is are used but not
// trained. A unit that mixes both kinds is split where they meet; the first part keeps its name.
func (m *Model) Frozen(is func(shard.Param) bool) *Model {
	return m.mark(func(p *shard.Param) { p.Frozen = p.Frozen || is(*p) }, runs)
}

// Ruled returns a copy of the model in which rule selects the update rule of each trained
// parameter. A unit that mixes rules is split into one unit per rule; all but the first get the
// rule's name as a suffix.
func (m *Model) Ruled(names []string, rule func(shard.Param) int) *Model {
	return m.mark(func(p *shard.Param) {
		if !p.Frozen {
			p.Rule = rule(*p)
		}
	}, func(use Use, at []int, params []shard.Param) []Use {
		return sorted(names, use, at, func(p int) int { return params[p].Rule })
	})
}

// Coded returns a copy of the model in which the frozen matrices of its blocks, except routers, are stored in a
// device.Code. They are units of their own, which get the code's name as a suffix.
func (m *Model) Coded(code device.Code) *Model {
	inner := map[string]bool{}
	for _, mod := range m.Modules[1 : len(m.Modules)-1] {
		for _, p := range mod.Params() {
			inner[p.Name] = p.Frozen && len(p.Shape) > 1 && !p.Router
		}
	}
	return m.mark(func(p *shard.Param) {
		if inner[p.Name] {
			p.Code = uint8(code)
		}
	}, func(use Use, at []int, params []shard.Param) []Use {
		return sorted([]string{"", code.String()}, use, at, func(p int) int { return min(1, int(params[p].Code)) })
	})
}

// mark returns a copy of the model in which put has changed the parameters and divide has split the
// units: it gets a use of one, the parameters' indices and the module's parameters.
func (m *Model) mark(put func(*shard.Param), divide func(use Use, at []int, params []shard.Param) []Use) *Model {
	x := *m
	x.Modules, x.Uses = nil, nil
	for i, mod := range m.Modules {
		marked := marked{mod, slices.Clone(mod.Params())}
		for j := range marked.params {
			put(&marked.params[j])
		}
		var uses []Use
		for k, at := range ParamIndices(m.Uses[i]) {
			uses = append(uses, divide(m.Uses[i][k], at, marked.params)...)
		}
		var as Module = marked
		if b, ok := mod.(declarer); ok {
			as = b.with(marked.params)
		}
		x.Modules, x.Uses = append(x.Modules, as), append(x.Uses, uses)
	}
	return &x
}

// runs splits a use of a unit into runs of parameters that are all frozen or all trained.
func runs(use Use, at []int, params []shard.Param) (uses []Use) {
	for i, p := range at {
		n := len(uses)
		if n == 0 || params[p].Frozen != params[at[i-1]].Frozen {
			name := use.Unit
			if n > 0 {
				name = fmt.Sprintf("%s+%d", use.Unit, n)
			}
			uses, n = append(uses, Use{Unit: name}), n+1
		}
		last := &uses[n-1]
		last.Params, last.At = last.Params+1, append(last.At, p)
	}
	return uses
}

// sorted splits a use of a unit by the kinds of its parameters, an index in names.
func sorted(names []string, use Use, at []int, kind func(param int) int) (uses []Use) {
	for k, name := range names {
		of := Use{Unit: use.Unit}
		for _, p := range at {
			if kind(p) == k {
				of.Params, of.At = of.Params+1, append(of.At, p)
			}
		}
		if k > 0 && of.Params < len(at) {
			of.Unit = fmt.Sprintf("%s (%s)", use.Unit, name)
		}
		if of.Params > 0 {
			uses = append(uses, of)
		}
	}
	return uses
}

// declarer is a Module that depends on its parameters' declarations.
type declarer interface {
	// with returns a copy whose parameters are declared differently.
	with(declared params) Module
}

// marked is another module with changed parameter declarations.
type marked struct {
	Module
	params []shard.Param
}

func (m marked) Params() []shard.Param { return m.params }
