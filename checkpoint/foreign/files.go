package foreign

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/checkpoint/safetensors"
	"zeroth/checkpoint/torchfile"
	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/jsonread"
)

const binIndex = "pytorch_model.bin.index.json"

// openBin opens a file of torch.save, or a folder with pytorch_model.bin or its parts.
func (c *Checkpoint) openBin(path string) error {
	c.Form = "torch.save"
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return c.addBin(path, nil)
	}
	raw, err := input.Read(filepath.Join(path, binIndex), safetensors.MaxIndex)
	if errors.Is(err, os.ErrNotExist) {
		return c.addBin(filepath.Join(path, "pytorch_model.bin"), nil)
	}
	if err != nil {
		return err
	}
	parts, err := safetensors.ParseIndex(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(path, binIndex), err)
	}
	for _, file := range slices.Sorted(maps.Keys(parts)) {
		if err := c.addBin(filepath.Join(path, file), parts[file]); err != nil {
			return err
		}
	}
	return nil
}

// nests lists the keys under which training programs save a model's state dictionary.
var nests = []string{"model", "state_dict", "model_state_dict", "module"}

// addBin adds the tensors of a file. If want is not nil, the file must contain exactly those.
func (c *Checkpoint) addBin(path string, want map[string]bool) error {
	d, err := c.load(path)
	if err != nil {
		return err
	}
	for _, key := range nests {
		if in := d.Dict(key); in != nil {
			c.leaveOut(d, key)
			d = in
			break
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := d.Find(name); !ok {
			return fmt.Errorf("%s: no tensor %s, although the index lists it for this file", path, checkpoint.Plain(name))
		}
	}
	if _, err := c.putModule(d); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// openUniversal opens a universal checkpoint of DeepSpeed: a folder for each parameter.
func (c *Checkpoint) openUniversal(folder string) error {
	models := matching(folder, "*model_states.pt")
	m, err := c.load(filepath.Join(folder, models[0]))
	if err != nil {
		return err
	}
	z := &zeroFiles{c: c, folder: folder, model: []*torchfile.Dict{m}}
	if err := z.describe(); err != nil {
		return err
	}
	version, _ := m.At("ds_version").(string)
	c.Form = fmt.Sprintf("DeepSpeed %s, universal", checkpoint.Plain(version))
	shapes := map[string][]int{}
	groups, err := z.shapes()
	if err != nil {
		return err
	}
	for _, g := range groups {
		ps, err := paramsOf(g)
		if err != nil {
			return fmt.Errorf("%s: %w", folder, err)
		}
		for _, p := range ps {
			shapes[p.name] = p.shape
		}
	}
	for name, v := range entries(m.Dict("frozen_param_shapes")) {
		if shapes[name], err = torchfile.Ints(v); err != nil {
			return fmt.Errorf("%s: %s: %w", folder, checkpoint.Plain(name), err)
		}
	}
	in, err := os.ReadDir(filepath.Join(folder, "zero"))
	if err != nil {
		return err
	}
	for _, e := range in {
		shape, ok := shapes[e.Name()]
		if !e.IsDir() || c.Same[e.Name()] != "" {
			continue
		}
		if !ok {
			c.leave(e.Name())
			continue
		}
		if err := c.addUniversal(filepath.Join(folder, "zero", e.Name()), e.Name(), shape); err != nil {
			return err
		}
		delete(shapes, e.Name())
	}
	if len(shapes) > 0 {
		missing := slices.Sorted(maps.Keys(shapes))
		return fmt.Errorf("%s: zero lacks %d parameters, such as %s (DeepSpeed's converter omits frozen ones at stage 3); use the folder that was converted instead", folder, len(missing), checkpoint.Plain(missing[0]))
	}
	return c.addZeROPairs(folder)
}

// addUniversal adds a parameter and its moments from its folder.
func (c *Checkpoint) addUniversal(folder, name string, shape []int) error {
	for _, file := range matching(folder, "*.pt") {
		if kind := strings.TrimSuffix(file, ".pt"); kind != "fp32" && kind != "step" && !slices.Contains(moments, kind) {
			c.leave(name + "." + kind)
		}
	}
	for _, kind := range append([]string{checkpoint.Master}, moments...) {
		file := kind
		if kind == checkpoint.Master {
			file = "fp32"
		}
		path := filepath.Join(folder, file+".pt")
		if kind != checkpoint.Master && !input.Exists(path) {
			continue
		}
		v, err := c.single(path)
		if err != nil {
			return err
		}
		if d, ok := v.(*torchfile.Dict); ok {
			v = d.At("param")
		}
		t, ok := v.(*torchfile.Tensor)
		n, valid := numel(shape)
		if !ok || !valid || t.Numel() != n || len(t.Shape) != 1 && !slices.Equal(t.Shape, shape) {
			return fmt.Errorf("%s is %s, not a tensor of shape %v", path, torchfile.Kind(v), shape)
		}
		x := whole(name, kind, t)
		x.Shape = shape
		if err := c.put(x); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if path := filepath.Join(folder, "step.pt"); input.Exists(path) {
		v, err := c.single(path)
		if err != nil {
			return err
		}
		return c.updates(v, name)
	}
	return nil
}

// single opens a file of one tensor and returns its object, which the file does not retain.
func (c *Checkpoint) single(path string) (v any, err error) {
	left := int64(torchfile.Slack)
	f, err := torchfile.Open(path, &left)
	if err != nil {
		return nil, err
	}
	c.files, c.bytes = append(c.files, f), c.bytes+f.Size
	v, f.Object = f.Object, nil
	return v, nil
}

// addZeROPairs compares a universal checkpoint with the ZeRO files it was made from, if they still
// exist: DeepSpeed's converter scrambles parameters of round_robin_gradients.
func (c *Checkpoint) addZeROPairs(folder string) error {
	from, ok := strings.CutSuffix(filepath.Clean(folder), "_universal")
	if !ok || !found(from, "*_optim_states.pt") {
		return nil
	}
	z := &Checkpoint{Path: from, index: map[[2]string]*tensor{}, Same: map[string]string{}, left: c.left}
	if err := z.openZeRO(from); err != nil {
		return errors.Join(err, z.Close())
	}
	c.files = append(c.files, z)
	for _, t := range z.tensors {
		if u := c.index[[2]string{t.Name, t.Kind}]; u != nil && u.DType == t.DType {
			c.pairs = append(c.pairs, pair{u, t, fmt.Sprintf("it differs from the ZeRO files in %s (DeepSpeed's converter mixes up parameters trained with round_robin_gradients): use those", from)})
		}
	}
	return nil
}

// shardName matches the files of HuggingFaceStorageWriter, one or more for each rank.
var shardName = regexp.MustCompile(`^shard-(\d+)-model-\d+-of-\d+\.safetensors$`)

// openSharded opens a checkpoint of torch.distributed.checkpoint in safetensors. Each file has the
// parts of one rank, and DCP_SHARDING_INFO in its metadata locates them in the tensors.
func (c *Checkpoint) openSharded(folder string) error {
	c.Form = "torch.distributed.checkpoint in safetensors"
	at := folder
	if !found(at, "shard-*-model-*-of-*.safetensors") {
		at = filepath.Join(folder, "sharded")
	}
	all, ranks := map[string]*tensor{}, map[string]bool{}
	for _, file := range matching(at, "shard-*-model-*-of-*.safetensors") {
		m := shardName.FindStringSubmatch(file)
		if m == nil {
			return fmt.Errorf("%s: %s: want shard-R-model-I-of-N.safetensors", at, file)
		}
		ranks[m[1]] = true
		if err := c.addSharded(filepath.Join(at, file), all); err != nil {
			return err
		}
	}
	c.Ranks = len(ranks)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		x := all[name]
		for _, p := range x.pieces { // the shape is not stored
			for d := range x.Shape {
				x.Shape[d] = max(x.Shape[d], p.start[d]+p.size[d])
			}
		}
		if _, ok := numel(x.Shape); !ok {
			return fmt.Errorf("%s: %s has shape %v", at, checkpoint.Plain(name), x.Shape)
		}
		x.grid = x.Shape
		if err := c.put(x); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return c.addOptimizer(filepath.Join(folder, "optimizer"))
}

// addSharded adds the pieces of one file.
func (c *Checkpoint) addSharded(path string, all map[string]*tensor) error {
	in, err := vfs.OS{}.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, in)
	size, err := in.Size()
	if err != nil {
		return err
	}
	c.bytes += size
	ts, meta, err := safetensors.ParseHeader(in, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	offsets, err := shardOffsets(meta["DCP_SHARDING_INFO"], len(ts))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, t := range ts {
		start, ok := offsets[t.Name]
		if !ok || len(start) != len(t.Shape) {
			return fmt.Errorf("%s: DCP_SHARDING_INFO does not say where %s belongs", path, checkpoint.Plain(t.Name))
		}
		for d, s := range start {
			if s < 0 || s > math.MaxInt/2 || t.Shape[d] > math.MaxInt/2 {
				return fmt.Errorf("%s: %s is at %v", path, checkpoint.Plain(t.Name), start)
			}
		}
		x := all[t.Name]
		if x == nil {
			x = &tensor{Tensor: checkpoint.Tensor{Name: t.Name, Kind: checkpoint.Master, DType: t.DType, Shape: make([]int, len(t.Shape))}}
			all[t.Name] = x
		}
		if x.DType != t.DType || len(x.Shape) != len(t.Shape) {
			return fmt.Errorf("%s: %s is %s%v here and %s elsewhere", path, checkpoint.Plain(t.Name), t.DType, t.Shape, x.DType)
		}
		raw, err := torchfile.Raw(path, in, t.Begin, t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		x.pieces = append(x.pieces, piece{start, t.Shape, make([]int, len(start)), already(raw)})
	}
	return nil
}

// shardOffsets reads the offsets of a file's tensors: {name: {"saved_offsets": […]}}.
func shardOffsets(text string, tensors int) (map[string][]int, error) {
	out := map[string][]int{}
	err := jsonread.All([]byte(text), func(r *jsonread.Reader) error {
		return r.Object(func(name string) error {
			if len(out) == tensors {
				return fmt.Errorf("more than the %d tensors of the file", tensors)
			}
			var at struct {
				Offsets []int `json:"saved_offsets"`
			}
			err := r.Strict(&at)
			out[name] = at.Offsets
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("DCP_SHARDING_INFO: %w", err)
	}
	return out, nil
}
