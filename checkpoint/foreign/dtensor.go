package foreign

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
)

var rankFile = regexp.MustCompile(`^model_world_size_(\d+)_rank_(\d+)\.pt$`)

// openDTensors opens the files of DTensors that each rank wrote with torch.save.
func (c *Checkpoint) openDTensors(folder string) error {
	names := matching(folder, "model_world_size_*_rank_*.pt")
	m := rankFile.FindStringSubmatch(names[0])
	if m == nil {
		return fmt.Errorf("%s: %s: want model_world_size_W_rank_R.pt", folder, names[0])
	}
	w, err := strconv.Atoi(m[1])
	if err != nil || w != len(names) {
		return fmt.Errorf("%s: %d files of models of %s ranks", folder, len(names), m[1])
	}
	c.Form, c.Ranks = "DTensors of torch.save", w
	var models, optims []*torchfile.Dict
	for r := range w {
		d, err := c.load(filepath.Join(folder, fmt.Sprintf("model_world_size_%d_rank_%d.pt", w, r)))
		if err != nil {
			return err
		}
		models = append(models, d)
		path := filepath.Join(folder, fmt.Sprintf("optim_world_size_%d_rank_%d.pt", w, r))
		if !input.Exists(path) {
			continue
		}
		if d, err = c.load(path); err != nil {
			return err
		}
		optims = append(optims, d)
	}
	if len(optims) != 0 && len(optims) != w {
		return fmt.Errorf("%s: %d of %d ranks have a file of the optimizer", folder, len(optims), w)
	}
	params, err := c.putRanks(models)
	if err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	if len(optims) == 0 {
		return nil
	}
	return c.putState(optims[0], params, func(name, kind string, number any) (*tensor, error) {
		var parts []any
		for _, o := range optims {
			parts = append(parts, o.Dict("state").Dict(number).At(kind))
		}
		if parts[0] == nil {
			return nil, nil
		}
		return join(name, kind, parts)
	})
}

// putRanks adds the tensors of the ranks' dictionaries and returns the parameters in order.
func (c *Checkpoint) putRanks(models []*torchfile.Dict) (params []param, err error) {
	for r, m := range models {
		if len(m.Keys) != len(models[0].Keys) {
			return nil, fmt.Errorf("rank %d has %d tensors, but rank 0 %d", r, len(m.Keys), len(models[0].Keys))
		}
	}
	var seen aliases
	for name, v := range entries(models[0]) {
		var parts []any
		for r, m := range models {
			if _, ok := m.Find(name); !ok {
				return nil, fmt.Errorf("rank %d has no %s", r, checkpoint.Plain(name))
			}
			parts = append(parts, m.At(name))
		}
		x, err := join(name, checkpoint.Master, parts)
		if err != nil {
			return nil, err
		}
		if owner := seen.owner(name, localOf(v)); owner != "" {
			c.Same[name] = owner
			continue
		}
		if err := c.put(x); err != nil {
			return nil, err
		}
		if x.DType.Float() {
			params = append(params, param{name, x.Shape, x.Numel()})
		}
	}
	return params, nil
}

// localOf returns a rank's part of a DTensor.
func localOf(v any) *torchfile.Tensor {
	switch v := v.(type) {
	case *torchfile.Tensor:
		return v
	case *torchfile.Object:
		t, _ := v.Field("_local_tensor").(*torchfile.Tensor)
		return t
	}
	return nil
}

// join combines the ranks' DTensors into one tensor. Of plain tensors, which every rank has a copy
// of, it returns the first rank's.
func join(name, kind string, parts []any) (*tensor, error) {
	var x *tensor
	for r, v := range parts {
		if t, ok := v.(*torchfile.Tensor); ok && x == nil {
			return whole(name, kind, t), nil
		}
		o, _ := v.(*torchfile.Object)
		local := localOf(v)
		if !o.Is("DTensor") || len(o.Args) < 2 || local == nil {
			return nil, fmt.Errorf("%s of rank %d is %s", checkpoint.Plain(name), r, torchfile.Kind(v))
		}
		shape, err := torchfile.Ints(o.Args[1])
		if _, ok := numel(shape); err != nil || !ok {
			return nil, fmt.Errorf("%s has shape %v", checkpoint.Plain(name), shape)
		}
		if x == nil {
			x = &tensor{Tensor: checkpoint.Tensor{Name: name, Kind: kind, DType: local.DType, Shape: shape}, grid: shape}
		}
		start, size, mine, err := shardOf(shape, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", checkpoint.Plain(name), err)
		}
		if !slices.Equal(x.Shape, shape) || x.DType != local.DType || mine && !slices.Equal(local.Shape, size) {
			return nil, fmt.Errorf("%s: rank %d has a part of shape %v of %v; %v of %v was expected", checkpoint.Plain(name), r, local.Shape, shape, size, x.Shape)
		}
		if mine {
			x.pieces = append(x.pieces, piece{start, size, make([]int, len(size)), already(local)})
		}
	}
	return x, nil
}

// shardOf returns the box of a rank's part of a DTensor; mine is false if an earlier rank has the
// same part.
func shardOf(shape []int, o *torchfile.Object) (start, size []int, mine bool, err error) {
	spec, _ := o.Field("_spec").(*torchfile.Object)
	mesh, _ := spec.Field("mesh").(*torchfile.Object)
	placements := torchfile.Items(spec.Field("placements"))
	at, err := torchfile.Ints(mesh.Field("_coordinate_on_dim"))
	if err != nil {
		return nil, nil, false, errors.New("its mesh has no coordinates of the rank; save it with PyTorch 2.9 or newer, or as a checkpoint of torch.distributed.checkpoint")
	}
	layout, _ := mesh.Field("_layout").(*torchfile.Object)
	axes := torchfile.Items(layout.Field("axes"))
	if len(axes) != len(at) || len(placements) != len(at) {
		return nil, nil, false, fmt.Errorf("a mesh of %d dimensions with %d placements", len(axes), len(placements))
	}
	start, size, mine = make([]int, len(shape)), slices.Clone(shape), true
	for i, v := range placements {
		p, _ := v.(*torchfile.Object)
		axis, _ := axes[i].(*torchfile.Object)
		dims, err := torchfile.Ints(axis.Field("shape"))
		n, ok := numel(dims)
		if err != nil || !ok || at[i] < 0 || at[i] >= n {
			return nil, nil, false, fmt.Errorf("coordinate %d of a mesh of %v", at[i], dims)
		}
		switch {
		case p.Is("Replicate"):
			mine = mine && at[i] == 0
		case p.Is("Shard"):
			d, ok := p.Field("dim").(int64)
			if !ok || d < 0 || int(d) >= len(shape) {
				return nil, nil, false, fmt.Errorf("it is sharded along dimension %s", torchfile.Kind(p.Field("dim")))
			}
			per := (size[d] + n - 1) / n
			lo := min(size[d], at[i]*per)
			start[d], size[d] = start[d]+lo, min(size[d], lo+per)-lo
		default:
			return nil, nil, false, fmt.Errorf("its placement is %s; want Shard or Replicate", torchfile.Kind(v))
		}
	}
	return start, size, mine, nil
}
