package foreign

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zeroth/checkpoint"
	"zeroth/checkpoint/torchfile"
	"zeroth/internal/input"
)

// moments lists the kinds of optimizer state per parameter.
var moments = []string{"exp_avg", "exp_avg_sq", "momentum_buffer"}

// latest returns the checkpoint named by the file latest in a folder, or "".
func latest(folder string) string {
	b, err := input.Read(filepath.Join(folder, "latest"), 1024)
	name := strings.TrimSpace(string(b))
	if err != nil || name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return ""
	}
	if st, err := os.Stat(filepath.Join(folder, name)); err != nil || !st.IsDir() {
		return ""
	}
	return filepath.Join(folder, name)
}

var optimFile = regexp.MustCompile(`^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$`)

// zeroFiles holds the files of a DeepSpeed checkpoint.
type zeroFiles struct {
	c      *Checkpoint
	folder string
	optim  []*torchfile.Dict // optimizer_state_dict of each rank
	model  []*torchfile.Dict // model states: of rank 0, or of each at stage 3
	stage  int
}

// openZeRO opens a DeepSpeed checkpoint, or the one named by the file latest.
func (c *Checkpoint) openZeRO(folder string) error {
	if !found(folder, "*model_states.pt") {
		if at := latest(folder); at != "" {
			folder = at
		}
	}
	z := &zeroFiles{c: c, folder: folder}
	names, err := z.ranks()
	if err != nil {
		return err
	}
	for _, name := range names {
		d, err := c.load(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		o := d.Dict("optimizer_state_dict")
		if o == nil {
			return fmt.Errorf("%s has no optimizer_state_dict", filepath.Join(folder, name))
		}
		stage := 1 // BF16_Optimizer does not store it
		if n, ok := o.At("zero_stage").(int64); ok {
			stage = int(n)
		}
		if len(z.optim) > 0 && stage != z.stage {
			return fmt.Errorf("%s: its ranks are of ZeRO stages %d and %d", folder, z.stage, stage)
		}
		z.optim, z.stage = append(z.optim, o), stage
	}
	if err := z.models(); err != nil {
		return err
	}
	if err := z.describe(); err != nil {
		return err
	}
	switch z.stage {
	case 0:
		return z.stage0()
	case 1, 2:
		return z.eachGroup("base_optimizer_state", "single_partition_of_fp32_groups", z.cutGroup)
	case 3:
		return z.eachGroup("optimizer_state_dict", "fp32_flat_groups", z.cutEach)
	}
	return fmt.Errorf("%s: ZeRO stage %d", folder, z.stage)
}

// ranks returns the names of the optimizer's files, ordered by rank.
func (z *zeroFiles) ranks() ([]string, error) {
	byRank := map[int]string{}
	for _, name := range matching(z.folder, "*.pt") {
		m := optimFile.FindStringSubmatch(name)
		switch {
		case strings.HasPrefix(name, "layer_"):
			return nil, fmt.Errorf("%s: %s belongs to a pipeline of DeepSpeed, which is not supported: convert it with DeepSpeed's ds_to_universal.py", z.folder, name)
		case strings.Contains(name, "expert_"):
			return nil, fmt.Errorf("%s: %s belongs to experts (MoE), which are not supported", z.folder, name)
		case strings.Contains(name, "mp_rank_") && !strings.Contains(name, "mp_rank_00"):
			return nil, fmt.Errorf("%s: %s belongs to tensor parallelism, which is not supported in DeepSpeed's files: convert it with DeepSpeed's ds_to_universal.py", z.folder, name)
		case m != nil:
			r, err := strconv.Atoi(m[1])
			if err != nil || byRank[r] != "" {
				return nil, fmt.Errorf("%s: %s and %s belong to the same rank", z.folder, byRank[r], name)
			}
			byRank[r] = name
		}
	}
	names := make([]string, len(byRank))
	for i := range names {
		if names[i] = byRank[i]; names[i] == "" {
			return nil, fmt.Errorf("%s has optimizer files of %d ranks, but none of rank %d", z.folder, len(byRank), i)
		}
	}
	return names, nil
}

// models opens the files of model states.
func (z *zeroFiles) models() error {
	const first = "mp_rank_00_model_states.pt"
	lost := fmt.Errorf("%s has no *_optim_states.pt, which have the float32 weights and the optimizer's state", z.folder)
	if len(z.optim) == 0 && !input.Exists(filepath.Join(z.folder, first)) && found(z.folder, "zero_pp_rank_*_model_states.pt") {
		return lost
	}
	names := []string{first}
	if z.stage == 3 {
		names = nil
		for r := range z.optim {
			names = append(names, fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_model_states.pt", r))
		}
	}
	for _, name := range names {
		d, err := z.c.load(filepath.Join(z.folder, name))
		if err != nil {
			return err
		}
		if d.Dict("module") == nil {
			return fmt.Errorf("%s has no module", filepath.Join(z.folder, name))
		}
		z.model = append(z.model, d)
	}
	if len(z.optim) == 0 && len(torchfile.Items(z.model[0].At("param_shapes"))) > 0 {
		return fmt.Errorf("%w; for the 16-bit weights alone, name its %s", lost, first)
	}
	return nil
}

// describe sets the checkpoint's metadata and checks that its ranks agree.
func (z *zeroFiles) describe() error {
	c, m := z.c, z.model[0]
	version, _ := m.At("ds_version").(string)
	c.Form = fmt.Sprintf("DeepSpeed %s, ZeRO stage %d", checkpoint.Plain(version), z.stage)
	c.Ranks = max(1, len(z.optim))
	if n, ok := m.At("dp_world_size").(int64); ok {
		if len(z.optim) > 0 && int(n) != len(z.optim) {
			return fmt.Errorf("%s: %d ranks wrote it, but it has files of %d", z.folder, n, len(z.optim))
		}
		c.Ranks = int(n)
	}
	for _, x := range []struct {
		key string
		to  *int64
	}{{"global_steps", &c.Step}, {"skipped_steps", &c.Skipped}, {"global_samples", &c.Samples}} {
		if n, ok := m.At(x.key).(int64); ok {
			*x.to = n
			c.Counted = c.Counted || x.to == &c.Step
		}
		if *x.to < 0 || *x.to > 1<<50 {
			return fmt.Errorf("%s: %s is %d", z.folder, x.key, *x.to)
		}
	}
	for _, d := range z.model[1:] {
		if n, ok := d.At("global_steps").(int64); !ok || n != c.Step {
			return fmt.Errorf("%s: its ranks are at different steps: %d and %s", z.folder, c.Step, torchfile.Kind(d.At("global_steps")))
		}
		if !reflect.DeepEqual(shapesIn(d), shapesIn(m)) {
			return fmt.Errorf("%s: param_shapes differ between its ranks", z.folder)
		}
	}
	for alias, owner := range entries(m.Dict("shared_params")) {
		if o, ok := owner.(string); ok {
			c.Same[alias] = o
		}
	}
	if len(z.optim) == 0 {
		return nil
	}
	scaler, _ := z.optim[0].At("loss_scaler").(*torchfile.Object)
	if scaler.Is("DynamicLossScaler") || scaler.Is("LossScaler") && number(scaler.Field("cur_scale")) > 1 {
		c.Scale = lossScale(scaler)
	}
	return nil
}

// updates sets the checkpoint's step from the updates of a parameter, which all parameters must
// share.
func (c *Checkpoint) updates(v any, name string) error {
	if v == nil {
		return nil
	}
	n, err := step(v)
	if err == nil && !c.Counted {
		c.Step, c.Counted = n, true
	}
	if err == nil && n != c.Step-c.Skipped {
		err = fmt.Errorf("%d updates, but the checkpoint has %d", n, c.Step-c.Skipped)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", c.Path, checkpoint.Plain(name), err)
	}
	return nil
}

// groups reads the settings of the optimizer's parameter groups.
func (c *Checkpoint) groups(list any) {
	for _, g := range torchfile.Items(list) {
		if d, ok := g.(*torchfile.Dict); ok {
			c.Groups = append(c.Groups, groupOf(func(key string) any { return d.At(key) }))
		}
	}
}

// shapesIn returns the name, shape and group of every parameter in a rank's model states, in order.
func shapesIn(model *torchfile.Dict) (all []string) {
	for g, group := range torchfile.Items(model.At("param_shapes")) {
		d, _ := group.(*torchfile.Dict)
		for name, v := range entries(d) {
			shape, _ := torchfile.Ints(v) // an invalid one is reported where it is used
			all = append(all, fmt.Sprint(g, name, shape))
		}
	}
	return all
}

// shapes returns the names and shapes of each group's parameters, in order.
func (z *zeroFiles) shapes() (groups []*torchfile.Dict, err error) {
	for _, g := range torchfile.Items(z.model[0].At("param_shapes")) {
		d, ok := g.(*torchfile.Dict)
		if !ok {
			return nil, fmt.Errorf("%s: param_shapes has %s", z.folder, torchfile.Kind(g))
		}
		groups = append(groups, d)
	}
	if len(groups) == 0 {
		return nil, fmt.Errorf("%s: no param_shapes in its model states", z.folder)
	}
	return groups, nil
}

// param is a parameter of a group.
type param struct {
	name  string
	shape []int
	n     int // elements
}

func paramsOf(group *torchfile.Dict) (ps []param, err error) {
	for name, v := range entries(group) {
		shape, err := torchfile.Ints(v)
		n, ok := numel(shape)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s has shape %v (%v)", checkpoint.Plain(name), shape, err)
		}
		ps = append(ps, param{name, shape, n})
	}
	return ps, nil
}

// states returns, for each kind, the flat tensors of group g of every rank.
func (z *zeroFiles) states(base, flats string, g int) (map[string][]*torchfile.Tensor, error) {
	all := map[string][]*torchfile.Tensor{}
	add := func(kind string, v any, what string) error {
		t, err := vector(v, what+", "+kind)
		if err == nil && len(all[kind]) > 0 && t.DType != all[kind][0].DType {
			err = fmt.Errorf("%s: %s is %s, but %s on other ranks", what, kind, t.DType, all[kind][0].DType)
		}
		all[kind] = append(all[kind], t)
		return err
	}
	for r, o := range z.optim {
		what := fmt.Sprintf("%s: rank %d, group %d", z.folder, r, g)
		if o.Dict(base).Dict("state") == nil {
			return nil, fmt.Errorf("%s: %s has no state (elastic_checkpoint is not supported)", what, base)
		}
		list := torchfile.Items(o.At(flats))
		if g >= len(list) {
			return nil, fmt.Errorf("%s: it has only %d groups", what, len(list))
		}
		if err := add(checkpoint.Master, list[g], what); err != nil {
			return nil, err
		}
		state := o.Dict(base).Dict("state").Dict(int64(g))
		for _, kind := range moments {
			if v := state.At(kind); v != nil {
				if err := add(kind, v, what); err != nil {
					return nil, err
				}
			}
		}
		if r == 0 {
			z.c.unused(fmt.Sprintf("group %d", g), state)
		}
		if err := z.c.updates(state.At("step"), fmt.Sprintf("rank %d, group %d", r, g)); err != nil {
			return nil, err
		}
	}
	for _, kind := range moments {
		if n := len(all[kind]); n != 0 && n != len(z.optim) {
			return nil, fmt.Errorf("%s: %d of %d ranks have %s of group %d", z.folder, n, len(z.optim), kind, g)
		}
	}
	return all, nil
}

// eachGroup calls cut with the flat tensors of every rank, for each kind of state of each group.
func (z *zeroFiles) eachGroup(base, flats string, cut func(g int, kind string, ps []param, parts []*torchfile.Tensor) error) error {
	groups, err := z.shapes()
	if err != nil {
		return err
	}
	z.c.groups(z.optim[0].Dict(base).At("param_groups"))
	for g, group := range groups {
		ps, err := paramsOf(group)
		if err != nil {
			return fmt.Errorf("%s: %w", z.folder, err)
		}
		states, err := z.states(base, flats, g)
		if err != nil {
			return err
		}
		for _, kind := range slices.Sorted(maps.Keys(states)) {
			if err := cut(g, kind, ps, states[kind]); err != nil {
				return err
			}
		}
	}
	return z.rest()
}

// cutGroup finds the parameters of a group of stage 1 or 2 in its vector, the concatenation of the
// ranks' parts.
func (z *zeroFiles) cutGroup(g int, kind string, ps []param, parts []*torchfile.Tensor) error {
	paddings := torchfile.Items(z.optim[0].At("param_alignment_paddings"))
	var pad []any
	if g < len(paddings) {
		if pad = torchfile.Items(paddings[g]); len(pad) != len(ps) {
			return fmt.Errorf("%s: group %d has %d parameters and %d paddings", z.folder, g, len(ps), len(pad))
		}
	}
	at, end, padding := 0, 0, 2*len(parts) // the vector's length is a multiple of 2 for each rank
	for i, p := range ps {
		x, err := flat(p.name, kind, parts[0].DType, p.shape)
		if err != nil {
			return err
		}
		begin := 0
		for _, t := range parts {
			lo, hi := max(at, begin), min(at+p.n, begin+t.Shape[0])
			if lo < hi {
				x.add(lo-at, hi-lo, lo-begin, t)
			}
			begin += t.Shape[0]
		}
		if err := z.c.put(x); err != nil {
			return fmt.Errorf("%s: %w", z.folder, err)
		}
		at += p.n
		end = at
		if i < len(pad) {
			n, ok := pad[i].(int64)
			if !ok || n < 0 || n > 1<<20 {
				return fmt.Errorf("%s: a padding of %s", z.folder, torchfile.Kind(pad[i]))
			}
			at += int(n)
			padding += int(n)
		}
	}
	have := 0
	for _, t := range parts {
		have += t.Shape[0]
	}
	if have-end > padding {
		return fmt.Errorf("%s: group %d has %d elements of %s, but its parameters %d", z.folder, g, have, kind, end)
	}
	return nil
}

// cutEach finds the parameters of a group of stage 3, which divides each among the ranks.
func (z *zeroFiles) cutEach(g int, kind string, ps []param, parts []*torchfile.Tensor) error {
	off := 0
	for _, p := range ps {
		x, err := flat(p.name, kind, parts[0].DType, p.shape)
		if err != nil {
			return err
		}
		off += z.add(x, p.n, off, parts)
		if err := z.c.put(x); err != nil {
			return fmt.Errorf("%s: %w", z.folder, err)
		}
	}
	for r, t := range parts {
		if t.Shape[0] != off {
			return fmt.Errorf("%s: rank %d, group %d: %s has %d elements, but its parameters %d", z.folder, r, g, kind, t.Shape[0], off)
		}
	}
	return nil
}

// add adds a parameter of n elements, divided equally among the ranks: each has its part at offset
// off. It returns the length of a part.
func (z *zeroFiles) add(x *tensor, n, off int, parts []*torchfile.Tensor) int {
	w := len(parts)
	per := (n + w - 1) / w
	for r, t := range parts {
		if lo := min(n, r*per); off+min(n, lo+per)-lo <= t.Shape[0] {
			x.add(lo, min(n, lo+per)-lo, off, t)
		}
	}
	return per
}

// rest reads frozen parameters, compares the 16-bit weights with the masters, and reports buffers.
func (z *zeroFiles) rest() error {
	m := z.model[0]
	for name, v := range entries(m.Dict("frozen_param_shapes")) {
		shape, err := torchfile.Ints(v)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", z.folder, checkpoint.Plain(name), err)
		}
		if err := z.frozen(name, shape); err != nil {
			return fmt.Errorf("%s: %s is frozen: %w", z.folder, checkpoint.Plain(name), err)
		}
	}
	for name, v := range entries(m.Dict("module")) {
		t, ok := v.(*torchfile.Tensor)
		p := z.c.index[[2]string{name, checkpoint.Master}]
		switch {
		case z.c.Same[name] != "":
		case !ok, p == nil && z.stage < 3 || p == nil && t.Numel() > 0:
			z.c.leave(name)
		case z.stage < 3 && p != nil:
			if !slices.Equal(p.Shape, t.Shape) {
				return fmt.Errorf("%s: %s has shape %v in module and %v in param_shapes", z.folder, checkpoint.Plain(name), t.Shape, p.Shape)
			}
			z.c.pairs = append(z.c.pairs, pair{p, whole(name, checkpoint.Master, t), "the optimizer's float32 weights are not those of the model states"})
		}
	}
	return nil
}

