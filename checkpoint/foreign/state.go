package foreign

import (
	"fmt"
	"slices"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
)

// putState adds the state of an optimizer that PyTorch stored by the numbers of parameters, which are
// those of its groups: parameters of a group have ascending positions in the model.
func (c *Checkpoint) putState(o *torchfile.Dict, params []param, of func(name, kind string, v any) (*tensor, error)) error {
	if o == nil {
		return nil
	}
	c.groups(o.At("param_groups"))
	names, err := numbered(o, params, of)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	state := o.Dict("state")
	if state == nil {
		return nil
	}
	for i, key := range state.Keys {
		d, ok := state.Values[i].(*torchfile.Dict)
		name, known := names[key]
		if !ok || !known {
			return fmt.Errorf("%s: the optimizer has state of parameter %v, which none of its groups has", c.Path, key)
		}
		for _, kind := range moments {
			v := d.At(kind)
			if v == nil {
				continue
			}
			t, err := of(name, kind, v)
			if err == nil {
				err = c.put(t)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.Path, err)
			}
		}
		if err := c.updates(d.At("step"), name); err != nil {
			return err
		}
	}
	return nil
}

// numbered returns the names of the parameters of an optimizer by their numbers. Files do not store
// that: it follows if there is one group, or if the groups differ in the number of dimensions, as
// those with and without weight decay do.
func numbered(o *torchfile.Dict, params []param, of func(name, kind string, v any) (*tensor, error)) (map[any]string, error) {
	groups := torchfile.Items(o.At("param_groups"))
	names := map[any]string{}
	used := map[string]bool{}
	for g, v := range groups {
		d, _ := v.(*torchfile.Dict)
		numbers := torchfile.Items(d.At("params"))
		dims := -1 // of all parameters of the group: 1 for vectors, 2 for more
		at := 0
		for _, n := range numbers {
			if named, ok := n.(string); ok {
				names[n] = named
				continue
			}
			if _, ok := n.(int64); !ok {
				return nil, fmt.Errorf("group %d has parameter %s", g, torchfile.Kind(n))
			}
			shape, err := stateShape(o, n, of)
			if err != nil {
				return nil, err
			}
			if shape == nil {
				continue // it has no state
			}
			k := min(2, max(1, len(shape)))
			if dims != -1 && dims != k && len(groups) > 1 {
				return nil, fmt.Errorf("the optimizer has no names of parameters, and group %d mixes vectors with matrices: nothing tells which is which", g)
			}
			dims = k
			for at < len(params) && (used[params[at].name] || !slices.Equal(params[at].shape, shape)) {
				if len(groups) == 1 || min(2, max(1, len(params[at].shape))) == k && !used[params[at].name] {
					return nil, fmt.Errorf("the optimizer has no names of parameters: number %v of group %d has shape %v, but %s, which is next, %v", n, g, shape, checkpoint.Plain(params[at].name), params[at].shape)
				}
				at++
			}
			if at == len(params) {
				return nil, fmt.Errorf("the optimizer has no names of parameters: none is left for number %v of group %d, of shape %v", n, g, shape)
			}
			names[n], used[params[at].name] = params[at].name, true
		}
	}
	return names, nil
}

// stateShape returns the shape of a parameter's state, or nil if it has none.
func stateShape(o *torchfile.Dict, n any, of func(name, kind string, v any) (*tensor, error)) ([]int, error) {
	d := o.Dict("state").Dict(n)
	for _, kind := range moments {
		if v := d.At(kind); v != nil {
			t, err := of(fmt.Sprintf("number %v", n), kind, v)
			if err != nil {
				return nil, err
			}
			return t.Shape, nil
		}
	}
	return nil, nil
}
