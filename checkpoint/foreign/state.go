package foreign

import (
	"fmt"
	"slices"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
)

// stateOf returns a parameter's state of a kind, found by the number or name that the optimizer
// uses for the parameter; x is nil if it has none.
type stateOf func(name, kind string, number any) (x *tensor, err error)

// putState adds the state of an optimizer that identifies parameters by numbers in its groups. The
// parameters of a group must have ascending positions in the model.
func (c *Checkpoint) putState(o *torchfile.Dict, params []param, lookup stateOf) error {
	state := o.Dict("state")
	if state == nil {
		return nil
	}
	c.groups(o.At("param_groups"))
	if len(state.Keys) == 0 {
		return nil
	}
	names, err := numbered(o, params, lookup)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	for i, key := range state.Keys {
		d, ok := state.Values[i].(*torchfile.Dict)
		if !ok || !isNumber(key) || names[key] == "" {
			return fmt.Errorf("%s: the optimizer has state of parameter %s, which none of its groups has", c.Path, torchfile.Kind(key))
		}
		for _, kind := range moments {
			x, err := lookup(names[key], kind, key)
			if err == nil && x != nil {
				err = c.put(x)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.Path, err)
			}
		}
		c.unused(names[key], d)
		if err := c.updates(d.At("step"), names[key]); err != nil {
			return err
		}
	}
	return nil
}

// unused records state of unknown kinds of a parameter or group, such as AMSGrad's max_exp_avg_sq.
func (c *Checkpoint) unused(of string, state *torchfile.Dict) {
	for kind, v := range entries(state) {
		if localOf(v) != nil && kind != "step" && !slices.Contains(moments, kind) {
			c.leave(of + "." + kind)
		}
	}
}

// isNumber reports whether an optimizer can identify a parameter by v: a number or a name.
func isNumber(v any) bool {
	switch v.(type) {
	case int64, string:
		return true
	}
	return false
}

// numbered maps an optimizer's numbers to the names of parameters, which files do not store. It can
// do so only if the optimizer has all parameters of the model in one group, or in groups that
// differ in the number of dimensions, as groups with and without weight decay do.
func numbered(o *torchfile.Dict, params []param, lookup stateOf) (map[any]string, error) {
	const unnamed = "the optimizer has no names of parameters: "
	names, count := map[any]string{}, 0
	var taken [3]bool // dimension classes of earlier groups
	left := params
	groups := torchfile.Items(o.At("param_groups"))
	for g, v := range groups {
		d, _ := v.(*torchfile.Dict)
		numbers := torchfile.Items(d.At("params"))
		class := -1
		rest := left[:0:0]
		for _, n := range numbers {
			if !isNumber(n) {
				return nil, fmt.Errorf("group %d has parameter %s", g, torchfile.Kind(n))
			}
			if name, ok := n.(string); ok {
				names[n] = name
				continue
			}
			count++
			shape, err := stateShape(n, lookup)
			if err != nil {
				return nil, err
			}
			if shape == nil && len(groups) > 1 {
				return nil, fmt.Errorf(unnamed+"number %v of group %d has no state, so its parameter is unknown", n, g)
			}
			if k := dimensions(shape); len(groups) > 1 && class == -1 {
				if taken[k] {
					return nil, fmt.Errorf(unnamed+"group %d and one before it both have parameters of shapes like %v, so it is unknown which is which", g, shape)
				}
				class, taken[k] = k, true
			}
			for len(left) > 0 && class != -1 && dimensions(left[0].shape) != class {
				rest, left = append(rest, left[0]), left[1:]
			}
			switch {
			case len(left) == 0:
				return nil, fmt.Errorf(unnamed+"none is left for number %v of group %d, of shape %v", n, g, shape)
			case shape != nil && !slices.Equal(left[0].shape, shape):
				return nil, fmt.Errorf(unnamed+"number %v of group %d has shape %v, but %s, which is next, %v", n, g, shape, checkpoint.Plain(left[0].name), left[0].shape)
			}
			names[n], left = left[0].name, left[1:]
		}
		if len(rest) > 0 {
			left = append(rest, left...)
		}
	}
	if count > 0 && len(left) > 0 {
		return nil, fmt.Errorf(unnamed+"it has state for only %d of %d, and nothing identifies these (%s and others are frozen, or not parameters)", count, len(params), checkpoint.Plain(left[0].name))
	}
	return names, nil
}

// dimensions returns the class of a shape: 1 for scalars and vectors, 2 for more.
func dimensions(shape []int) int { return min(2, max(1, len(shape))) }

// stateShape returns the shape of a parameter's state, or nil if it has none.
func stateShape(n any, lookup stateOf) ([]int, error) {
	for _, kind := range moments {
		x, err := lookup(fmt.Sprintf("number %v", n), kind, n)
		if err != nil {
			return nil, err
		}
		if x != nil {
			return x.Shape, nil
		}
	}
	return nil, nil
}