func (z *zeroFiles) frozen(name string, shape []int) error {
	n, ok := numel(shape)
	var parts []*torchfile.Tensor
	for _, m := range z.model {
		t, isTensor := m.Dict("frozen_param_fragments").At(name).(*torchfile.Tensor)
		if !isTensor {
			return errors.New("a rank has no part of it")
		}
		parts = append(parts, t)
	}
	if !ok || len(parts) == 0 {
		return fmt.Errorf("its shape is %v", shape)
	}
	if z.stage < 3 {
		if !slices.Equal(parts[0].Shape, shape) {
			return fmt.Errorf("its shape is %v and not %v", parts[0].Shape, shape)
		}
		return z.c.put(whole(name, checkpoint.Master, parts[0]))
	}
	x, err := flat(name, checkpoint.Master, parts[0].DType, shape)
	if err != nil {
		return err
	}
	for _, t := range parts {
		if len(t.Shape) != 1 || t.DType != parts[0].DType {
			return errors.New("its parts are not vectors of one type")
		}
	}
	z.add(x, n, 0, parts)
	return z.c.put(x)
}

// stage0 reads a checkpoint without ZeRO: whole tensors, and the optimizer's state by number.
func (z *zeroFiles) stage0() error {
	m := z.model[0]
	params, err := z.c.putModule(m.Dict("module"))
	if err != nil {
		return fmt.Errorf("%s: %w", z.folder, err)
	}
	buffers := map[string]bool{}
	for _, b := range torchfile.Items(m.At("buffer_names")) {
		s, _ := b.(string)
		buffers[s] = true
	}
	params = slices.DeleteFunc(params, func(p param) bool { return buffers[p.name] })
	o := m.Dict("optimizer")
	return z.c.putState(o, params, func(name, kind string, number any) (*tensor, error) {
		v := o.Dict("state").Dict(number).At(kind)
		t, ok := v.(*torchfile.Tensor)
		if v == nil {
			return nil, nil
		}
		if !ok {
			return nil, fmt.Errorf("%s of %s is %s", kind, checkpoint.Plain(name), torchfile.Kind(v))
		}
		return whole(name, kind, t), nil
	})
}

