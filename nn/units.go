package nn

import (
	"fmt"
	"slices"

	"zeroth/shard"
)

// OneUnitEach returns the model with one unit for each module that has parameters.
func (m *Model) OneUnitEach() *Model {
	x := *m
	x.Uses = make([][]Use, len(m.Modules))
	for i, mod := range m.Modules {
		if n := len(mod.Params()); n > 0 {
			x.Uses[i] = []Use{{Unit: fmt.Sprint("module", i), Params: n}}
		}
	}
	return &x
}

// CheckUnits returns an error unless every parameter belongs to one unit and has a name and a shape of its own, and
// modules that share a unit have the same parameters in it.
func (m *Model) CheckUnits() error {
	units, owners := map[string][]shard.Param{}, map[string]string{} // by unit; units by parameter
	for i, mod := range m.Modules {
		params := mod.Params()
		of := make([]string, len(params))
		for k, places := range ParamIndices(m.Uses[i]) {
			unit := m.Uses[i][k].Unit
			own := []shard.Param{}
			for _, at := range places {
				if at < 0 || at >= len(params) || of[at] != "" {
					return fmt.Errorf("unit %q of Uses[%d] has parameter %d of module %d, which has %d, each in one unit", unit, i, at, i, len(params))
				}
				of[at], own = unit, append(own, params[at])
			}
			same := func(a, b shard.Param) bool { return a.Name == b.Name && slices.Equal(a.Shape, b.Shape) }
			if before, ok := units[unit]; ok && !slices.EqualFunc(before, own, same) {
				return fmt.Errorf("unit %q of Uses[%d] has %s in module %d, but %s before; want other units, or the same parameters", unit, i, named(own), i, named(before))
			}
			units[unit] = own
		}
		for at, p := range params {
			switch owner := owners[p.Name]; {
			case p.Name == "" || len(p.Shape) == 0 || slices.Min(p.Shape) < 1:
				return fmt.Errorf("parameter %d of module %d is %q with shape %v; want a name, and dimensions of at least 1", at, i, p.Name, p.Shape)
			case of[at] == "":
				return fmt.Errorf("%s of module %d belongs to no unit of Uses[%d]", p.Name, i, i)
			case owner != "" && owner != of[at]:
				return fmt.Errorf("two parameters are named %s, in the units %q and %q; want names of their own, or one unit for both", p.Name, owner, of[at])
			case slices.ContainsFunc(params[:at], func(o shard.Param) bool { return o.Name == p.Name }):
				return fmt.Errorf("module %d has two parameters named %s", i, p.Name)
			}
			owners[p.Name] = of[at]
		}
	}
	return nil
}

// named lists parameters with their shapes.
func named(params []shard.Param) (s string) {
	for i, p := range params {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(p.Name, p.Shape)
	}
	return s
}
