package nn

import (
	"fmt"

	"zeroth/shard"
)

// Frozen is the model with those parameters frozen that is says: they are used,
// and neither trained nor updated. A unit that has both kinds is divided where
// they meet, so that each of its parts is of one kind; the first keeps the name.
func (m *Model) Frozen(is func(shard.Param) bool) *Model {
	x := *m
	x.Modules, x.Uses = nil, nil
	for i, mod := range m.Modules {
		marked := marked{mod, nil}
		for _, p := range mod.Params() {
			p.Frozen = p.Frozen || is(p)
			marked.params = append(marked.params, p)
		}
		var uses []Use
		at := 0
		for _, use := range m.Uses[i] {
			uses = append(uses, divided(use, marked.params[at:at+use.Params])...)
			at += use.Params
		}
		x.Modules, x.Uses = append(x.Modules, marked), append(x.Uses, uses)
	}
	return &x
}

// divided is a use of a unit by runs of parameters that are all frozen or none.
func divided(use Use, params []shard.Param) (uses []Use) {
	for i, p := range params {
		switch n := len(uses); {
		case n == 0:
			uses = append(uses, Use{use.Unit, 1})
		case p.Frozen == params[i-1].Frozen:
			uses[n-1].Params++
		default:
			uses = append(uses, Use{fmt.Sprintf("%s+%d", use.Unit, n), 1})
		}
	}
	return uses
}

// marked is a module with other marks on its parameters.
type marked struct {
	Module
	params []shard.Param
}

func (m marked) Params() []shard.Param { return m.params }