// putModule adds the tensors of a state dictionary and returns the parameters in order. If two
// names share memory, the second is an alias.
func (c *Checkpoint) putModule(module *torchfile.Dict) (params []param, err error) {
	var seen aliases
	for i, key := range module.Keys {
		name, named := key.(string)
		t, ok := module.Values[i].(*torchfile.Tensor)
		if o, _ := module.Values[i].(*torchfile.Object); o.Is("DTensor") || o.Is("ShardedTensor") {
			return nil, fmt.Errorf("%s is a rank's part of a %s: want the folder with the files of all ranks, model_world_size_W_rank_R.pt, or a checkpoint of torch.distributed.checkpoint", torchfile.Kind(key), o.Class.Name)
		}
		if !ok || !named {
			c.leave(shown(key))
			continue
		}
		if owner := seen.owner(name, t); owner != "" {
			c.Same[name] = owner
			continue
		}
		if err := c.put(whole(name, checkpoint.Master, t)); err != nil {
			return nil, err
		}
		if t.DType.Float() {
			params = append(params, param{name, t.Shape, t.Numel()})
		}
	}
	return params, nil
}

// aliases maps views of memory to the names of tensors.
type aliases map[string]string

// owner returns the name of an earlier tensor with the same view of the same memory, or "".
func (a *aliases) owner(name string, t *torchfile.Tensor) string {
	if t == nil || t.Numel() == 0 {
		return ""
	}
	view := fmt.Sprintf("%p %s %d %v %v", t.Storage, t.DType, t.Offset, t.Shape, t.Stride)
	if owner := (*a)[view]; owner != "" {
		return owner
	}
	if *a == nil {
		*a = aliases{}
	}
	(*a)[view] = name
	return ""
}
